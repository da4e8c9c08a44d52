# SPDX-License-Identifier: Apache-2.0
"""Results over several hosts are the bits of one process that computes the same tree."""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import ranks  # noqa: E402
import tap  # noqa: E402

LAYOUTS = {
    "2x2": [0, 0, 1, 1],
    "4x1": [0, 1, 2, 3],
    "1+2+3": [0, 1, 1, 2, 2, 2],
    "3+1 crosswise": [0, 1, 0, 0],
    "one host": [0, 0, 0],
}
SMALL_CHUNKS = {"SHM_CHUNK_BYTES": 4096, "NET_CHUNK_BYTES": 4096, "NET_EAGER_BYTES": 1000}


def text_of(layout):
    return ",".join(map(str, layout))


def compare(layout, mode, settings, expected, net):
    with ranks.Job(
        net, layout, mode, text_of(layout), "{folder}", settings={"LOG_LEVEL": "warn", **settings}
    ) as job:
        job.end_well()
        for rank in range(len(layout)):
            lines = job.out(rank).splitlines()
            wrong = [line for line, right in zip(lines, expected, strict=False) if line != right]
            assert lines == expected, (
                f"{mode} {settings}: rank {rank} got {len(lines)} of {len(expected)} results, "
                f"{len(wrong)} are wrong: {wrong[:8]}"
            )
            assert not job.err(rank), job.err(rank)


def check_layout(layout):
    expected = ranks.verify("expect", text_of(layout)).splitlines()
    assert len(expected) > 250
    with ranks.hosts(max(layout) + 1) as net:
        for algorithm in ("auto", "flat", "direct", "halving"):
            for mode in ("in-order", "named"):
                compare(layout, mode, {"NET_ALGORITHM": algorithm}, expected, net)
        for algorithm in ("flat", "direct", "halving"):
            compare(layout, "grouped", {"NET_ALGORITHM": algorithm, **SMALL_CHUNKS}, expected, net)
        compare(layout, "in-order", {"SHM_SMALL_BYTES": 0, **SMALL_CHUNKS}, expected, net)
        compare(layout, "named", {"FUSION_BYTES": 0, "CACHE_ENTRIES": 0}, expected, net)
        compare(layout, "named", {"FUSION_BYTES": "64k", "SHM_SMALL_BYTES": 0}, expected, net)


def test_results_two_hosts_of_two():
    check_layout(LAYOUTS["2x2"])


def test_results_four_hosts_of_one():
    check_layout(LAYOUTS["4x1"])


def test_results_hosts_of_one_two_and_three():
    check_layout(LAYOUTS["1+2+3"])


def test_results_ranks_of_hosts_not_next_to_each_other():
    check_layout(LAYOUTS["3+1 crosswise"])


def test_results_one_host_of_three():
    check_layout(LAYOUTS["one host"])


def test_results_hosts_without_shared_memory():
    """With SHM off every rank is a host of its own, and its sums those of such a job."""
    layout = [0, 1, 2]
    expected = ranks.verify("expect", text_of(layout)).splitlines()
    with ranks.hosts(2) as net:
        with ranks.Job(
            net, [0, 0, 1], "named", text_of(layout), "{folder}", settings={"SHM": 0}
        ) as job:
            job.end_well()
            for rank in range(3):
                assert job.out(rank).splitlines() == expected


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


def test_results_come_to_who_does_not_wait():
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
    for layout in LAYOUTS["2x2"], LAYOUTS["1+2+3"], [0, 0, 0, 0]:
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
