# SPDX-License-Identifier: Apache-2.0
"""An MPI that is slow: it works on no memory of the program's while a thread of horon's makes a
communicator, or where one of MPI's moves data, what it keeps goes out, it is asked ever less often,
by an idle rank never, and nothing of it is left. What has failed in it is left alone."""

import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import launchers  # noqa: E402
import tap  # noqa: E402

MAKING = os.environ.get("MAKING")
SLOW_MPI_LIBRARY = os.environ.get("SLOW_MPI_LIBRARY")
ENV = {"HORON_BACKEND": "mpi,native", "HORON_LOG_LEVEL": "warn", "HORON_STALL_WARN": "0"}
FAULTS = " sums on this memory beside a thread that makes a communicator\n"


def run(case, *more, finalizes=True, preloads=False, **env):
    """@param finalizes  else hydra kills the last ones to leave, which have said all by then"""
    file = tap.need(SLOW_MPI_LIBRARY, "not built (Debian: libmpich-dev), or with a sanitizer")
    words = ("env", f"LD_PRELOAD={file}") if preloads else ()
    words += (MAKING, case, *more)
    with launchers.hydra(3, *words, **ENV, **env, HORON_MPI_LIBRARY=file) as job:
        status, out, err = job.end()
    job.assert_nothing_left()
    assert status == 0 or not finalizes, (out, err)
    assert out.count("0" + FAULTS) == 3, (out, err)
    return out, err


def test_a_second_lane_connects_beside_sums():
    out, err = run("sum")
    assert out.count("by mpi\n") == 3, (out, err)


def test_a_second_lane_waits_for_the_sum_of_the_first():
    run("make")


def test_a_making_that_is_left_ends_what_is_direct_and_mpi_with_the_context():
    out, err = run("leave", finalizes=False)
    assert out.count("by mpi\n") == 3 and out.count("by native\n") == 3, (out, err)
    assert err.count("what was given up is still in MPI's hands") == 2, err


def test_what_fails_in_mpi_ends_contexts_of_communicators_at_once():
    """Though its own context is there, and where such a one is on its way."""
    for case in "shut", "shut a meeting":
        for of_program in {}, {"preloads": True, "HORON_MPI_SERIALIZED": "1"}:
            out, _ = run(case, finalizes=False, **of_program)
            assert out.count("by mpi\n") == out.count("by native\n") == 3, out


def test_an_mpi_that_moves_data_by_itself_works_on_no_memory_of_the_programs():
    out, err = run("by itself", MPICH_ASYNC_PROGRESS="1")
    assert out.count("by mpi\n") == 3, (out, err)


def test_an_mpi_that_the_program_has_too_works_on_no_memory_of_the_programs():
    """The program's calls would write to what is given up, when its memory is another thing's."""
    out, err = run("by itself", preloads=True)
    assert out.count("by mpi\n") == 3, (out, err)


def test_of_a_program_that_keeps_out_mpi_works_on_the_memory():
    out, err = run("sum", preloads=True, HORON_MPI_SERIALIZED="1")
    assert out.count("by mpi\n") == 3, (out, err)
    out, err = run("by itself", HORON_MPI_SERIALIZED="1", MPICH_ASYNC_PROGRESS="1")
    assert out.count("by mpi\n") == 3, (out, err)


def test_what_mpi_keeps_of_an_operation_goes_out_while_the_next_one_waits():
    for case in "gather in order", "gather":
        run(case)


def test_a_sum_that_lasts_is_looked_at_ever_less_often():
    run("wait")


def test_a_sum_goes_on_when_a_thread_has_waited_for_something_else():
    """It waits until the program lets it go on, however long that takes."""
    run("leave sums", HORON_YIELD_US="10000000")


def test_an_idle_rank_does_not_look():
    """Not once behind the last sum, though the others tell it what they begin."""
    with tempfile.TemporaryDirectory() as folder:
        fifo = pathlib.Path(folder, "fifo")
        os.mkfifo(fifo)
        _, err = run("idle", str(fifo))
    assert "\n0 looks while idle\n" in f"\n{err}", err


tap.run(dict(vars()))
