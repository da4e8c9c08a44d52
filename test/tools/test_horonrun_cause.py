# SPDX-License-Identifier: Apache-2.0
"""Which rank horonrun blames: what a rank that fails tells as data decides, not what it prints."""

import os
import pathlib
import re
import signal
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")

# For the ranks' shells. A rank may be of the job (sum_once, until another leaves or for some
# rounds), may leave a number by which the others see its end, and waits for another's end.
ROLES = """
folder=$1
note() { echo $$ > "$folder/new$1"; mv "$folder/new$1" "$folder/$1"; }
ended() { until [ -e "$folder/$1" ]; do :; done
          while kill -0 $(cat "$folder/$1") 2> /dev/null; do :; done; }
sums() { %s 1 "$@"; }
case $HORON_RANK in
"""


def play(roles, size, *words, env=None):
    """@return (status, stderr, the lines of horonrun's own)"""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    with tempfile.TemporaryDirectory() as folder:
        code = f"{ROLES % SUM_ONCE} {roles} esac"
        status, _, err = jobs.run(
            *(words or ("-np", str(size))), "sh", "-c", code, "sh", folder, env=env
        )
    return status, err, [line for line in err.splitlines() if line.startswith("horonrun: ")]


# Rank 1 leaves the job, and fails once rank 0 has, whose sum could not end without it.
VICTIM_AND_CAUSE = "1) sums 3; ended 0; echo boom >&2; exit 5;;"


def test_the_cause_is_told_rather_than_its_victim():
    status, err, own = play(f"0) note 0; sums -1; exit 1;; {VICTIM_AND_CAUSE}", 2)
    assert status == 5, err
    assert re.match(r"horonrun: rank 1 on \S+ \(process \d+\) exited with status 5;", own[0]), err
    assert own[1] == "horonrun:   | boom"
    assert re.fullmatch(
        r"horonrun: rank 0 on \S+ exited with status 1, too: sum: .* rank 1 \(.*\) has shut .*",
        own[2],
    ), err
    assert len(own) == 3, err


def test_what_horon_says_in_passing_is_not_told_as_the_reason():
    """Such as a warning on the way out; without another line there is none to tell."""
    told = (
        "echo 'horon rank 0 (vm) warn: it stays' >&2; echo 'horon info: it goes' >&2; "
        "echo 'horon rank 0 (vm) debug: it went' >&2; exit 1;;"
    )
    for sums, reason in (("sums -1;", r": sum: .* rank 1 \(.*"), ("sums -1 2> /dev/null;", "")):
        status, err, own = play(f"0) note 0; {sums} {told} {VICTIM_AND_CAUSE}", 2)
        assert status == 5, err
        assert re.fullmatch(
            rf"horonrun: rank 0 on \S+ exited with status 1, too{reason}", own[2]
        ), err
    last = "echo 'horon rank 0 (vm) error: lost' >&2; exit 1;;"
    status, err, own = play(f"0) note 0; sums -1; {last} {VICTIM_AND_CAUSE}", 2)
    assert own[2].endswith(" too: horon rank 0 (vm) error: lost"), err


def test_the_cause_is_found_though_its_victims_print_nothing():
    """Nor does it mislead that one has printed as horon does, of a rank that lives on."""
    roles = (
        "0) echo 'rank 2 (vm) is gone' >&2; exec 2> /dev/null; note 0; sums -1; exit 1;;"
        f"{VICTIM_AND_CAUSE} 2) exec 2>&-; sums -1; tail -f /dev/null;;"
    )
    status, err, own = play(roles, 3)
    assert status == 5, err
    assert own[0].startswith("horonrun: rank 1 on "), err
    assert re.fullmatch(
        r"horonrun: rank 0 on \S+ exited with status 1, too: rank 2 \(vm\) .*", own[2]
    )
    assert own[3] == "horonrun: ending the other 1 rank"


def test_a_rank_that_prints_another_ranks_name_blames_nobody():
    """Such as a program that knows nothing of horon."""
    roles = "0) note 0; echo 'failed: rank 1 (vm)' >&2; exit 3;; 1) ended 0; exit 5;;"
    status, err, own = play(roles, 2)
    assert status == 3, err
    assert own[0].startswith("horonrun: rank 0 on "), err
    assert "which it names" not in err, err


def test_of_ranks_that_name_each_other_the_first_is_told():
    """They cannot join with different settings, and each tells both ranks."""
    roles = "0) export HORON_FUSION_BYTES=1m; sums; ended 1; exit 8;; 1) sums; note 1; exit 7;;"
    status, err, own = play(roles, 2)
    assert status == 7, err
    assert own[0].startswith("horonrun: rank 1 on "), err
    assert any(
        re.match(r"horonrun: rank 0 on \S+ exited with status 8, too: join: ", line) for line in own
    ), err


