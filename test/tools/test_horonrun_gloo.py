# SPDX-License-Identifier: Apache-2.0
"""Horovod's own workers under horonrun --gloo: real ones where they are installed, and what asks as
they do; and what else may come to the server that they find each other at."""

import importlib.util
import os
import pathlib
import re
import signal
import socket
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
WORKER = [sys.executable, "-S", "-E", str(HERE / "horovod_worker.py")]
ADDRESS_BYTES = 136  # as Gloo's ranks publish one
SHOW = "env | grep -E '^(HOROVOD|NCCL)_'"
# Says where its server is, and stays.
STAY = ["sh", "-c", "echo at=$HOROVOD_GLOO_RENDEZVOUS_PORT.; exec tail -f /dev/null"]


def requests_of(scope, rank, size):
    """In the order of the contract."""
    yield f"PUT /{scope}/rank_{rank}"
    yield from (f"GET /{scope}/rank_{other}" for other in range(rank))
    yield f"PUT /{scope}/{rank}"
    yield from (f"GET /{scope}/{other}" for other in range(size) if other != rank)
    yield f"DELETE /{scope}/{rank}"


def lines_of(out, rank):
    return [line.split(":", 1)[1] for line in out.splitlines() if line.startswith(f"[{rank}]")]


def test_workers_of_one_host_meet_twice():
    status, out, err = jobs.run("-np", "3", "--gloo", *WORKER, "2")
    assert status == 0, (out, err)
    for rank in range(3):
        golden = [
            *requests_of("global", rank, 3),
            *requests_of("local_localhost", rank, 3),
            *requests_of(f"cross_{rank}", 0, 1),
        ]
        assert lines_of(out, rank) == 2 * golden, (rank, out)
    assert err.count("Gloo authenticates nobody") == 1, err


def test_workers_of_two_hosts_meet():
    with jobs.ssh_that(jobs.RUN_HERE) as (words, _):
        status, out, err = jobs.run(
            *words, "-H", "localhost:1,node7:2", "--gloo", "--network-interface", "lo", *WORKER, "1"
        )
    assert status == 0, (out, err)
    places = [("localhost", 0, 1, 0, 2), ("node7", 0, 2, 1, 2), ("node7", 1, 2, 0, 1)]
    for rank, (host, local, local_size, cross, cross_size) in enumerate(places):
        golden = [
            *requests_of("global", rank, 3),
            *requests_of(f"local_{host}", local, local_size),
            *requests_of(f"cross_{local}", cross, cross_size),
        ]
        assert lines_of(out, rank) == golden, (rank, out)
    assert "from other hosts too" in err, err


def variables(*words, **env):
    """@return those of rank 0"""
    status, out, err = jobs.run(*words, "sh", "-c", SHOW, env=env)
    assert status == 0, (out, err)
    return dict(line.split("=", 1) for line in lines_of(out, 0)), err


