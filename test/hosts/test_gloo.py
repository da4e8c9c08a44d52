# SPDX-License-Identifier: Apache-2.0
"""Ranks among Gloo's on hosts of their own: how they meet, and how a silent one is noticed."""

import os
import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import ranks  # noqa: E402
import stalls  # noqa: E402
import tap  # noqa: E402

PEER_TIMEOUT = 2.0
PATIENCE = float(os.environ.get("HORON_TEST_PATIENCE", "1"))  # more under a sanitizer
SLACK = 2.5 * PATIENCE  # the kernel's timers, two cores for all ranks, and a look in between
PEER_LOST = -6
LARGE = "4000037"
WATCH = stalls.Watch()


def settings(host, network):
    return {
        "GLOO_STORE": f"tcp://{host}:{ranks.PORT}",
        "INTERFACES": network,
        "PEER_TIMEOUT": f"{PEER_TIMEOUT:g}s",
    }


def test_gloo_ranks_meet_by_either_family():
    with ranks.hosts(3) as net:
        for host, network in (
            (net.addresses[0], "10.77.0.0/24"),
            (f"[{net.addresses6[0]}]", "fd77::/64"),
        ):
            with ranks.Job(
                net, [0, 1, 2], "sum", "1000", "3", settings=settings(host, network)
            ) as job:
                job.end_well()


def check_unplug(count):
    with ranks.hosts(2) as net:
        told = settings(net.addresses[0], "10.77.0.0/24")
        with ranks.Job(net, [0, 1], "sum", count, "-1", settings=told) as job:
            job.wait_for_output("summed")
            begun = time.monotonic()
            net.unplug(1)
            statuses = job.end()
            assert set(statuses) == {1}, statuses
            for rank, failure in job.failures().items():
                assert failure.status == PEER_LOST, (rank, failure)
                assert f"rank {1 - rank} (10.77.0" in failure.text, (rank, failure)
                assert f"did not answer for {PEER_TIMEOUT:.1f} s" in failure.text, (rank, failure)
                took = WATCH.took(begun, failure.when)
                assert took < PEER_TIMEOUT + SLACK, (rank, failure, begun)


def test_gloo_silent_host_is_noticed_during_traffic():
    check_unplug(LARGE)


def test_gloo_silent_host_is_noticed_during_small_sums():
    check_unplug("1")


tap.run(dict(vars()))
