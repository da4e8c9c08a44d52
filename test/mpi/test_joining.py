# SPDX-License-Identifier: Apache-2.0
"""MPI_Init_thread(), which waits for all ranks, where not all come through: the others do not wait
in it, hear why they have not joined, and end. Of either family, where the launcher leaves them
alive. And what is heard where MPI is not begun, or the program has ended it."""

import fcntl
import os
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import launchers  # noqa: E402
import tap  # noqa: E402

JOINING = os.environ.get("JOINING")
BESIDE_MPI = os.environ.get("BESIDE_MPI")
FILES = {launchers.mpirun: "libmpi.so.40", launchers.hydra: "libmpich.so.12"}
HELD_MPI = {
    launchers.mpirun: os.environ.get("HELD_OPEN_MPI"),
    launchers.hydra: os.environ.get("HELD_MPICH"),
}
FORKED = {
    launchers.mpirun: os.environ.get("FORKED_OPEN_MPI"),
    launchers.hydra: os.environ.get("FORKED_MPICH"),
}
PACKAGES = {launchers.mpirun: "libopenmpi-dev", launchers.hydra: "libmpich-dev"}
ENV = {
    "HORON_BACKEND": "mpi",
    "HORON_LOG_LEVEL": "warn",
    "HORON_STALL_WARN": "0",
    "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0",  # MPI loses memory
}
RANKS = 3
# Hydra ends all once a process that it started itself is killed, whatever its options say; and once
# one has ended, MPI's thread on another one does not wait for its answer any more. So each waits
# for a lock, which the test lets go once all have told.
IN_A_SHELL = (
    'trap "" USR1; exec >>"$0/out" 2>>"$0/err"; "$@"; echo "rank ends: $?"; flock "$0/told" true'
)
DOING = "while beginning what all ranks begin together: "


def run(launch, case, rank, *args, of=None, **env):
    """@param of  the launcher whose library it is, if it is another one's
    @return what failed ranks say, (status, text) each, and what all have written"""
    file = tap.need(HELD_MPI[of or launch], f"not built (Debian: {PACKAGES[of or launch]})")
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/told", "w") as told_all:
        fcntl.flock(told_all, fcntl.LOCK_EX)
        env = {**ENV, **env, "HORON_MPI_LIBRARY": file, "HELD_MPI": f"{case} {rank} {folder}"}
        told_out, told_err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
        told_out.touch()
        told_err.touch()
        command = ("sh", "-c", IN_A_SHELL, folder, JOINING, *args)
        with launch(RANKS, *command, options=(launchers.RECOVERY[launch],), **env) as job:
            try:
                jobs.until(lambda: told_out.read_text().count("rank ends: ") == RANKS, "ranks end")
            except AssertionError as error:
                said = (told_out.read_text(), told_err.read_text())
                raise AssertionError(f"{error}: {launch.__name__}, {case}: {said}") from None
            fcntl.flock(told_all, fcntl.LOCK_UN)
            # With ranks that are lost before they begin, Open MPI's mpirun now and then stays.
            if launch is launchers.mpirun:
                own = {job.process.pid}
                jobs.until(lambda: own.issuperset(job.pids()), "what it has started is gone")
                job.process.kill()  # it does not heed SIGTERM then
            job.end()  # with a status of the launcher's choice
        job.assert_nothing_left()
        out, err = told_out.read_text(), told_err.read_text()
    told = (launch.__name__, case, rank, out, err)
    return re.findall(r"^failed (-\d+) (.*)$", out, re.M), out, err, told


def check_alone(size, out, err, told):
    """Of the ranks that failed, each of which goes on."""
    assert out.count("sum 1 by native") == size, told
    assert err.count("backend mpi is not used: MPI_Init_thread() was given up") == size, told
    assert err.count("MPI_Finalize() is left out") == size, told


def test_a_rank_that_dies_on_its_way_into_mpi_is_named():
    for launch in HELD_MPI:
        for case, rank in ("before", 1), ("before", 0), ("inside", 1), ("inside", 0):
            failed, out, err, told = run(launch, case, rank)
            assert [status for status, _ in failed] == ["-6"] * (RANKS - 1), told
            for _, text in failed:
                assert DOING in text and f"rank {rank} on " in text, told
            check_alone(RANKS - 1, out, err, told)


def test_a_rank_that_never_comes_through_ends_joining_by_its_limit():
    for launch in HELD_MPI:
        failed, out, err, told = run(launch, "never", 1, HORON_START_TIMEOUT="2s")
        assert [status for status, _ in failed] == ["-7"] * RANKS, told
        for _, text in failed:
            assert "joining took longer than 2000 ms" in text, told
            why = f"{DOING}backend mpi: MPI_Init_thread() of {HELD_MPI[launch]} waits until all "
            assert why in text, told
        check_alone(RANKS, out, err, told)


def test_a_rank_whose_mpi_does_not_begin_fails_all():
    for launch in HELD_MPI:
        failed, out, _, told = run(launch, "fails", 1)
        assert len(failed) == RANKS, told
        why = f"backend mpi: MPI_Init_thread() of {HELD_MPI[launch]} failed with 16"
        for _, text in failed:
            assert text.endswith(why), told
        assert sum(text.startswith("rank 1 (") for _, text in failed) == RANKS - 1, told
        assert out.count("sum 1 by native") == RANKS, told