def test_variables_are_those_of_horovodrun():
    told, _ = variables("-np", "2", "--gloo", HOROVOD_HOSTNAME="nonsense")
    assert told.pop("HOROVOD_GLOO_RENDEZVOUS_PORT").isdigit(), told
    assert told == {
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_RANK": "0",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }, told


def test_interface_that_the_user_has_set_stays():
    told, _ = variables("-np", "1", "--gloo", HOROVOD_GLOO_IFACE="eth7")
    assert told["HOROVOD_GLOO_IFACE"] == "eth7", told


def test_timeout_is_the_one_given():
    told, _ = variables("-np", "1", "--gloo", "--gloo-timeout-seconds", "77")
    assert told["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "77", told


def test_interface_on_several_hosts_is_the_chosen_one_or_told_to_be_missing():
    with jobs.ssh_that(jobs.RUN_HERE) as (words, _):
        words = (*words, "-H", "localhost:1,node7:1", "--gloo")
        told, err = variables(*words)
        assert "HOROVOD_GLOO_IFACE" not in told, told
        assert "--network-interface NAME" in err, err
        told, err = variables(*words, "--network-interface", "lo")
        assert told["HOROVOD_GLOO_IFACE"] == "lo", told
        assert "--network-interface NAME" not in err, err


def test_without_gloo_there_is_no_server():
    told, err = variables("-np", "1")
    assert not [name for name in told if "GLOO" in name or "CONTROLLER" in name], told
    assert "Gloo" not in err, err


def test_horon_ranks_are_as_ever():
    tap.need(SUM_ONCE, "sum_once is not built")
    status, out, err = jobs.run("-np", "2", "--gloo", SUM_ONCE, "1009")
    assert status == 0, (out, err)
    assert "not heeded" not in err and "no job key" not in err, err


GLOO_STORE = "http://$HOROVOD_GLOO_RENDEZVOUS_ADDR:$HOROVOD_GLOO_RENDEZVOUS_PORT/x"
# What a rank has left in the store: the bytes of its addresses, and the name of its host.
PUBLISHED = """
import http.client, os
place = (os.environ["HOROVOD_GLOO_RENDEZVOUS_" + name] for name in ("ADDR", "PORT"))
server = http.client.HTTPConnection(*place, timeout=30)
for key in "%s", "rank_%s":
    server.request("GET", "/x/" + key % os.environ["HOROVOD_RANK"])
    answer = server.getresponse()
    value = answer.read()
    print("published", answer.status, value.decode() if "_" in key else len(value), flush=True)
    server.close()
"""


def test_horon_ranks_meet_in_the_store_of_horovod_as_its_workers_do():
    """In Gloo's era 1: an address for each other rank, under the rank; and the host, under another
    key, which no other era has."""
    tap.need(SUM_ONCE, "sum_once is not built")
    script = f'HORON_GLOO_STORE={GLOO_STORE} "$0" 1009 && exec "$@"'
    command = ("sh", "-c", script, SUM_ONCE, *jobs.python(PUBLISHED))
    status, out, err = jobs.run("-np", "3", "--gloo", *command)
    assert status == 0, (out, err)
    for rank in range(3):
        golden = [
            f"rank {rank} of 3, local 0 of 1, hosts 3",
            f"published 200 {2 * ADDRESS_BYTES}",
            f"published 200 {socket.gethostname()}",
        ]
        assert [line.strip() for line in lines_of(out, rank)] == golden, (rank, out, err)


def test_horon_ranks_meet_once_in_a_scope_and_are_told_so():
    """Workers of Horovod say there when they have met, and may meet again."""
    tap.need(SUM_ONCE, "sum_once is not built")
    for second in "xy":
        stores = [GLOO_STORE, GLOO_STORE.removesuffix("x") + second]
        script = " && ".join(f'HORON_GLOO_STORE={store} "$0" 1009' for store in stores)
        status, out, err = jobs.run("-np", "2", "--gloo", "sh", "-c", script, SUM_ONCE)
        assert (status == 0) == (second == "y"), (second, out, err)
        assert bool(re.search("has a rank [01] already", err)) == (second == "x"), (out, err)


def test_a_store_that_ranks_alone_know_makes_gloo_a_backend():
    """Which horonrun cannot know before it starts them."""
    tap.need(SUM_ONCE, "sum_once is not built")
    script = f'HORON_GLOO_STORE={GLOO_STORE} exec "$0" 1009'
    command = ("--gloo", "sh", "-c", script, SUM_ONCE)
    status, out, err = jobs.run("-np", "2", *command, env={"HORON_BACKEND": "gloo"})
    assert status == 0 and len(lines_of(out, 0)) == len(lines_of(out, 1)) == 1, (out, err)


# ---- What else may come --------------------------------------------------------------------------


def say(port, text):
    """@return what is answered until the server hangs up"""
    with socket.create_connection(("127.0.0.1", port), jobs.DEADLINE) as connection:
        connection.sendall(text)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer.split(b"\r\n", 1)[0].decode()


def staying(*words):
    return jobs.Job("-np", "1", "--gloo", *words, *STAY)


def port_of(job):
    return int(job.wait_for_output(rb"at=(\d+)[.]")[0])


def interrupt(job):
    job.process.send_signal(signal.SIGINT)
    status, _, err = job.end()
    assert status == 128 + signal.SIGINT, err
    job.assert_nothing_left()


def test_nonsense_is_refused_and_the_job_goes_on():
    with staying() as job:
        port = port_of(job)
        assert say(port, b"\x16\x03\x01\x02\x00\x01").startswith("HTTP/1.1 400")
        assert say(port, b"GET /a/b/c HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 400")
        assert say(port, b"BREW /a/b HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 405")
        huge = b"PUT /a/b HTTP/1.1\r\nContent-Length: 1099511627776\r\n\r\n"
        assert say(port, huge).startswith("HTTP/1.1 413")
        assert say(port, b"x" * 8192).startswith("HTTP/1.1 400")
        put = b"PUT /a/b HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"
        assert say(port, put).startswith("HTTP/1.1 200")
        interrupt(job)


def test_idle_connections_keep_nobody_out():
    """There are 66 at most in a job of one rank: the oldest leaves for the newest."""
    with staying() as job:
        port = port_of(job)
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(66)]
        idle[0].sendall(b"GET /half/a")
        assert say(port, b"GET /a/b HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 404")
        idle[0].settimeout(jobs.DEADLINE)
        try:
            assert idle[0].recv(1) == b""
        except ConnectionResetError:
            pass
        for connection in idle:
            connection.close()
        interrupt(job)


def test_connection_that_goes_in_mid_request_is_forgotten():
    with staying() as job:
        port = port_of(job)
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"PUT /a/b HTTP/1.1\r\nContent-Length: 4000\r\n\r\nhalf")
        assert say(port, b"GET /a/b HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 404")
        interrupt(job)


