# SPDX-License-Identifier: Apache-2.0
"""Hosts with several addresses, of either family, some of which lead nowhere."""

import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import ranks  # noqa: E402
import tap  # noqa: E402

ip = ranks.netns.ip
LAYOUT = [0, 0, 1]
TEXT = "0,0,1"
DATA = 1000003


def assert_works(net, layout=LAYOUT, text=TEXT, store=None, **settings):
    expected = ranks.expected(text)
    with ranks.Job(
        net, layout, "in-order", text, "{folder}", settings=settings, store=store
    ) as job:
        job.end_well()
        for rank in range(len(layout)):
            assert job.out(rank).splitlines() == expected[rank], job.everything()


def give_second_address(net, number):
    """10.88.0.x, before the one that works."""
    inside = ("-n", net.names[number])
    ip(*inside, "addr", "del", f"{net.addresses[number]}/24", "dev", "eth0")
    ip(*inside, "addr", "del", f"{net.addresses6[number]}/64", "dev", "eth0")
    ip(*inside, "addr", "add", f"10.88.0.{number + 1}/32", "dev", "eth0")
    ip(*inside, "addr", "add", f"{net.addresses[number]}/24", "dev", "eth0")


def lead_nowhere(net, number, address):
    """Packets go to a machine that is not there, and no error comes: its hardware address is known,
    so that no unanswered question for it can end the wait."""
    inside = ("-n", net.names[number])
    ip(*inside, "neigh", "replace", "10.77.0.200", "lladdr", "02:00:00:00:00:99",
       "dev", "eth0", "nud", "permanent")  # fmt: skip
    ip(*inside, "route", "add", f"{address}/32", "via", "10.77.0.200")


def connect_directly(net):
    """A second link, eth1, between the hosts 0 and 1, with 10.99.0.x."""
    ip("-n", net.names[0], "link", "add", "name", "eth1", "type", "veth",
       "peer", "name", "eth1", "netns", net.names[1])  # fmt: skip
    for number in range(2):
        inside = ("-n", net.names[number])
        ip(*inside, "addr", "add", f"10.99.0.{number + 1}/24", "dev", "eth1")
        ip(*inside, "link", "set", "eth1", "up")


def test_addresses_ipv6_only():
    with ranks.hosts(2) as net:
        for number in range(2):
            ip("-n", net.names[number], "addr", "del", f"{net.addresses[number]}/24",
               "dev", "eth0")  # fmt: skip
        assert_works(net, store=f"tcp://[{net.addresses6[0]}]:{ranks.PORT}")


def test_addresses_one_of_two_families_is_dead():
    """The store is met over IPv6; IPv4 addresses are there, and lead nowhere."""
    with ranks.hosts(2) as net:
        for number in range(2):
            ip("-n", net.names[number], "route", "replace", "blackhole", "10.77.0.0/24")
        assert_works(net, store=f"tcp://[{net.addresses6[0]}]:{ranks.PORT}")


def test_addresses_blackholed_one_is_passed_over():
    for route in (["blackhole", "10.88.0.0/24"], ["unreachable", "10.88.0.0/24"], None):
        with ranks.hosts(2) as net:
            for number in range(2):
                give_second_address(net, number)
                if route:
                    ip("-n", net.names[number], "route", "add", *route)
            assert_works(net)


def test_addresses_silent_one_is_passed_over():
    with ranks.hosts(2) as net:
        for number in range(2):
            give_second_address(net, number)
            lead_nowhere(net, number, f"10.88.0.{2 - number}")
        assert_works(net)


def test_addresses_failure_says_what_was_tried_and_why():
    with ranks.hosts(2) as net:
        for number in range(2):
            give_second_address(net, number)
            ip("-n", net.names[number], "route", "add", "unreachable", "10.88.0.0/24")
        with ranks.Job(
            net, LAYOUT, "place", settings={"INTERFACES": "10.88.0.0/24", "START_TIMEOUT": "3s"}
        ) as job:
            assert set(job.end()) == {1}
            failures = job.failures()
        texts = [failure.text for failure in failures.values()]
        for text in texts:
            assert re.search(r"tried .*10\.88\.0\.[12]:\d+", text), texts
            assert "No route to host" in text, texts
            assert "cannot connect to rank" in text, texts


def test_addresses_store_is_found_at_one_of_several():
    """The first is silent, the second has no machine, the third is known to nobody."""
    with ranks.hosts(2) as net:
        for number in range(2):
            lead_nowhere(net, number, "10.88.0.9")
            ip("-n", net.names[number], "route", "add", "unreachable", "10.89.0.0/24")
        port = ranks.PORT
        dead = f"tcp://10.88.0.9:{port},tcp://10.89.0.9:{port},no..name:{port}"
        assert_works(net, store=f"{dead},{net.addresses[0]}:{port}")
        assert_works(net, store=f"{dead},[{net.addresses6[0]}]:{port}")
        with ranks.Job(net, LAYOUT, "place", store=dead, settings={"START_TIMEOUT": "2s"}) as job:
            assert set(job.end()) == {1}
            for failure in job.failures().values():
                assert f"10.88.0.9:{port}: no answer" in failure.text, failure
                assert f"10.89.0.9:{port}: no connection: No route to host" in failure.text, failure
                assert f"no..name:{port}: the host name" in failure.text, failure


def test_addresses_interfaces_selects():
    with ranks.hosts(2) as net:
        connect_directly(net)
        for spec, busy, quiet in (
            ("eth1", "eth1", "eth0"),
            ("10.77.0.0/16", "eth0", "eth1"),
            (f"{net.addresses6[0]}/64", "eth0", "eth1"),
        ):
            before = {name: net.bytes_received(1, name) for name in (busy, quiet)}
            with ranks.Job(
                net, LAYOUT, "sum", str(DATA), "3", settings={"INTERFACES": spec}
            ) as job:
                job.end_well()
            came = {name: net.bytes_received(1, name) - before[name] for name in before}
            assert came[busy] > 3 * 4 * DATA, (spec, came)
            assert came[quiet] < 100000, (spec, came)


def test_addresses_interfaces_that_match_nothing_are_told():
    with ranks.hosts(2) as net:
        with ranks.Job(
            net, LAYOUT, "place", settings={"INTERFACES": "eth7", "START_TIMEOUT": "5s"}
        ) as job:
            assert set(job.end()) == {1}
            for rank, failure in job.failures().items():
                assert "eth7" in failure.text, (rank, failure)
                assert "10.77.0." in failure.text, (rank, failure)


tap.run(dict(vars()))
