# SPDX-License-Identifier: Apache-2.0
"""Ranks of two hosts that joining did not link are linked when one of them, or both, ask."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import ranks  # noqa: E402
import tap  # noqa: E402

LATER = os.environ.get("LATER", "later")
ranks.VERIFY = LATER  # what Job starts
LAYOUT = [0, 0, 1, 1]  # 0-2 and 1-3 are linked; 0-3 and 1-2 are not
LOG = {"LOG_LEVEL": "warn"}


def test_later_two_ranks_link_and_exchange():
    with ranks.hosts(2) as net:
        for pair in [(0, 3), (3, 0), (1, -1 - 2), (2, -1 - 1)]:  # both ask, or the first
            with ranks.Job(net, LAYOUT, "meet", *map(str, pair), settings=LOG) as job:
                job.end_well()
                said = [rank for rank in range(4) if "exchanged" in job.out(rank)]
                assert len(said) == 2, job.everything()
                assert not any(job.err(rank) for rank in range(4)), job.everything()


@contextlib.contextmanager
def connecting():
    """A job whose rank 0 waits for a link to rank 3, which is stopped. @return its hosts, and it"""
    settings = {"PEER_TIMEOUT": "60s"}
    with (
        ranks.hosts(2) as net,
        ranks.Job(net, LAYOUT, "gone", "0", "3", settings=settings) as job,
    ):
        for rank in (0, 3):
            job.wait_for_stop(rank)
        job.processes[0].send_signal(signal.SIGCONT)
        job.wait_for_output("asked", ranks=[0])
        yield net, job


def test_later_ranks_without_a_link_make_a_team():
    with ranks.hosts(2) as net:
        for pair in [(0, 3), (2, 1), (3, 2), (0, 2)]:
            with ranks.Job(net, LAYOUT, "team", *map(str, pair), settings=LOG) as job:
                job.end_well()
                for rank in range(4):
                    times = 2 if rank in pair else 1
                    assert job.out(rank).count("summed") == times, job.everything()
                assert not any(job.err(rank) for rank in range(4)), job.everything()


def test_later_ranks_without_a_link_are_in_process_sets():
    with ranks.hosts(2) as net:
        for pair in [(0, 3), (2, 1), (0, 1)]:
            with ranks.Job(net, LAYOUT, "set", *map(str, pair), settings=LOG) as job:
                job.end_well()
                for rank in range(4):
                    times = (rank in pair) + (rank > 0)
                    assert job.out(rank).count("summed") == times, job.everything()
                assert not any(job.err(rank) for rank in range(4)), job.everything()


def test_later_a_peer_that_dies_while_connecting_is_named():
    with connecting() as (_, job):
        job.processes[3].kill()
        job.end(ranks=[0, 1, 2])
        told = job.failures([0])[0]
        assert "rank 3 (" in told.text, told


def listening_ports(net, host):
    """Ports at which processes of a host listen."""
    done = subprocess.run(
        [*net.inside(net.names[host]), "cat", "/proc/net/tcp"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    rows = [row.split() for row in done.stdout.splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"}


def test_later_strangers_are_turned_away_and_ranks_go_on():
    with connecting() as (net, job):
        ports = listening_ports(net, 0) - {ranks.PORT}  # that of the store is closed any moment
        assert ports, "ranks do not listen"
        program = (
            "import socket, sys\n"
            "for port in map(int, sys.argv[2:]):\n"
            "    guest = socket.create_connection((sys.argv[1], port), 60)\n"
            "    try:\n"
            "        guest.sendall(b'x' * 4096)\n"
            "        while guest.recv(4096): pass\n"
            "    except (BrokenPipeError, ConnectionResetError): pass\n"
        )
        # ends only once each has hung up
        done = subprocess.run(
            [*net.inside(net.names[1]), sys.executable, "-c", program, net.addresses[0],
             *map(str, ports)],
            check=False, capture_output=True, text=True, timeout=ranks.DEADLINE,
        )  # fmt: skip
        assert not done.returncode, f"ports {ports}: {done.stderr}{job.everything()}"
        assert all(job.processes[rank].poll() is None for rank in (0, 1, 2)), job.everything()


tap.run(dict(vars()))
