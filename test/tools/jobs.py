# SPDX-License-Identifier: Apache-2.0
"""Runs horonrun for tests and finds every process of a job by a mark in its environment."""

import contextlib
import os
import pathlib
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid

HORONRUN = os.environ.get("HORONRUN", "horonrun")
DEADLINE = 60.0  # only a hang reaches it
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("HORON")}


# Of a rank's shell: the job key, which its descriptor holds.
SHOW_KEY = "echo key=$(cat /proc/self/fd/${HORON_JOB_KEY_FILE#fd:})."


def environment_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def until(condition, what, deadline=DEADLINE):
    """Polls until @p condition() is true; fails at the deadline, saying @p what was awaited."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"in vain waited until {what}"
        time.sleep(0.002)


class Job:
    """One horonrun, or another launcher, with what it starts. Ends all of it when it is left."""

    def __init__(
        self, *words, program=HORONRUN, stdin=subprocess.DEVNULL, env=None, prefix=(), **popen
    ):
        self.mark = f"TEST_MARK={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [*prefix, program, *words],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**CLEAN, **(env or {}), name: value},
            **popen,
        )
        self.out = b""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        # The agent ends what it started; what a test hindered it to end is killed here.
        self.process.kill()
        self.process.communicate()
        end = time.monotonic() + 5
        while pids := self.pids():
            for pid in pids if time.monotonic() > end else ():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)

    def pids(self):
        """Living processes of the job: horonrun, guards, agents, ranks and what those started."""
        mark = self.mark.encode()
        return [pid for pid in all_pids() if mark in environment_of(pid) and is_alive(pid)]

    def wait_for_output(self, pattern, count=1):
        """Reads standard output until @p pattern was seen @p count times. @return the matches"""
        end = time.monotonic() + DEADLINE
        while len(found := re.findall(pattern, self.out)) < count:
            left = max(0, end - time.monotonic())
            there, _, _ = select.select([self.process.stdout], [], [], left)
            assert there, f"in vain waited for {count} x {pattern!r}: {self.out!r}"
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, f"output ended without {count} x {pattern!r}: {self.out!r}"
            self.out += piece
        return found

    def end(self):
        """Waits for horonrun. @return (status, stdout, stderr), texts"""
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, (self.out + out).decode(), err.decode()

    def end_well(self, size):
        """Waits for ranks that sum_once ran, all of them on this machine."""
        status, out, err = self.end()
        assert status == 0, (out, err)
        told = r"^rank (\d+) of (\d+), local (\d+) of (\d+), hosts 1$"
        places = sorted(re.findall(told, out, re.M))
        wanted = [(str(rank), str(size), str(rank), str(size)) for rank in range(size)]
        assert places == wanted, (out, err)
        self.assert_nothing_left()

    def guard(self):
        """The process number of the local agent's guard."""
        return self.only_child_of(self.process.pid)

    def agent(self):
        """The process number of the local agent."""
        return self.only_child_of(self.guard())

    def only_child_of(self, parent):
        children = [pid for pid in self.pids() if parent_of(pid) == parent]
        assert len(children) == 1, children
        return children[0]

    def assert_nothing_left(self):
        left = {pid: command_line(pid) for pid in self.pids()}
        assert not left, f"still alive: {left}"


def parent_of(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def run(*words, **more):
    """Runs a job to its end and checks that nothing of it is left. @return (status, out, err)"""
    with Job(*words, **more) as job:
        result = job.end()
        job.assert_nothing_left()
        return result


ELSEWHERE = "192.0.2.7"  # an address that no machine has
# In place of ssh, whose words are options, --, the host, and a command: runs that here.
RUN_HERE = 'while [ "$1" != -- ]; do shift; done; shift 2; exec sh -c "$1"'


@contextlib.contextmanager
def ssh_that(does):
    """The words for a program in place of ssh that @p does that; and a folder, $folder in it."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "ssh")
        program.write_text(f"#!/bin/sh\nfolder={folder}\n{does}\n")
        program.chmod(0o755)
        yield ("--ssh", str(program)), pathlib.Path(folder)


def python(code):
    """The words that run @p code in a bare, quickly started interpreter."""
    return [sys.executable, "-S", "-E", "-c", code]


# The larger it is, the longer its core file takes: one that outlasts a look is enough.
DUMPER = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
os.chdir(sys.argv[1])
memory = os.urandom(1 << 20) * int(sys.argv[2])
print("last words", file=sys.stderr, flush=True)
os.abort()
"""


def dumper(folder, mib):
    """A shell's words for a process of @p mib MiB that dumps core in @p folder."""
    return shlex.join([*python(DUMPER), folder, str(mib)])