def test_a_named_rank_that_lives_on_is_not_awaited_for_ever():
    status, err, own = play("0) sums -1; exit 3;; 1) sums 3; tail -f /dev/null;;", 2)
    assert status == 3, err
    assert own[0].startswith("horonrun: rank 0 on "), err


def test_a_rank_that_does_not_join_is_named():
    """The others exit, and say so; it is there, and does something else."""
    roles = "1) tail -f /dev/null;; *) HORON_START_TIMEOUT=1s; export HORON_START_TIMEOUT; sums;;"
    status, err, own = play(roles, 3)
    assert status == 1, err
    told = r"horonrun: rank 1 on \S+ \(process \d+\), which it names, still runs: "
    assert sum(bool(re.match(told, line)) for line in own) == 1, err


def test_a_named_rank_that_ended_well_is_told():
    status, err, _ = play("0) sums -1 2> /dev/null; ended 1; exit 3;; 1) note 1; sums 3;;", 2)
    assert status == 3, err
    assert re.search(r"horonrun: rank 1 on \S+, which it names, had ended with status 0: ", err), (
        err
    )


def test_a_rank_whose_descriptor_was_closed_blames_nobody():
    """And a file of the program's own in that place stays as it is."""
    roles = (
        "0) eval exec ${HORON_FAILURE_FILE#fd:}'> $folder/own'; sums -1; note 0; "
        f"[ -s $folder/own ] && exit 6; exit 4;; {VICTIM_AND_CAUSE}"
    )
    status, err, own = play(roles, 2)
    assert status == 4, err
    assert own[0].startswith("horonrun: rank 0 on "), err


def test_the_cause_is_found_on_another_host():
    with jobs.ssh_that(jobs.RUN_HERE) as (words, _):
        roles = (
            "2) note 0; sums -1 2> /dev/null; exit 1;; 0) sums -1; tail -f /dev/null;; "
            f"{VICTIM_AND_CAUSE}"
        )
        places = ("-H", f"localhost:2,{jobs.ELSEWHERE}:1")
        status, err, own = play(roles, 3, *words, *places)
    assert status == 5, err
    assert re.match(r"horonrun: rank 1 on \S+ \(process \d+\) exited with status 5;", own[0]), err
    assert re.fullmatch(r"horonrun: rank 2 on \S+ exited with status 1, too", own[2]), err


# Its one rank, number 1, exits with status 3; and is said to name a rank that there is not.
LYING_AGENT = """
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
send(17, struct.pack("<II", 1, 99))
send(19, struct.pack("<II", 1, 3 << 8) + bytes.fromhex(sys.argv[2]))
sys.stdin.buffer.read(5)
send(21, struct.pack("<II", 0, 0))
"""


def test_a_rank_that_an_agent_cannot_mean_is_nobody():
    version = jobs.run("--version")[1].split()[-1]
    for named in ("ffffff7f", "00000080", "02000000", "01000000", "", "0000"):
        agent = f"exec {sys.executable} -c '{LYING_AGENT}' {version} '{named}'"
        with jobs.ssh_that(agent) as (words, _):
            places = ("-H", f"localhost:1,{jobs.ELSEWHERE}:1")
            status, _, err = jobs.run(*words, *places, "sleep", "1000")
        assert status == 3, (named, err)
        assert "horonrun: rank 1 on " in err and "which it names" not in err, err


def dump(folder, mib, *words):
    """Rank 1 dumps core, and rank 0 learns nothing of it. @return (status, stderr)"""
    code = f"[ $HORON_RANK = 1 ] && exec {jobs.dumper(folder, mib)}; exec tail -f /dev/null"
    status, _, err = jobs.run(*words, "sh", "-c", code)
    return status, err


def test_a_rank_is_told_before_its_core_file_is_written():
    """Alone on its host, so that no other rank can see it."""
    for mib in (512, 1024, 2048, 4096):
        with tempfile.TemporaryDirectory() as folder, jobs.ssh_that(jobs.RUN_HERE) as (words, _):
            places = ("-H", f"localhost:1,{jobs.ELSEWHERE}:1")
            status, err = dump(folder, mib, *words, *places)
        assert status in (128 + signal.SIGABRT, 128 + signal.SIGKILL), (status, err)
        own = [line for line in err.splitlines() if line.startswith("horonrun: ")]
        assert own[0].startswith(f"horonrun: rank 1 on {jobs.ELSEWHERE} (process "), err
        if "has crashed, and the system writes a core file of it; command: " in own[0]:
            assert own[1] == "horonrun:   | last words", err
            assert own[2] == "horonrun: ending the other 1 rank", err
            return
    tap.need("core dumped" in own[0], "this system writes no core files here")
    raise AssertionError(f"{mib} MiB of core file were written before anybody named the rank")


tap.run(dict(vars()))
