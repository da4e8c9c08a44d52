# SPDX-License-Identifier: Apache-2.0
"""The store that horonrun serves, and what ranks join with: ports, and a key that stays secret."""

import os
import pathlib
import re
import socket
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")


def ports_in_a_row(count):
    """@return sockets that hold @p count consecutive ports of the loopback"""
    for first in range(21000, 32000, 97):
        held = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return first, held
        except OSError:
            for one in held:
                one.close()
    raise AssertionError("no free ports")


def test_store_port_is_one_of_the_range():
    first, held = ports_in_a_row(4)
    for one in held[2:]:
        one.close()
    for words, env in (
        (("--port-range", f"{first}-{first + 2}"), {}),
        ((), {"HORON_PORT_RANGE": f"{first}-{first + 2}"}),
    ):
        status, out, err = jobs.run(
            "-np", "2", *words, "sh", "-c", "echo $HORON_STORE $HORON_PORT_RANGE", env=env
        )
        assert status == 0, err
        wanted = f"tcp://127.0.0.1:{first + 2} {first}-{first + 2}"  # the first two are taken
        assert [line.partition(":")[2] for line in out.splitlines()] == [wanted] * 2, out
    for one in held[:2]:
        one.close()


def test_store_without_a_free_port_is_told():
    first, held = ports_in_a_row(2)
    for one in held:
        one.listen()
    status, _, err = jobs.run("-np", "2", "--port-range", f"{first}-{first + 1}", "true")
    assert status == 1
    assert "HORON_PORT_RANGE" in err and f"{first}-{first + 1}" in err, err
    assert "in use" in err, err
    status, _, err = jobs.run("-np", "2", "--port-range", "9-8", "true")
    assert status == 1
    assert "HORON_PORT_RANGE=9-8 is not" in err, err


def test_key_is_on_no_command_line_and_in_no_log():
    """Not even at the level that tells most."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with jobs.Job("-np", "2", "--verbose", "--log-level", "trace", SUM_ONCE, "1000", "-1") as job:
        job.wait_for_output(rb"rank \d of 2", 2)
        keys = {
            found[1]
            for pid in job.pids()
            if (found := re.search(rb"\0HORON_JOB_KEY=([^\0]+)", jobs.environment_of(pid)))
        }
        assert len(keys) == 1, "the ranks have no key, or several"
        key = keys.pop()
        assert not [pid for pid in jobs.all_pids() if key in jobs.command_line(pid)]
        job.process.terminate()
        _, out, err = job.end()
    assert key.decode() not in out + err
    for rank in range(2):
        assert re.search(
            rf"rank {rank} .*debug: this is rank {rank} of 2, as horonrun says", err
        ), err
        assert re.search(rf"rank {rank} .*debug: reached the store .*the launcher serves", err), err


tap.run(dict(vars()))
