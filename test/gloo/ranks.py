# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks are of several kinds: gloo (Debian's library, peer.cc), torch (torch_peer.py)
and horon (horon_peer.c). All do the same script, and tell what came out of each step."""

import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

PEER = os.environ.get("GLOO_PEER")
HORON_PEER = os.environ.get("HORON_PEER")
LIBRARY = os.environ.get("SCRIPT_LIBRARY")
TORCH_PREFIX = "default_pg/0//cpu//0"  # of torch 2.13's first process group
ENV = {**jobs.CLEAN, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "SCRIPT_LIBRARY": LIBRARY}


class Torch:
    """The process that forks ranks of torch's; started when it is first needed."""

    def __init__(self):
        self.process = None
        self.told = {}
        self.ended = False
        self.change = threading.Condition()

    def begin(self):
        if self.process:
            return
        python = tap.need(python_with_torch(), "there is no Python with torch (tools/setup torch)")
        self.process = subprocess.Popen(
            [python, str(HERE / "torch_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENV,
            text=True,
        )
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        try:
            for line in self.process.stdout:
                word, out, number = line.split()
                with self.change:
                    self.told[word, out] = int(number)
                    self.change.notify_all()
        finally:
            with self.change:
                self.ended = True
                self.change.notify_all()

    def say(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self, word, out):
        with self.change:
            known = lambda: (word, out) in self.told or self.ended  # noqa: E731
            assert self.change.wait_for(known, jobs.DEADLINE), f"torch's ranks: not {word}, {out}"
            assert not self.ended, "torch_peer.py has ended"
            return self.told[word, out]

    def end(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait(jobs.DEADLINE)


TORCH = Torch()


def python_with_torch():
    """That of the tree's .venv, or the one that runs this."""
    own = HERE.parent.parent / ".venv" / "bin" / "python"
    look = "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"
    for python in os.environ.get("HORON_TEST_TORCH_PYTHON"), str(own), sys.executable:
        if python and shutil.which(python) and subprocess.run([python, "-c", look]).returncode == 0:
            return python
    return None


class TorchRank:
    def __init__(self, rank, size, store, script, out, limit_s):
        TORCH.begin()
        self.out = str(out)
        TORCH.say("start", rank, size, store, script, out, limit_s)
        self.pid = TORCH.hear("started", self.out)
        self.held = True

    def poll(self):
        return TORCH.told.get(("ended", self.out))

    def release(self):
        if self.held:
            TORCH.say("end", self.out)
            self.held = False

    def wait(self):
        return TORCH.hear("ended", self.out)


class ProgramRank:
    def __init__(self, program, words, env):
        tap.need(program, "the rank program is not built")
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by wait())
        self.process = subprocess.Popen(
            [program, *map(str, words)],
            stdin=subprocess.PIPE,
            stderr=self.errors,
            env={**ENV, **dict(env)},
        )
        self.pid = self.process.pid

    def poll(self):
        return self.process.poll()

    def release(self):
        self.process.stdin.close()

    def wait(self):
        return self.process.wait(jobs.DEADLINE)

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")


class Team:
    """The ranks of one job, started, of the @p kinds in the order of ranks. @p like: whose store
    and era is used, if all are horon's; else it is theirs that are not."""

    def __init__(self, folder, kinds, script, store=None, like=None, horon_env=(), peer_env=()):
        self.folder = pathlib.Path(folder)
        self.kinds = kinds
        self.outs = [self.folder / f"out{rank}" for rank in range(len(kinds))]
        text = self.folder / "script"
        text.write_text("".join(f"{line}\n" for line in script))
        stores = self.folder / "store"
        torch = "torch" in (like, *kinds)
        if store is None:
            store = f"c10d-file:{stores}" if torch else f"file:{stores}"
        if not torch:
            stores.mkdir()
        own = {
            "HORON_GLOO_STORE": store,
            "HORON_GLOO_PREFIX": TORCH_PREFIX if torch else "a/prefix",
            "HORON_GLOO_ERA": "e3" if torch else "e1",
            **dict(horon_env),
        }
        self.ranks = []
        for rank, kind in enumerate(kinds):
            place = (rank, len(kinds))
            if kind == "torch":
                limit_s = dict(peer_env).get("PEER_TIMEOUT_S", "30")
                made = TorchRank(*place, store, text, self.outs[rank], limit_s)
            elif kind == "gloo":
                words = (*place, stores, "a/prefix", text, self.outs[rank])
                made = ProgramRank(tap.need(PEER, "libgloo-dev is not installed"), words, peer_env)
            else:
                made = ProgramRank(HORON_PEER, (*place, text, self.outs[rank]), own)
            self.ranks.append(made)

    def told(self, rank):
        """@return lines of what @p rank has told so far"""
        out = self.outs[rank]
        return out.read_text().splitlines() if out.exists() else []

    def has_ended(self, rank):
        """Whether it has done all, or has failed."""
        return self.told(rank)[-1:] == ["done"] or self.ranks[rank].poll() is not None

    def has_failed(self):
        """Whether a rank has ended, but not well."""
        return any(rank.poll() not in (None, 0) for rank in self.ranks)

    def end(self):
        """Waits for all. @return the statuses"""
        everybody = range(len(self.ranks))
        jobs.until(lambda: all(map(self.has_ended, everybody)), f"{self.kinds} are done")
        for rank in self.ranks:
            rank.release()
        return [rank.wait() for rank in self.ranks]

    def said(self):
        """What the ranks that are programs have written to their standard error."""
        return "".join(rank.said() for rank in self.ranks if isinstance(rank, ProgramRank))

    def kill(self, rank):
        os.kill(self.ranks[rank].pid, signal.SIGKILL)


@contextlib.contextmanager
def team(kinds, script, **more):
    with tempfile.TemporaryDirectory(prefix="gloo") as folder:
        made = Team(folder, kinds, script, **more)
        try:
            yield made
        finally:
            for rank, started in enumerate(made.ranks):
                if started.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        made.kill(rank)


def results(kinds, script, **more):
    """@return what each rank told of a job that ends well"""
    with team(kinds, script, **more) as job:
        everybody = range(len(kinds))
        jobs.until(
            lambda: job.has_failed() or all(map(job.has_ended, everybody)), f"{kinds} are done"
        )
        told = [job.told(rank) for rank in everybody]
        assert not job.has_failed(), (kinds, [lines[-1:] for lines in told], job.said())
        statuses = job.end()
        assert statuses == [0] * len(kinds), (kinds, statuses, job.said())
        return told


def native_results(size, script):
    """@return what each rank tells of a job of horonrun's, without Gloo"""
    tap.need(HORON_PEER, "the rank program is not built")
    with tempfile.TemporaryDirectory(prefix="gloo") as name:
        folder = pathlib.Path(name)
        (folder / "script").write_text("".join(f"{line}\n" for line in script))
        words = 'exec "$0" "$HORON_RANK" "$1" "$2/script" "$2/out$HORON_RANK"'
        command = ("sh", "-c", words, HORON_PEER, str(size), name)
        status, out, err = jobs.run("-np", str(size), *command)
        assert status == 0, (out, err)
        return [(folder / f"out{rank}").read_text().splitlines() for rank in range(size)]


def difference(told, wanted, script):
    """@return where what ranks told of a script twice differs first, or None"""
    for rank, (ours, theirs) in enumerate(zip(told, wanted, strict=True)):
        for one, other in itertools.zip_longest(ours, theirs):
            if one != other:
                number = (one or other).split()[0]
                step = script[int(number) - 1] if number.isdigit() else ""
                return f"rank {rank}: {one} rather than {other}: {step}"
    return None
