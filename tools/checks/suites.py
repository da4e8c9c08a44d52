# SPDX-License-Identifier: Apache-2.0
"""Which suites are run, in which build, and how. A suite is NAME, NAME-short or NAME-full: the long
form of a suite, or of its short one, runs with --full only."""

# What must be there. A suite without a test is a failure, not a pass.
SUITES = ("unit", "world", "simulation", "multi", "hosts", "torture", "drift")
QUICK = ("unit", "world", "drift")
FUZZ, FUZZ_FULL = "fuzz-short", "fuzz-full"

# As many programs of a suite run at once as there are cores. The long forms of these need gigabytes
# of memory, or all processes of the machine; what waits for silent hosts leaves cores idle.
ALONE = ("multi-full", "hosts-full")
WAITING = ("hosts",)

# What a sanitizer repeats, and whose long form. A program of one thread, as the simulation, tells
# the thread sanitizer nothing, and the long form of most no more than the short one.
SANITIZED = {
    "address,undefined": ("unit", "world", "simulation", "multi", "hosts", "torture"),
    "thread": ("unit", "world", "multi", "hosts", "torture"),
}
LONG_FORMS = {"address,undefined": SANITIZED["address,undefined"], "thread": ("multi", "hosts")}


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