def test_nothing_is_asked_of_hydra_while_mpi_waits_for_its_answer():
    """MPI's thread would take what it says for its own, and end the process."""
    launch = launchers.hydra
    failed, out, err, told = run(launch, "fails", 1, "asks", "1")
    again = re.findall(r"^again (-\d+) (.*)$", out, re.M)
    assert len(failed) == len(again) == RANKS, told
    assert sum("MPI_Init_thread() is under way" in text for _, text in again) == RANKS - 1, told
    assert out.count("sum 1 by native") == out.count("rank ends: 0") == RANKS, told
    assert "Fatal error" not in err, told


def test_mpi_ends_before_hydra_is_told_that_the_rank_does():
    """A job that meets by it once MPI has begun has the later exit handler."""
    tap.need(HELD_MPI[launchers.hydra], f"not built (Debian: {PACKAGES[launchers.hydra]})")
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = f"HORON_STORE=file:{folder}"
        failed, out, _, told = run(launchers.hydra, "none", 0, "later", ELSEWHERE=elsewhere)
    assert not failed and out.count("sum 3 by mpi") == 2 * RANKS, told
    assert out.count("rank ends: 0") == RANKS, told


def test_a_child_of_a_fork_does_without_the_mpi_that_was_begun_before():
    for launch in HELD_MPI:
        failed, out, err, told = run(launch, "none", 0, "fork")
        assert not failed and out.count("sum 3 by mpi") == RANKS, told
        assert out.count("sum 1 by native") == out.count("rank ends: 0") == RANKS, told
        assert err.count("backend mpi is not used: MPI was begun in process") == RANKS, told


def test_a_child_of_a_fork_does_without_the_mpi_that_the_program_began():
    """Though the parent has no context."""
    for launch, program in FORKED.items():
        tap.need(program, f"not built (Debian: {PACKAGES[launch]})")
        with launch(2, program, **ENV) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        told = (launch.__name__, out, err)
        assert status == 0 and out.count("barrier by native") == out.count("ended") == 2, told
        assert err.count("backend mpi is not used: MPI was begun in process") == 2, told
        refused = re.findall(r"^status -\d+: .*MPI was begun in process \d+, of which", out, re.M)
        assert len(refused) == 2, told


def test_an_mpi_of_one_thread_is_not_used_once_that_is_gone():
    for launch in HELD_MPI:
        failed, out, err, told = run(launch, "funneled", 0)
        assert not failed and out.count("sum 3 by native") == RANKS, told
        line = "backend mpi is not used: MPI lets one thread alone call it"
        assert err.count(line) == RANKS, told
        assert "Finalize" not in err, told


def test_an_mpi_of_one_thread_at_a_time_is_called_where_the_program_keeps_out():
    for launch in HELD_MPI:
        for promise, by in ("0", "native"), ("1", "mpi"):
            failed, out, err, told = run(launch, "serialized", 0, HORON_MPI_SERIALIZED=promise)
            assert not failed and out.count(f"sum 3 by {by}") == RANKS, told
            assert ("an operator is made" in err) == (by == "mpi"), told


def test_an_mpi_of_the_main_thread_is_not_called_where_another_one_leaves():
    for launch, file in HELD_MPI.items():
        tap.need(file, f"not built (Debian: {PACKAGES[launch]})")
        with launch(2, BESIDE_MPI, file, "ijsmjslf", **ENV, HORON_MPI_LIBRARY=file) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        told = (launch.__name__, out, err)
        assert status == 0 and out.count("sum 2") == 4, told
        assert "another thread frees" not in err and "are left" not in err, told


def test_an_open_mpi_below_hydra_is_not_begun():
    """Each rank would be alone in it, and could not end what it has begun when it hears that."""
    failed, out, err, told = run(launchers.hydra, "never", 1, of=launchers.mpirun)
    assert len(failed) == out.count("sum 1 by native") == RANKS, told
    for _, text in failed:
        assert "MPICH's mpiexec or the like (PMI) started 3 ranks, but " in text, told
        assert "(Open MPI) is not its library: " in text, told
    assert "Finalize" not in err and "given up" not in err, told


def test_what_comes_after_the_programs_own_end_of_mpi_hears_what_to_do():
    """Of an MPI that horon has begun: nothing says that its end is left out."""
    for launch, file in FILES.items():
        env = {**ENV, "HORON_MPI_LIBRARY": file}
        with launch(2, BESIDE_MPI, file, "jsfvzl", **env) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        told = (launch.__name__, out, err)
        assert status == 0 and out.count("sum 2") == out.count("large failed: ") == 2, told
        what = "MPI was ended by the program, and this context takes nothing more: call "
        assert f"{what}MPI_Finalize() after horon_context_destroy(), or make" in out, told
        assert "left out" not in err, told


def test_a_communicator_before_mpi_begins_or_after_it_ends_hears_what_to_do():
    for launch, file in FILES.items():
        for steps, what in (
            (
                "w",
                "has not begun in this process, and has no communicators: call MPI_Init_thread()",
            ),
            ("tfw", "has ended in this process, and has no communicators: make the context before"),
        ):
            with launch(2, BESIDE_MPI, file, steps, **ENV) as job:
                status, out, err = job.end()
            assert status != 0 and what in err, (launch.__name__, steps, out, err)


tap.run(dict(vars()))
