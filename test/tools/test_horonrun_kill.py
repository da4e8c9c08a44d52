# SPDX-License-Identifier: Apache-2.0
"""Ranks, horonrun, agents and guards are killed at random moments: what survives says within a
second which rank is gone and where it was, horonrun ends within five, and nothing stays behind.

Runs in namespaces of its own, so that every process, socket and file in sight is one of the job.
"""

import contextlib
import itertools
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import alone  # noqa: E402
import jobs  # noqa: E402
import stalls  # noqa: E402
import tap  # noqa: E402

KILL_RANK = os.environ.get("KILL_RANK")
FULL = bool(os.environ.get("HORON_TEST_FULL"))
RANK_ROUNDS = 1000 if FULL else 100
TRIO_ROUNDS = 420 if FULL else 42
PATIENCE = float(os.environ.get("HORON_TEST_PATIENCE", "1"))  # more under a sanitizer
TOLD_S = 1.0 * PATIENCE  # until a survivor knows
ENDED_S = 5.0 * PATIENCE  # until horonrun has ended, and all else
PEER_LOST = -6

# What answers for a host's processes, and all sets of them; of the last, every one is killed.
TRIO = ("horonrun", "guard", "agent")
TRIO_SETS = [set(some) for count in (1, 2, 3) for some in itertools.combinations(TRIO, count)]

WHY_NOT_ALONE = alone.enter(KILL_RANK, jobs.HORONRUN)
WATCH = stalls.Watch()

# What ranks are at when one is killed, and how long after they are the kill may come.
PHASES = {"start": 0.04, "traffic": 0.03, "wait": 0.03, "queue": 0.03, "churn": 0.05, "leave": 2e-3}


def seed():
    given = os.environ.get("HORON_TEST_SEED")
    return int(given) if given else random.randrange(1 << 32)


# Stands for ssh, without another machine: its command runs here, as sshd would run it there.
FAKE_SSH = 'while [ "$1" != -- ]; do shift; done; exec sh -c "$3"\n'
OTHER_HOST = "10.77.0.9"


class Round:
    """One job in which somebody is killed."""

    def __init__(self, chance, phase, two_hosts, fork_share):
        self.phase = phase
        self.size = chance.randint(2, 4)
        self.victim = chance.randrange(self.size)
        self.pause = chance.random() * PHASES[phase]
        program = "traffic" if phase == "start" else phase
        absent = chance.randrange(self.size)
        self.forks = phase not in ("churn", "leave") and chance.random() < fork_share
        shm = chance.choice("0111")
        hosts = ["-H", f"localhost:1,{OTHER_HOST}:9", "--ssh", f"sh {fake_ssh()}"]
        self.words = ["-np", str(self.size), *(hosts if two_hosts else ()), "--shm", shm]
        self.words += [KILL_RANK, program, str(absent), str(int(self.forks))]
        self.folder = tempfile.mkdtemp(dir=alone.SCRATCH[0])
        self.before = alone.everything()
        env = {"TMPDIR": self.folder, "HOME": self.folder}
        self.out = self.err = ""
        self.job = jobs.Job(*self.words, env=env, cwd=self.folder)

    def said(self, rank, what):
        """What a rank said that begins with a word: the words that follow, or None."""
        found = re.search(rf"^\[{rank}\]<stdout>:{what}\b ?(.*)$", self.out, re.MULTILINE)
        return found[1] if found else None

    def await_moment(self):
        """Waits until the ranks are at what they are to be at, and for a random while."""
        if self.phase == "start":
            pass  # the process that is wanted is to be killed as soon as it is there
        elif self.phase == "leave":
            self.job.wait_for_output(rb"<stdout>:ready")
        else:
            self.job.wait_for_output(rb"<stdout>:ready", self.size)
        end = time.monotonic() + self.pause
        while time.monotonic() < end:
            pass  # the random moment itself; a sleep would come late

    def victim_pid(self):
        if self.phase == "start":
            jobs.until(lambda: len(self.rank_pids()) > self.victim, "the rank is started")
            return self.rank_pids()[self.victim]
        # Each rank has a pipe of its own: what others said may come through before its first line.
        pattern = rf"\[{self.victim}\]<stdout>:up (\d+)\n".encode()
        return int(self.job.wait_for_output(pattern)[0])

    def rank_pids(self):
        guards = children_of(self.job.process.pid)
        agents = [pid for guard in guards for pid in children_of(guard)]
        return [pid for agent in agents for pid in children_of(agent)]

    def trio(self, chance):
        """@return process numbers by role, on one host; those of TRIO that are there already"""
        pids = [self.job.process.pid]
        while len(pids) < len(TRIO) and (below := children_of(pids[-1])):
            pids.append(chance.choice(below))
        return dict(zip(TRIO, pids, strict=False))

    def kill(self, pids):
        self.killed = time.monotonic()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # the others were faster
                os.kill(pid, signal.SIGKILL)

    def end(self):
        """Waits for horonrun, and checks that it was in time and that nothing is left."""
        self.status, self.out, self.err = self.job.end()
        self.took = WATCH.took(self.killed, time.monotonic())
        assert self.took < ENDED_S, f"horonrun ended after {self.took:.2f} s"
        self.assert_nothing_left()

    def assert_nothing_left(self):
        while left := alone.everything() - self.before:
            if WATCH.took(self.killed, time.monotonic()) > ENDED_S:
                break
            time.sleep(0.002)
        assert not left, f"left behind: {sorted(left)}"
        shutil.rmtree(self.folder)

    def check_survivor(self, rank):
        """@return how long it took to know, in seconds"""
        lost = self.said(rank, "failed")
        if lost is None:
            left = self.said(rank, "left")
            if self.phase == "start" and self.said(rank, "up") is None:
                return 0.0  # ended before it could say anything
            assert left and self.phase == "leave", f"rank {rank} says nothing"
            begun, ended = left.split()
        else:
            status, begun, ended, text = lost.split(" ", 3)
            assert int(status) == PEER_LOST, f"rank {rank}: {lost}"
            assert re.search(rf"\brank {self.victim}\b", text), f"rank {rank}: {text}"
            assert alone.HOST in text, f"rank {rank}: {text}"
        took = WATCH.took(max(int(begun) / 1e9, self.killed), int(ended) / 1e9)
        assert took < TOLD_S, f"rank {rank} knew after {took:.2f} s"
        return took

    def check_launcher(self):
        assert self.status == 128 + signal.SIGKILL, f"horonrun's status is {self.status}"
        wanted = rf"horonrun: rank {self.victim} on {alone.HOST} .*killed by signal 9"
        assert re.search(wanted, self.err), "the culprit is not named"

    def tell(self):
        lines = [f"{' '.join(self.words)}; victim {self.victim} in {self.phase}"]
        return "\n  ".join(lines + self.out.splitlines() + self.err.splitlines())


