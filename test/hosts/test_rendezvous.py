# SPDX-License-Identifier: Apache-2.0
"""Ranks on several hosts as horovodrun starts them, whose server is on a host without ranks."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]

import jobs  # noqa: E402
import ranks  # noqa: E402
import rendezvous  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
HOSTS = [("node0", 2), ("node1", 1)]


@contextlib.contextmanager
def serve(net, number):
    """@return the port of a rendezvous server on that host"""
    words = [*net.inside(net.names[number]), sys.executable, rendezvous.__file__]
    env = {**jobs.CLEAN, "PYTHONPATH": str(HERE.parent / "drift")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as server:
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


@contextlib.contextmanager
def started(net, port, **env):
    """The ranks of HOSTS, node N in namespace N; the server is on host 2."""
    tap.need(SUM_ONCE, "the rank program is not built")
    env = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": net.addresses[2],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        **env,
    }
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                jobs.Job(
                    "1009",
                    program=SUM_ONCE,
                    env={**env, **rendezvous.place(HOSTS, rank)},
                    prefix=net.inside(net.names[0 if rank < 2 else 1]),
                )
            )
            for rank in range(3)
        ]


def test_rendezvous_on_a_third_host_leads_ranks_together():
    with ranks.hosts(3) as net:
        for env in {}, {"HORON_INTERFACES": "eth0", "HORON_JOB_KEY": ranks.KEY}:
            with serve(net, 2) as port, started(net, port, **env) as all_ranks:
                ended = [rank.end() for rank in all_ranks]
            assert [status for status, _, _ in ended] == [0, 0, 0], ended
            for rank, (_, out, err) in enumerate(ended):
                assert re.match(rf"rank {rank} of 3, local \d of {(2, 2, 1)[rank]}, hosts 2", out)
                assert ("authenticates nobody" in err) == (not env and rank == 0), ended


def test_rendezvous_out_of_reach_is_named():
    with ranks.hosts(3) as net, serve(net, 2) as port:
        inside = ("-n", net.names[1])
        ranks.netns.ip(*inside, "route", "add", "unreachable", f"{net.addresses[2]}/32")
        with started(net, port, HORON_START_TIMEOUT="2s") as all_ranks:
            ended = [rank.end() for rank in all_ranks]
    assert [status for status, _, _ in ended] == [1, 1, 1], ended
    assert f"rendezvous server at {net.addresses[2]}:{port}" in ended[2][2], ended
    assert "rank 2 never came" in ended[0][2], ended


tap.run(dict(vars()))
