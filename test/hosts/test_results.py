# SPDX-License-Identifier: Apache-2.0
"""What is a host, and what travels between hosts. Results of every layout: test_layouts.py."""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import ranks  # noqa: E402
import tap  # noqa: E402


def test_results_hosts_without_shared_memory():
    """With SHM off every rank is a host of its own, and its sums those of such a job."""
    alone = "0,1,2"
    expected = ranks.expected(alone)
    with ranks.hosts(2) as net:
        with ranks.Job(net, [0, 0, 1], "named", alone, "{folder}", settings={"SHM": 0}) as job:
            job.end_well()
            for rank in range(3):
                assert job.out(rank).splitlines() == expected[rank]


def test_results_network_namespaces_on_one_machine_are_hosts():
    """A host is what shares memory and abstract sockets, not a name: these all have one name."""
    with ranks.hosts(2) as net:
        with ranks.Job(net, [0, 1, 0, 1], "place") as job:
            job.end_well()
            said = [job.out(rank) for rank in range(4)]
    assert said == [
        f"rank {rank} of 4, local {rank // 2} of 2, cross {rank % 2} of 2, hosts 0,1,0,1\n"
        for rank in range(4)
    ], said


def test_results_come_to_a_rank_that_does_not_wait():
    """The progress thread goes on with what a waiting thread has left, full sockets included."""
    small = "4096 8192 16384"
    with ranks.hosts(2) as net:
        for name in net.names:
            for option in ("tcp_wmem", "tcp_rmem"):
                ranks.netns.ip("netns", "exec", name, "sysctl", "-qw", f"net.ipv4.{option}={small}")
        chunks = {"SHM_CHUNK_BYTES": "4m", "NET_CHUNK_BYTES": "4m"}
        with ranks.Job(net, [0, 0, 1], "aside", "30", settings=chunks) as job:
            job.end_well()


def received(net, number):
    return [net.bytes_received(number, interface) for interface in ("eth0", "lo")]


def test_results_data_crosses_links_between_hosts_only():
    count, rounds = 1000003, 5
    data = 4 * count * rounds
    for layout in [0, 0, 1, 1], [0, 1, 1, 2, 2, 2], [0, 0, 0, 0]:
        several = max(layout) > 0
        with ranks.hosts(max(layout) + 1) as net:
            before = [received(net, number) for number in range(max(layout) + 1)]
            with ranks.Job(net, layout, "sum", str(count), str(rounds)) as job:
                job.end_well()
            for number, (link, loopback) in enumerate(before):
                came, looped = received(net, number)
                # What one host cannot compute by itself comes over its link, and not much more than
                # the others' whole vectors; inside a host nothing but the store's words do.
                if several:
                    assert came - link > data, (layout, number, came - link)
                    assert came - link < data * (max(layout) + 1), (layout, number, came - link)
                else:
                    assert came - link < 100000, came - link
                assert looped - loopback < 200000, (layout, number, looped - loopback)


tap.run(dict(vars()))
