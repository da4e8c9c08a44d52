# SPDX-License-Identifier: Apache-2.0
"""The store that horonrun serves, and what ranks join with: ports, and a key that stays secret."""

import os
import pathlib
import re
import secrets
import socket
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
WITHOUT_END = ("-np", "2", "--start-timeout", "1h")


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


def check_key_is_nowhere(**env):
    """Not even at the level that tells most."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    words = ("-np", "2", "--verbose", "--log-level", "trace", SUM_ONCE, "1000", "-1")
    with jobs.Job(*words, env=env) as job:
        job.wait_for_output(rb"rank \d of 2", 2)
        keys = {
            pathlib.Path(f"/proc/{pid}/fd/{int(found[1])}").read_bytes()
            for pid in job.pids()
            if (found := re.search(rb"\0HORON_JOB_KEY_FILE=fd:(\d+)", jobs.environment_of(pid)))
        }
        assert len(keys) == 1, "the ranks have no key, or several"
        key = keys.pop()
        assert re.fullmatch(rb"[0-9a-f]{64}", key)
        assert not [pid for pid in jobs.all_pids() if key in jobs.command_line(pid)]
        assert not [pid for pid in jobs.all_pids() if key in jobs.environment_of(pid)]
        job.process.terminate()
        _, out, err = job.end()
    assert key.decode() not in out + err
    for rank in range(2):
        assert re.search(
            rf"rank {rank} .*debug: this is rank {rank} of 2, as horonrun says", err
        ), err
        assert re.search(rf"rank {rank} .*debug: reached the store .*the launcher serves", err), err
    return key.decode()


def test_key_is_on_no_command_line_in_no_environment_and_no_log():
    check_key_is_nowhere()
    given = secrets.token_hex(32)
    assert check_key_is_nowhere(HORON_JOB_KEY=given) == given


def test_key_of_the_user_is_taken_or_refused():
    key, other = "a key for this test alone", "another key for this test"
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(f"{other}\n")
        file.flush()
        for env, wanted in (
            ({"HORON_JOB_KEY": key}, key),
            ({"HORON_JOB_KEY_FILE": file.name}, other),
            ({"HORON_JOB_KEY": key, "HORON_JOB_KEY_FILE": file.name}, key),
        ):
            words = f"{jobs.SHOW_KEY} unset=${{HORON_JOB_KEY-unset}}"
            status, out, err = jobs.run("-np", "2", "--no-prefix", "sh", "-c", words, env=env)
            assert (status, err) == (0, ""), err
            assert out == f"key={wanted}. unset=unset\n" * 2, out
    # what a job's rank has been handed is not for a job that it starts
    status, out, _ = jobs.run(
        "-np", "1", "--no-prefix", "sh", "-c", jobs.SHOW_KEY, env={"HORON_JOB_KEY_FILE": "fd:77"}
    )
    assert status == 0
    assert re.fullmatch(r"key=[0-9a-f]{64}\.\n", out), out
    for env, wanted in (
        ({"HORON_JOB_KEY": "short"}, "HORON_JOB_KEY is too short to be safe"),
        ({"HORON_JOB_KEY_FILE": "/nowhere"}, "HORON_JOB_KEY_FILE=/nowhere cannot be read"),
    ):
        status, out, err = jobs.run("-np", "1", "echo", "ran", env=env)
        assert (status, out) == (1, ""), (env, out)
        assert wanted in err, err


CLOSER = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


def test_wrapper_that_closes_descriptors_is_named():
    """Python's subprocess does; a shell hands the key on."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    status, _, err = jobs.run("-np", "2", "sh", "-c", f"{SUM_ONCE} 1000 0; exit $?")
    assert status == 0, err
    status, _, err = jobs.run("-np", "2", sys.executable, "-c", CLOSER, SUM_ONCE, "1000", "0")
    assert status != 0
    assert re.search(
        r"HORON_JOB_KEY_FILE=fd:(\d+): descriptor \1 does not hold the job key", err
    ), err
    assert "a program between the two has closed it (Python's subprocess" in err, err


