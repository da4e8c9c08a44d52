# SPDX-License-Identifier: Apache-2.0
"""Other hosts as horonrun reaches them, with a program in place of ssh; a real sshd: test/hosts."""

import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
ELSEWHERE = jobs.ELSEWHERE


def test_ranks_run_on_both_hosts():
    with jobs.ssh_that(jobs.RUN_HERE) as (words, _):
        status, out, err = jobs.run(
            *words, "-H", f"localhost:1,{ELSEWHERE}:2", "sh", "-c",
            "echo $HORON_RANK $HORON_SIZE $HORON_LOCAL_RANK $HORON_LOCAL_SIZE as $HOROVOD_RANK"
            " $HOROVOD_SIZE $HOROVOD_LOCAL_RANK $HOROVOD_LOCAL_SIZE,"
            " $HOROVOD_CROSS_RANK of $HOROVOD_CROSS_SIZE",
        )  # fmt: skip
    assert status == 0, err
    assert sorted(out.splitlines()) == [
        "[0]<stdout>:0 3 0 1 as 0 3 0 1, 0 of 2",
        "[1]<stdout>:1 3 0 2 as 1 3 0 2, 1 of 2",
        "[2]<stdout>:2 3 1 2 as 2 3 1 2, 0 of 1",
    ]


def test_variables_for_other_hosts_are_told_by_name():
    with jobs.ssh_that(jobs.RUN_HERE) as (words, _):
        status, _, err = jobs.run(
            *words, "--verbose", "-x", "TEST_SECRET=unseen", "-H", ELSEWHERE, "true",
            env={"TEST_OTHER": "unseen", "SSH_AUTH_SOCK": "/unseen"},
        )  # fmt: skip
    assert status == 0, err
    told = re.findall(r"^horonrun: variables for other hosts:(.*)$", err, re.M)
    names = set(" ".join(told).split())
    assert {"TEST_SECRET", "TEST_OTHER", "PATH"} < names, err
    assert not names & {"SSH_AUTH_SOCK", "HOME"}, err
    assert "unseen" not in err


def test_what_is_no_horonrun_is_told_with_its_path():
    with jobs.ssh_that(jobs.RUN_HERE) as (words, _):
        status, _, err = jobs.run(*words, "-H", ELSEWHERE, "--remote-horonrun", "/bin/true", "true")
    assert status == 1
    assert (
        f"host {ELSEWHERE} cannot be used: ssh ended with status 0 before an agent answered" in err
    )
    assert "; horonrun was tried there as /bin/true (--remote-horonrun)\n" in err, err


def test_what_a_shell_printed_instead_is_told():
    with jobs.ssh_that("echo Welcome; printf 'no\\033shell for you\\n\\n'") as (words, _):
        status, _, err = jobs.run(*words, "-H", ELSEWHERE, "true")
    assert status == 1
    assert "before an agent answered: it printed 'no?shell for you'; horonrun was tried" in err, err
    assert f"there as {pathlib.Path(jobs.HORONRUN).resolve()} (" in err, err
    with jobs.ssh_that("yes no agent | head -c 70000") as (words, _):
        status, _, err = jobs.run(*words, "-H", ELSEWHERE, "true")
    assert status == 1
    assert "it printed much, but is no horonrun agent, last '" in err, err


def test_a_failure_of_ssh_itself_names_no_path():
    with jobs.ssh_that("echo 'not today' >&2; exit 255") as (words, _):
        status, _, err = jobs.run(*words, "-H", ELSEWHERE, "true")
    assert status == 1
    assert f"horonrun: {ELSEWHERE}: not today\n" in err, err
    assert "ssh ended with status 255 before an agent answered\n" in err, err


def test_no_rank_starts_before_all_hosts_are_there():
    with jobs.ssh_that(": < $folder/go; exit 255") as (words, folder):
        os.mkfifo(folder / "go")  # what ssh waits for: that we open it
        places = f"localhost:2,{ELSEWHERE}:1"
        with jobs.Job(*words, "--verbose", "-H", places, "echo", "started") as job:
            line = b""
            while b"agent on localhost" not in line:
                line = job.process.stderr.readline()
                assert line
            (folder / "go").write_bytes(b"")
            status, out, err = job.end()
            job.assert_nothing_left()
    assert (status, out) == (1, ""), err
    assert f"host {ELSEWHERE} cannot be used" in err


# An agent that speaks to the terminal once it knows what to run and the rank here is about to join.
RUDE_AGENT = """
import struct, sys
def send(kind, body):
    sys.stdout.buffer.write(struct.pack("<IB", len(body), kind) + body)
    sys.stdout.buffer.flush()
def text(what):
    return bytes([len(what)]) + what
sys.stdout.buffer.write(b"\\nhoronrun agent 1\\n")
send(16, text(sys.argv[1].encode()) + text(b"elsewhere") + text(b""))
size, kind = struct.unpack("<IB", sys.stdin.buffer.read(5))
assert kind == 1
sys.stdin.buffer.read(size)
open(sys.argv[2]).read()
send(20, struct.pack("<I", 1) + text(b"a\\033]0;evil\\007b"))
sys.stdin.buffer.read(5)
"""


def test_what_an_agent_says_does_not_speak_to_the_terminal_of_ranks():
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    version = jobs.run("--version")[1].split()[-1]
    agent = f"exec {sys.executable} -c '{RUDE_AGENT}' {version} $folder/ready"
    with jobs.ssh_that(agent) as (words, folder):
        os.mkfifo(folder / "ready")  # the agent waits for the rank, then deaf to TERM
        status, _, err = jobs.run(
            *words, "-H", f"localhost:1,{ELSEWHERE}:1",
            "sh", "-c", f"trap '' TERM; : > {folder}/ready; exec {SUM_ONCE} 1000",
        )  # fmt: skip
    assert status == 1, err
    told = [line for line in err.splitlines() if line.startswith("[0]<stderr>:join: ")]
    assert len(told) == 1 and "a?]0;evil?b" in told[0], err
    assert "\x1b" not in err and "\x07" not in err, err


tap.run(dict(vars()))
