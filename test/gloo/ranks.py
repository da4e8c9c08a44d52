# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks are of several kinds: gloo (Debian's library, peer.cc), torch (torch_peer.py),
old-torch (likewise, of torch until 2.0) and horon (horon_peer.c). All do the same script, and tell
what came out of each step."""

import contextlib
import functools
import itertools
import os
import pathlib
import re
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
TORCH_PREFIX = "default_pg/0//cpu//0"  # of torch's first process group, since 2.0
OLD_TORCH_PREFIX = "default_pg/0/0"  # and before
ENV = {**jobs.CLEAN, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "SCRIPT_LIBRARY": LIBRARY}


class Torch:
    """The process that forks ranks of torch's; started when it is first needed. Of torch until 2.0,
    whose ranks meet as in era 1, where @p old says so."""

    def __init__(self, old=False):
        self.old = old
        self.process = None
        self.told = {}
        self.ended = False
        self.change = threading.Condition()

    def begin(self):
        if self.process:
            return
        python = tap.need(self.find()[0], self.lack())
        self.process = subprocess.Popen(
            [python, str(HERE / "torch_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENV,
            text=True,
        )
        threading.Thread(target=self.listen, daemon=True).start()

    @functools.cache  # noqa: B019 (there are two of them)
    def find(self):
        """@return a Python with such a torch, and which that is; or None twice"""
        if self.old:  # Debian 12's python3-torch is of 1.13
            pythons = os.environ.get("HORON_TEST_OLD_TORCH_PYTHON"), "/usr/bin/python3"
        else:  # that of the tree's .venv, or the one that runs this
            own = HERE.parent.parent / ".venv" / "bin" / "python"
            pythons = os.environ.get("HORON_TEST_TORCH_PYTHON"), str(own), sys.executable
        for python in pythons:
            version = torch_of(python)
            if version and (version < (2, 1)) == self.old:
                return python, version
        return None, None

    def lack(self):
        if self.old:
            return "there is no Python with a torch before 2.1 (Debian 12 has python3-torch)"
        return "there is no Python with torch (tools/setup torch)"

    def prefix(self):
        """@return what stands before the keys of its first process group"""
        version = tap.need(self.find()[1], self.lack())
        return TORCH_PREFIX if version >= (2, 0) else OLD_TORCH_PREFIX

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


TORCHES = {"torch": Torch(), "old-torch": Torch(old=True)}


def end_torches():
    for torch in TORCHES.values():
        torch.end()


def torch_of(python):
    """@return which torch @p python has, as (2, 13); None: it has none"""
    # not imported, which takes seconds; the versions of Debian's packages are not among metadata
    look = (
        "import importlib.util as u, pathlib; found = u.find_spec('torch'); "
        "print((pathlib.Path(found.origin).parent / 'version.py').read_text() if found else '')"
    )
    if not (python and shutil.which(python)):
        return None
    told = subprocess.run([python, "-c", look], capture_output=True, text=True).stdout
    found = re.search(r"^__version__ = ['\"](\d+)\.(\d+)", told, re.MULTILINE)
    return found and tuple(map(int, found.groups()))


class TorchRank:
    def __init__(self, torch, rank, size, store, script, out, limit_s):
        torch.begin()
        self.torch = torch
        self.out = str(out)
        torch.say("start", rank, size, store, script, out, limit_s)
        self.pid = torch.hear("started", self.out)
        self.held = True

    def poll(self):
        return self.torch.told.get(("ended", self.out))

    def release(self):
        if self.held:
            self.torch.say("end", self.out)
            self.held = False

    def wait(self):
        return self.torch.hear("ended", self.out)


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
        torch = next((kind for kind in TORCHES if kind in (like, *kinds)), None)
        if store is None:
            store = f"c10d-file:{stores}" if torch else f"file:{stores}"
        if not torch:
            stores.mkdir()
        own = {
            "HORON_GLOO_STORE": store.replace("env://", "tcp://"),
            "HORON_GLOO_PREFIX": TORCHES[torch].prefix() if torch else "a/prefix",
            "HORON_GLOO_ERA": "e3" if torch == "torch" else "e1",
            **dict(horon_env),
        }
        self.ranks = []
        for rank, kind in enumerate(kinds):
            place = (rank, len(kinds))
            if kind in TORCHES:
                limit_s = dict(peer_env).get("PEER_TIMEOUT_S", "30")
                made = TorchRank(TORCHES[kind], *place, store, text, self.outs[rank], limit_s)
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