def test_program_that_a_rank_starts_does_not_wait_in_its_place():
    """It inherits the rank's variables; once it waited for ranks that have joined already."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    words = (*WITHOUT_END, SUM_ONCE, "1000", "1", f"{SUM_ONCE} 1000 1")
    status, _, err = jobs.run(*words)
    assert status == 1, err
    assert re.search(r"rank \d has joined already: process \d+, which started this program", err), (
        err
    )


STRANGER = """
import os, socket
host, port = os.environ["HORON_STORE"].removeprefix("tcp://").split(":")
for i in range(3):
    one = socket.create_connection((host, int(port)))
    one.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n" * 8)
    try:
        while one.recv(4096):
            pass
    except ConnectionResetError:
        pass
"""


def test_strangers_at_the_store_are_told_once_and_counted():
    status, _, err = jobs.run("-np", "1", sys.executable, "-c", STRANGER)
    assert status == 0, err
    told = [line for line in err.splitlines() if "the store refused" in line]
    assert len(told) == 2, err
    assert re.match(r"horonrun: warning: the store refused 127\.0\.0\.1\S*: ", told[0]), err
    assert told[1].endswith("the store refused 3 connections in all"), err


def assert_told_of_rank_1(status, err):
    assert status == 1, err
    assert re.search(r"rank 1( on \S+)? ended with status 0 without joining", err), err
    assert "never came" not in err, err


def come_late(ended, *words):
    """All ranks join, but for one, when that one has ended."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with tempfile.TemporaryDirectory() as folder:
        code = (
            f"if [ $HORON_RANK = {ended} ]; then "
            'echo $$ > "$1/new"; mv "$1/new" "$1/it"; exit 0; fi; '
            'until [ -e "$1/it" ]; do :; done; while kill -0 $(cat "$1/it") 2> /dev/null; do :; '
            'done; exec "$2" 1'
        )
        return jobs.run(*WITHOUT_END, *words, "sh", "-c", code, "sh", folder, SUM_ONCE)


def test_rank_that_has_ended_is_told_to_ranks_that_come():
    status, _, err = come_late(1)
    assert_told_of_rank_1(status, err)


def test_rank_that_has_ended_is_told_to_a_selection():
    """Whose numbers are its own: there rank 1 of the launch is rank 1, and rank 0 is not in it."""
    status, _, err = come_late(0, "--ranks", "1,0")
    assert_told_of_rank_1(status, err)


def test_rank_that_ends_is_told_to_ranks_that_wait_for_it():
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with tempfile.TemporaryDirectory() as folder:
        end = pathlib.Path(folder, "end")
        os.mkfifo(end)  # what rank 1 waits for: that we open it
        code = '[ $HORON_RANK = 0 ] && exec "$2" 1; : < "$1"'
        words = (*WITHOUT_END, "--log-level", "debug", "sh", "-c", code, "sh", end, SUM_ONCE)
        with jobs.Job(*words) as job:
            before = []
            while not before or b"reached the store" not in before[-1]:
                before.append(job.process.stderr.readline())
                assert before[-1], before
            end.write_bytes(b"")
            status, _, err = job.end()
            job.assert_nothing_left()
    assert_told_of_rank_1(status, err)


def test_rank_that_ends_after_it_left_is_no_failure():
    """Also of several jobs in a row, and whatever it does without horon."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    # rank 0 ends last: it reads to the end of what each of the others has open until it ends
    code = (
        '"$1" 1 && "$1" 2 || exit; [ $HORON_RANK = 0 ] || { exec 3> "$2/$HORON_RANK"; exit 0; }; '
        'cat "$2/1" "$2/2"'
    )
    with tempfile.TemporaryDirectory() as folder:
        for rank in (1, 2):
            os.mkfifo(pathlib.Path(folder, str(rank)))
        status, out, err = jobs.run("-np", "3", "sh", "-c", code, "sh", SUM_ONCE, folder)
    assert (status, out.count("of 3, local")) == (0, 6), err


def test_rank_that_ended_well_is_named_if_others_missed_it():
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with tempfile.TemporaryDirectory() as folder:
        code = (
            'if [ $HORON_RANK = 1 ]; then echo $$ > "$1"; exec "$2" 1 3; fi; "$2" 1 -1; '
            'while kill -0 $(cat "$1") 2> /dev/null; do :; done; exit 7'
        )
        status, _, err = jobs.run("-np", "2", "sh", "-c", code, "sh", f"{folder}/it", SUM_ONCE)
    assert status == 7, err
    told = re.findall(
        r"^horonrun: rank 1 on \S+, which it names, had ended with status 0", err, re.M
    )
    assert len(told) == 1, err


tap.run(dict(vars()))