def children_of(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(word) for word in words]


def fake_ssh():
    path = os.path.join(alone.SCRATCH[0], "ssh")
    pathlib.Path(path).write_text(FAKE_SSH)
    return path


def run_rounds(count, one_round, two_hosts=False, fork_share=0.3):
    """@return what the rounds returned. A failure is told with its seed and round."""
    tap.need(KILL_RANK, "the rank program is not built (KILL_RANK)")
    tap.need(not WHY_NOT_ALONE, WHY_NOT_ALONE)
    number = seed()
    phases = list(PHASES)
    results = []
    for index in range(count):
        chance = random.Random(f"{number} {index}")  # so that a round is the same in any order
        phase = phases[index % len(phases)]
        this = Round(chance, phase, two_hosts and chance.random() < 0.5, fork_share)
        try:
            with this.job:
                results.append(one_round(this, chance, index // len(phases)))
        except AssertionError as error:
            raise AssertionError(
                f"HORON_TEST_SEED={number}, round {index}: {error}\n{this.tell()}"
            ) from error
    return results


def kill_a_rank(this, *_):
    this.await_moment()
    this.kill([this.victim_pid()])
    this.end()
    this.check_launcher()
    others = [rank for rank in range(this.size) if rank != this.victim]
    return max(this.check_survivor(rank) for rank in others), this.took


def test_killed_rank_is_named_by_all_and_nothing_is_left():
    results = run_rounds(RANK_ROUNDS, kill_a_rank)
    print(
        f"# {len(results)} kills: all others knew within {max(r[0] for r in results):.3f} s, "
        f"horonrun ended within {max(r[1] for r in results):.3f} s"
    )


def kill_some_of_a_trio(this, chance, turn):
    """Kills horonrun, the guard or the agent of a host, or any two of them, in any order. Or all
    three: then the kernel ends the ranks, but nobody is left to end what those started."""
    wanted = TRIO_SETS[turn % len(TRIO_SETS)]
    if this.forks and len(wanted) == len(TRIO):
        wanted = chance.choice(TRIO_SETS[:-1])
    this.await_moment()
    victims = [pid for role, pid in this.trio(chance).items() if role in wanted]
    if not victims:
        victims = [this.job.process.pid]
    chance.shuffle(victims)
    this.kill(victims)
    this.end()
    assert this.status != 0, "horonrun's status is 0"
    return this.took


def test_killed_horonrun_guard_or_agent_leaves_nothing():
    results = run_rounds(TRIO_ROUNDS, kill_some_of_a_trio, two_hosts=True, fork_share=0.8)
    print(f"# {len(results)} kills: all was gone within {max(results):.3f} s")


tap.run(dict(vars()))
