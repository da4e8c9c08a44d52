# SPDX-License-Identifier: Apache-2.0
"""Ranks started by hand in network namespaces; the store is served by rank 0."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import netns  # noqa: E402
import tap  # noqa: E402

WHY_NOT = netns.why_not(with_ssh=False)
VERIFY = os.environ.get("VERIFY", "verify")
DEADLINE = 120.0  # only a hang reaches it
PORT = 5077
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("HORON")}
KEY = "a key of this test alone, as long as it must be"


def hosts(count):
    if WHY_NOT:
        raise tap.Skip(WHY_NOT)
    return netns.Hosts(count, with_ssh=False)


def verify(*words):
    """Runs verify without a job. @return its output"""
    return subprocess.run(
        [VERIFY, *words], check=True, capture_output=True, text=True, env=CLEAN, timeout=DEADLINE
    ).stdout


def expected(layout):
    """@return what each rank of @p layout, a text, must print of all cases: lines, by rank"""
    found = [[] for _ in layout.split(",")]
    for line in verify("expect", layout).splitlines():
        rank, words = line.split(" ", 1)
        found[int(rank)].append(words)
    return found


class Failure:
    """What a rank said of its failure."""

    def __init__(self, when, status, text):
        self.when, self.status, self.text = int(when) / 1e9, int(status), text

    def __repr__(self):
        return f"{self.status} at {self.when:.3f}: {self.text}"


class Job(contextlib.ExitStack):
    """One process a rank: rank r on host layout[r] of @p net. All are killed when it is left."""

    def __init__(self, net, layout, *words, settings=None, store=None, of_rank=None):
        """@param of_rank  settings of one rank, from its number"""
        super().__init__()
        self.net, self.layout, self.words = net, layout, words
        self.settings = {
            "HORON_SIZE": str(len(layout)),
            "HORON_STORE": store or f"tcp://{net.addresses[layout[0]]}:{PORT}",
            "HORON_JOB_KEY": KEY,
            "HORON_STALL_WARN": "0",  # a rank that the machine keeps waiting is no finding
            **{f"HORON_{name}": str(value) for name, value in (settings or {}).items()},
        }
        self.of_rank = of_rank or (lambda rank: {})

    def __enter__(self):
        super().__enter__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.callback(self.end_all)
        self.processes = []
        words = [word.replace("{folder}", str(self.folder)) for word in self.words]
        for rank, host in enumerate(self.layout):
            with (
                open(self.folder / f"out{rank}", "wb") as out,
                open(self.folder / f"err{rank}", "wb") as err,
            ):
                self.processes.append(
                    subprocess.Popen(
                        [*self.net.inside(self.net.names[host]), VERIFY, *words],
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        env={
                            **CLEAN,
                            **self.settings,
                            **self.of_rank(rank),
                            "HORON_RANK": str(rank),
                        },
                    )
                )
        return self

    def end_all(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def out(self, rank):
        return (self.folder / f"out{rank}").read_text()

    def err(self, rank):
        return (self.folder / f"err{rank}").read_text()

    def everything(self):
        return "\n".join(
            f"rank {rank}: {self.out(rank)[-2000:]}{self.err(rank)[-2000:]}"
            for rank in range(len(self.layout))
        )

    def wait_for_output(self, text, ranks=None):
        """Waits until each of ranks, by default all, has printed @p text."""
        end = time.monotonic() + DEADLINE
        ranks = range(len(self.layout)) if ranks is None else ranks
        while not all(text in self.out(rank) for rank in ranks):
            assert time.monotonic() < end, f"in vain waited for {text!r}:\n{self.everything()}"
            for rank, process in enumerate(self.processes):
                assert process.poll() is None, f"rank {rank} ended:\n{self.everything()}"
            time.sleep(0.005)

    def wait_for_stop(self, rank):
        """Waits until a rank has stopped itself."""
        process = self.processes[rank]
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert found.si_code == os.CLD_STOPPED, f"rank {rank} ended:\n{self.everything()}"

    def end(self, ranks=None):
        """Waits for ranks, by default all. @return their exit statuses"""
        end = time.monotonic() + DEADLINE
        statuses = []
        for rank in range(len(self.layout)) if ranks is None else ranks:
            try:
                statuses.append(self.processes[rank].wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} does not end:\n{self.everything()}") from None
        return statuses

    def end_well(self):
        statuses = self.end()
        assert not any(statuses), f"{statuses}\n{self.everything()}"

    def failures(self, ranks=None):
        """What ranks said of their failures, after the end. @return by rank"""
        found = {}
        for rank in range(len(self.layout)) if ranks is None else ranks:
            match = re.search(r"^failed (\d+) (-?\d+) (.*)$", self.out(rank), re.MULTILINE)
            assert match, f"rank {rank} did not fail:\n{self.everything()}"
            found[rank] = Failure(*match.groups())
        return found
