# SPDX-License-Identifier: Apache-2.0
"""A rank fails, and horonrun lets the others go on if it is asked to: what becomes of them, and
what it says and ends with."""

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

OUTLIVE = os.environ.get("OUTLIVE")
SUM_ONCE = os.environ.get("SUM_ONCE")


def own_lines(err):
    return [line for line in err.splitlines() if line.startswith("horonrun: ")]


def test_survivors_go_on_in_sets_without_the_lost_rank():
    tap.need(OUTLIVE, "the rank program is not built (OUTLIVE)")
    status, out, err = jobs.run("-np", "4", "--keep-survivors", OUTLIVE)
    assert sorted(re.findall(r"\[(\d)\]<stdout>:outlived it", out)) == ["0", "1", "2"], out + err
    assert status == 137, err
    own = own_lines(err)
    assert re.fullmatch(
        r"horonrun: rank 3 on \S+ \(process \d+\) was killed by signal 9 \(Killed\); 3 other ranks "
        r"may go on \(--keep-survivors\)",
        own[0],
    ), err
    assert re.match(r"horonrun: rank 3 on \S+ \(process \d+\) was killed by signal 9", own[1]), err


def test_survivors_are_ended_without_the_option():
    code = "[ $HORON_RANK = 1 ] && exit 3; exec tail -f /dev/null"
    status, _, err = jobs.run("-np", "2", "sh", "-c", code)
    assert status == 3, err
    assert "horonrun: ending the other 1 rank" in err, err


def test_survivors_that_fail_too_are_told_at_the_end():
    code = "[ $HORON_RANK = 2 ] && { echo all is well; exit 0; }; exit $((3 + HORON_RANK))"
    status, out, err = jobs.run("-np", "3", "--keep-survivors", "sh", "-c", code)
    assert "[2]<stdout>:all is well" in out
    assert status in (3, 4), err
    assert len([line for line in own_lines(err) if "exited with status" in line]) >= 3, err


def test_survivors_that_have_not_joined_are_told():
    """The last rank ends before it joins: the others cannot, and end by themselves."""
    tap.need(OUTLIVE, "the rank program is not built (OUTLIVE)")
    code = f"[ $HORON_RANK = 2 ] && exit 5; exec {OUTLIVE}"
    status, _, err = jobs.run("-np", "3", "--keep-survivors", "sh", "-c", code)
    assert status == 5, err
    assert len(re.findall(r"<stderr>:join: .*rank 2", err)) == 2, err


def test_survivors_that_join_again_do_not_wait_for_it():
    """Nor does a job of some of them that needs it; one that does not goes on."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    code = """
        if [ $HORON_RANK = 2 ]; then echo $$ > "$1/new"; mv "$1/new" "$1/it"; exit 3; fi
        until [ -e "$1/it" ]; do :; done; while kill -0 $(cat "$1/it") 2> /dev/null; do :; done
        "$2" 1; "$2" 1; HORON_RANKS=1,2,0 "$2" 1; HORON_RANKS=1,0 "$2" 1"""
    words = ("-np", "3", "--keep-survivors", "--start-timeout", "1h", "sh", "-c", code, "sh")
    with tempfile.TemporaryDirectory() as folder:
        status, out, err = jobs.run(*words, folder, SUM_ONCE)
    assert status == 3, err
    assert len(re.findall(r"<stderr>:join: ", err)) == 6, err
    assert len(re.findall(r"of 3 ranks, rank [12]( on \S+)? failed without joining", err)) >= 4, err
    assert len(re.findall(r"of 2, local", out)) == 2, out


def test_survivors_of_a_rank_that_dumps_core_are_told_of_once():
    """Rank 1 is heard of when it crashes and when its core file is written; rank 0 outlives it."""
    for mib in (512, 1024, 2048, 4096):
        with tempfile.TemporaryDirectory() as folder:
            code = f"""
                cd {folder}
                [ $HORON_RANK = 1 ] && echo $$ >it && mv it pid && exec {jobs.dumper(folder, mib)}
                until [ -e pid ]; do :; done
                exec tail --pid=$(cat pid) -f /dev/null"""
            status, _, err = jobs.run("-np", "2", "--keep-survivors", "sh", "-c", code)
        assert status == 128 + signal.SIGABRT, (status, err)
        own = own_lines(err)
        assert len([line for line in own if "may go on (--keep-survivors)" in line]) == 1, err
        if "has crashed, and the system writes a core file of it; 1 other rank may" in own[0]:
            assert "was killed by signal 6 (Aborted, core dumped); command: " in own[1], err
            return
    tap.need("core dumped" in err, "this system writes no core files here")
    raise AssertionError(f"{mib} MiB of core file were written before anybody was told of the rank")


tap.run(globals())
