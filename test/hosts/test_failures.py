# SPDX-License-Identifier: Apache-2.0
"""
What is lost between hosts is noticed in time, by name, on every rank, and by the way that is in
time: the end of a process by what the kernel says, silence by PEER_TIMEOUT, which each text says.
A sanitizer's build has more time. One layout a run: the argument says on which host each rank is.
"""

import os
import pathlib
import re
import signal
import socket
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import ranks  # noqa: E402
import stalls  # noqa: E402
import tap  # noqa: E402

PEER_TIMEOUT = 2.0
NEVER = 2 * ranks.DEADLINE  # a PEER_TIMEOUT that no rank lives to see
PATIENCE = float(os.environ.get("HORON_TEST_PATIENCE", "1"))  # more under a sanitizer
SLACK = 1.5 * PATIENCE  # the kernel's timers, and two cores for all ranks
AT_ONCE = 1.0 * PATIENCE
LAYOUT = [int(host) for host in sys.argv[1].split(",")]
LAST_HOST = max(LAYOUT)
MISMATCH = -4
PEER_LOST = -6
HOST = socket.gethostname()  # of all of them: a namespace has no name of its own
LARGE = "4000037"
WATCH = stalls.Watch()


def ranks_on(layout, host):
    return [rank for rank, its in enumerate(layout) if its == host]


def named_ranks(text):
    return {int(rank) for rank in re.findall(rf"\brank (\d+) \({re.escape(HOST)}\)", text)}


def assert_all_failed(job, begun, limit, ranks_left, lost, how):
    """Each of @p ranks_left failed within @p limit seconds, naming one of @p lost(rank), and
    noticed it by @p how."""
    failures = job.failures(ranks_left)
    for rank, failure in failures.items():
        assert failure.status == PEER_LOST, (rank, failure)
        assert named_ranks(failure.text) & set(lost(rank)), (rank, failure)
        assert how in failure.text, (rank, failure)
    took = WATCH.took(begun, max(failure.when for failure in failures.values()))
    print(f"{', '.join(job.words)}: all knew within {took:.2f} s")
    assert took < limit, f"{took} s: {failures}"


def check_unplug(words, unplugged):
    with ranks.hosts(LAST_HOST + 1) as net:
        with ranks.Job(net, LAYOUT, *words, settings={"PEER_TIMEOUT": f"{PEER_TIMEOUT:g}s"}) as job:
            job.wait_for_output("summed")
            begun = time.monotonic()
            net.unplug(unplugged)
            statuses = job.end()
            assert set(statuses) == {1}, statuses
            cut_off = ranks_on(LAYOUT, unplugged)
            others = [rank for rank in range(len(LAYOUT)) if rank not in cut_off]
            assert_all_failed(
                job,
                begun,
                PEER_TIMEOUT + SLACK,
                range(len(LAYOUT)),
                lambda rank: others if rank in cut_off else cut_off,
                f"did not answer for {PEER_TIMEOUT:.1f} s",
            )


def test_failures_unplugged_during_traffic():
    check_unplug(("sum", LARGE, "-1"), LAST_HOST)


def test_failures_unplugged_during_small_sums():
    check_unplug(("sum", "1", "-1"), LAST_HOST)


def test_failures_first_host_unplugged_during_traffic():
    check_unplug(("sum", LARGE, "-1"), 0)


def test_failures_unplugged_while_all_wait():
    check_unplug(("idle",), LAST_HOST)


def test_failures_first_host_unplugged_while_all_wait():
    check_unplug(("idle",), 0)


def check_kill(words, victim):
    with ranks.hosts(LAST_HOST + 1) as net:
        with ranks.Job(net, LAYOUT, *words, settings={"PEER_TIMEOUT": f"{NEVER:g}s"}) as job:
            job.wait_for_output("summed")
            begun = time.monotonic()
            os.kill(job.processes[victim].pid, signal.SIGKILL)
            statuses = job.end()
            assert statuses[victim] == -signal.SIGKILL
            others = [rank for rank in range(len(LAYOUT)) if rank != victim]
            assert_all_failed(
                job, begun, AT_ONCE, others, lambda rank: [victim], "without leaving the job"
            )
            for rank in others:
                assert named_ranks(job.failures([rank])[rank].text) == {victim}, rank


def test_failures_killed_rank_is_named_at_once():
    for victim in (0, 1, len(LAYOUT) - 1):
        check_kill(("sum", LARGE, "-1"), victim)


def test_failures_killed_rank_is_named_at_once_while_all_wait():
    for victim in (0, 1, len(LAYOUT) - 1):
        check_kill(("idle",), victim)


def test_failures_killed_during_small_sums():
    check_kill(("sum", "1", "-1"), len(LAYOUT) - 1)


def test_failures_are_told_by_a_rank_that_then_does_nothing():
    """The rank that found the mismatch calls nothing more, yet the others hear of it."""
    for layout in [[0, 0], [0, 1], LAYOUT]:
        with ranks.hosts(max(layout) + 1) as net:
            with ranks.Job(net, layout, "last") as job:
                others = range(1, len(layout))
                job.end(others)
                for rank, failure in job.failures(others).items():
                    assert failure.status == MISMATCH, (rank, failure)
                    assert {0} < named_ranks(failure.text), (rank, failure)


tap.run(dict(vars()))