def test_server_listens_where_it_is_needed():
    with staying() as job:
        port = port_of(job)
        listening = pathlib.Path("/proc/net/tcp").read_text()
        at = re.findall(rf"([0-9A-F]{{8}}):{port:04X} 00000000:0000 0A", listening)
        assert at == ["0100007F"], at  # the loopback
        interrupt(job)


def test_worker_that_dies_ends_the_job():
    script = f"[ $HOROVOD_RANK = 1 ] && exit 7; exec {' '.join(WORKER)} 1"
    status, _, err = jobs.run("-np", "3", "--gloo", "sh", "-c", script)
    assert status == 7, err
    assert "rank 1" in err, err


# ---- The real one --------------------------------------------------------------------------------

REAL = """
import horovod.torch as hvd, torch
hvd.init()
size = hvd.size()
total = hvd.allreduce(torch.full((1009,), float(hvd.rank() + 1)), op=hvd.Sum)
assert total.eq(size * (size + 1) / 2).all(), total
places = hvd.allgather(torch.tensor([[hvd.rank(), hvd.local_rank(), hvd.cross_rank()]]))
print("places", places.tolist(), flush=True)
hvd.shutdown()
"""


def test_real_workers_of_horovod_run():
    horovod, torch = map(importlib.util.find_spec, ("horovod", "torch"))
    there = horovod and torch and list(pathlib.Path(horovod.origin).parent.glob("torch/mpi_lib*"))
    tap.need(there, "Horovod with PyTorch is not installed")
    command = ("--gloo", "--network-interface", "lo", sys.executable, "-c", REAL)
    status, out, err = jobs.run("-np", "2", *command)
    assert status == 0, (out, err)
    assert out.count("places [[0, 0, 0], [1, 1, 0]]") == 2, out
    with jobs.ssh_that(jobs.RUN_HERE) as (words, _):
        status, out, err = jobs.run(*words, "-H", "localhost:2,node7:1", *command)
    assert status == 0, (out, err)
    assert out.count("places [[0, 0, 0], [1, 1, 0], [2, 0, 1]]") == 3, out


tap.run(dict(vars()))
