# SPDX-License-Identifier: Apache-2.0
"""Which suites are run, in which build, and how. A suite is NAME, NAME-short or NAME-full: the long
form of a suite, or of its short one, runs with --full only. A build has all tests, or those that
its `wanted` picks by their description (meson introspect --tests) and their programs' sources."""

import re
from pathlib import Path

# What must be there. A suite without a test is a failure, not a pass.
SUITES = ("unit", "world", "simulation", "multi", "hosts", "torture", "drift")
QUICK = ("unit", "world", "drift")
FUZZ, FUZZ_FULL = "fuzz-short", "fuzz-full"

# As many programs of a suite run at once as there are cores. The long forms of these need gigabytes
# of memory, or all processes of the machine; what waits for silent hosts leaves cores idle.
ALONE = ("multi-full", "hosts-full")
WAITING = ("hosts",)

# What a sanitizer repeats, and whose long form, which tells the thread sanitizer no more for most.
SANITIZED = {
    "address,undefined": ("unit", "world", "simulation", "multi", "hosts", "torture"),
    "thread": ("unit", "world", "multi", "hosts", "torture"),
}
LONG_FORMS = {"address,undefined": SANITIZED["address,undefined"], "thread": ("multi", "hosts")}

# The thread sanitizer learns nothing where one thread runs: in the launcher, in the simulation, in
# a test that neither begins threads nor uses a helper that does. Bytes are counted without it, and
# one layout of hosts has all the threads that the others have; ranks by MPI, whatever its package,
# have those of mpi/kill, ranks of Gloo those of multi/gloo, and those that a launcher kills those
# of multi/kill.
NO_NEW_THREADS = (
    "hosts/ssh",
    "hosts/traffic",
    "hosts/addresses",
    "mpi/backend",
    "mpi/wheels",
    "gloo/ranks",
    "tools/horonrun_kill",
    "benchmarks/perf",
)
FULL_LAYOUT = "0,1,1,2,2,2"
FEW_THREADS = ("unit", "world", "torture")
BEGINS_THREADS = re.compile(r'pthread_create|#include "[\w./]*(boots|duo)\.h"')


def suites_of(test):
    """Meson says PROJECT:SUITE."""
    return {name.partition(":")[2] or name for name in test["suite"]}


def all_tests(_test, _sources):
    return True


def fuzz_tests(test, _sources):
    return not suites_of(test).isdisjoint((FUZZ, FUZZ_FULL))


def threaded_tests(test, sources):
    found = suites_of(test)
    name, _, layout = test["name"].partition(" ")
    if found.isdisjoint(sanitized("thread", found, True)) or name in NO_NEW_THREADS:
        return False
    if "hosts" in found and layout not in ("", FULL_LAYOUT):
        return False
    if found.isdisjoint(FEW_THREADS):
        return True
    return any(BEGINS_THREADS.search(Path(name).read_text(encoding="utf-8")) for name in sources)


WANTED = {"address,undefined": all_tests, "thread": threaded_tests}


def programs_at_once(suite, cores):
    """How many programs of @p suite run side by side."""
    if suite in ALONE:
        return 1
    return 2 * cores if suite in WAITING else cores


def long_forms(available):
    """The long forms among the suites of a build."""
    return sorted(suite for suite in available if suite.endswith("-full"))


def sanitized(sanitizer, available, full):
    """What a sanitized build runs; @p available are its suites."""
    wanted = [f"{suite}-full" for suite in LONG_FORMS[sanitizer]] if full else []
    return [*SANITIZED[sanitizer], *(suite for suite in wanted if suite in available)]
