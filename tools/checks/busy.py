# SPDX-License-Identifier: Apache-2.0
"""A busy machine: suites again and again, side by side, with a loop that never ends on each core.
A test that fails there now and then waits for too little, or asserts what nothing promises."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import replace

import python_side
from results import FAILED, Case

SUITES = ("unit", "world", "multi", "hosts")
PYTHON = "python"

# One core's; it ends with the check, however that ends.
LOOP = """
import os, sys
core, check = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
while os.getppid() == check:
    for _ in range(1000000):
        pass
"""


@contextlib.contextmanager
def loops():
    """A busy loop on each core that this process may use."""
    begun = []
    try:
        for core in sorted(os.sched_getaffinity(0)):
            words = [sys.executable, "-S", "-c", LOOP, str(core), str(os.getpid())]
            begun.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
        yield
    finally:
        for loop in begun:
            loop.kill()
            loop.wait()


def run_round(build, suite):
    """@return its cases, the first of which says how long it took"""
    began = time.monotonic()
    try:
        cases = python_side.run_pytest() if suite == PYTHON else build.run_suite(suite)
    except (OSError, ValueError) as error:  # what a thread raises would be heard by nothing
        cases = [Case(suite, FAILED, f"the suite could not be run: {error}")]
    cases = cases or [Case(suite, FAILED, "nothing ran")]
    return [replace(cases[0], took=time.monotonic() - began), *cases[1:]]


def rounds_of(build, rounds):
    """Runs each suite @p rounds times, a thread a suite. Yields (suite, cases) as a round ends."""
    ended = queue.Queue()

    def stream(suite):
        for _ in range(rounds):
            ended.put((suite, run_round(build, suite)))

    streams = [
        threading.Thread(target=stream, args=(suite,), daemon=True) for suite in (*SUITES, PYTHON)
    ]
    for one in streams:
        one.start()
    for _ in range(rounds * len(streams)):
        yield ended.get()
