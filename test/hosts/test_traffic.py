# SPDX-License-Identifier: Apache-2.0
"""
How many bytes cross the link of each host, verb by verb, beside the least that has to cross: what
its ranks need of other hosts, and what others need of them. A rank's vector, or what goes to one
rank, counts as one. As messages each rank sends its vector to the next one.

Nothing crosses that need not, but for frames, headers and negotiation; and what others pass on or
add up: a broadcast's vector, and the ranges of a reduce among more than two hosts. What TCP itself
sends twice, on a machine too busy to acknowledge in time, is not horon's doing and does not count.
"""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import ranks  # noqa: E402
import tap  # noqa: E402

COUNT, ROUNDS = 700001, 4
ONE = 4 * COUNT * ROUNDS  # bytes
HEADERS, NEGOTIATION = 1.02, 80000
ANSWERS = 0.005  # acknowledgements, and credit, of what goes the other way
ROOTED = ("broadcast", "gather", "scatter", "reduce")
LAYOUTS = [0, 0, 1, 1], [0, 1, 1, 2, 2, 2], [0, 1, 2, 3]


def least(verb, layout, host, root):
    """@return vectors that must come to a host, and leave it. One by which others pass on a
    broadcast is none that must."""
    size, hosts = len(layout), max(layout) + 1
    here, has_root = layout.count(host), layout[root] == host
    each = here * (size - here)
    ends = sum(layout[rank] == host != layout[(rank + 1) % size] for rank in range(size))
    return {
        # each host adds its share of the others' vectors, and gives that to all
        "allreduce": (2 - 2 / hosts, 2 - 2 / hosts),
        "broadcast": (0, 1) if has_root else (1, 0),
        "allgather": (size - here, here),
        "alltoall": (each, each),
        "gather": (size - here, 0) if has_root else (0, here),
        "scatter": (0, size - here) if has_root else (here, 0),
        # of each other host one sum for each rank here
        "reducescatter": (here * (hosts - 1), size - here),
        "reduce": (1, 0) if has_root else (0, 1),
        "messages": (ends, ends),  # where it ends, it also begins
    }[verb]


def most(verb, layout, host, root):
    """@return what horon moves"""
    hosts = max(layout) + 1
    came, went = least(verb, layout, host, root)
    if verb == "reduce":  # the other hosts add it up, the sum of root's own among them
        return (1, 1) if hosts > 2 else (came, went)
    if verb == "broadcast":  # from one host to the next
        return came, int((host - layout[root]) % hosts < hosts - 1)
    if verb == "allgather":  # each vector to each other host
        return came, layout.count(host) * (hosts - 1)
    return came, went


def counted(net, hosts):
    """@return for each host what came, what left, and how much of each TCP may have sent twice"""
    again = [net.bytes_sent_again(host) for host in hosts]
    return [
        (net.bytes_received(host), net.bytes_sent(host), sum(again) - again[host], again[host])
        for host in hosts
    ]


def count(net, layout, verb, root):
    """@return what came to each host, and left it, and how much of each TCP may have sent twice,
    in vectors"""
    hosts = range(max(layout) + 1)
    before = counted(net, hosts)
    with ranks.Job(net, layout, "move", verb, str(COUNT), str(ROUNDS), str(root)) as job:
        job.end_well()
    after = counted(net, hosts)
    return [[(after[host][i] - before[host][i]) / ONE for i in range(4)] for host in hosts]


def tell(found, verb, layout, root):
    needed = [least(verb, layout, host, root) for host in range(max(layout) + 1)]
    both = max(sum(host[way] for host in needed) for way in range(2))
    return f"{sum(host[1] for host in found):.2f} sent, of which {both:.2f} must be"


def check(verb):
    for layout in LAYOUTS:
        with ranks.hosts(max(layout) + 1) as net:
            for root in (0, len(layout) - 1) if verb in ROOTED else (0,):
                found = count(net, layout, verb, root)
                for host in range(max(layout) + 1):
                    lower, upper = least(verb, layout, host, root), most(verb, layout, host, root)
                    for way, name in enumerate(("received", "sent")):
                        text = f"{layout}, root {root}: host {host} {name}: {found}"
                        limit = upper[way] * HEADERS + upper[1 - way] * ANSWERS
                        limit += NEGOTIATION / ONE + found[host][2 + way]
                        assert found[host][way] >= lower[way], text
                        assert found[host][way] < limit, text
                print(f"# {verb} {layout} root {root}: {tell(found, verb, layout, root)}")


def test_traffic_of_an_allreduce_is_what_it_needs():
    check("allreduce")


def test_traffic_of_a_broadcast_is_what_it_needs():
    check("broadcast")


def test_traffic_of_an_allgather_is_what_it_needs():
    check("allgather")


def test_traffic_of_an_alltoall_is_what_it_needs():
    check("alltoall")


def test_traffic_of_a_gather_is_what_it_needs():
    check("gather")


def test_traffic_of_a_scatter_is_what_it_needs():
    check("scatter")


def test_traffic_of_a_reducescatter_is_what_it_needs():
    check("reducescatter")


def test_traffic_of_a_reduce_is_what_it_needs():
    check("reduce")


def test_traffic_of_messages_is_what_they_need():
    check("messages")


tap.run(dict(vars()))
