# SPDX-License-Identifier: Apache-2.0
"""A rank is killed in the middle of an operation that MPI carries, of every verb: the others name
it, and end. Of either family, where the launcher leaves them alive. How long that takes is printed;
what could end an operation but horon's news of the death is far away. And a rank is killed on its
way out: the others end."""

import os
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import launchers  # noqa: E402
import stalls  # noqa: E402
import tap  # noqa: E402

ENDLESS = os.environ.get("ENDLESS")
SUM_ONCE = os.environ.get("SUM_ONCE")
PARTS = os.environ.get("PARTS")
DYING = {
    launchers.mpirun: os.environ.get("DYING_OPEN_MPI"),
    launchers.hydra: os.environ.get("DYING_MPICH"),
}
FULL = os.environ.get("HORON_TEST_FULL")
TOLD_S = 1.0 * float(os.environ.get("HORON_TEST_PATIENCE", "1"))  # more under a sanitizer
WATCH = stalls.Watch()
OWN = {launchers.mpirun: "libmpi.so.40", launchers.hydra: "libmpich.so.12"}
MODES = {launchers.mpirun: "in-order", launchers.hydra: "named"}
ENV = {
    "HORON_BACKEND": "mpi",
    "HORON_LOG_LEVEL": "info",
    "HORON_STALL_WARN": "0",
    "HORON_START_TIMEOUT": "1800s",
    "HORON_PEER_TIMEOUT": "1800s",
    "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0",  # MPI loses memory
    # Below MPICH it ends a process that reads the memory of one that is gone or writes to it by
    # TCP.
    "UCX_TLS": "posix,sysv,self",
}
# Hydra ends all once a process that it started itself is killed, whatever its options say.
IN_A_SHELL = 'trap "" USR1; "$@"; true'
TELLS_END = 'trap "" USR1; "$@"; echo "rank ends: $?"'
VERBS = (
    *("allreduce", "broadcast", "allgather", "barrier", "alltoall", "gather", "scatter"),
    *("reducescatter", "reduce"),
)


def kill_in(launch, verb, count, mode, victim, set_by=None, backend="mpi", **more):
    """@param set_by  in a process set by that, beside which there is a rank, of a job by backend"""
    command = ("sh", "-c", IN_A_SHELL, "-", ENDLESS, verb, str(count), mode, str(victim))
    command += (set_by,) if set_by else ()
    size = 4 if set_by else 3
    env = {**ENV, "HORON_BACKEND": backend, **more}
    with launch(size, *command, options=(launchers.RECOVERY[launch],), **env) as job:
        _, out, err = job.end()  # with a status of the launcher's choice
        job.assert_nothing_left()
    told = (launch.__name__, verb, count, mode, set_by, backend, out, err)
    assert len(re.findall(rf"^rank \d by {set_by or backend}$", out, re.M)) == 3, told
    died = int(re.search(r"^dies at (\d+)$", out + err, re.M)[1])
    failed = re.findall(r"^failed (\d) (-\d+) (\d+) (.*)$", out, re.M)
    others = sorted(str(rank) for rank in range(size) if rank != victim)
    assert sorted(rank for rank, _, _, _ in failed) == others, told
    for rank, status, _, text in failed:
        what = "barrier" if rank == "3" else verb
        named = rf"{what} .*(?:failed|refused): rank {victim} \(\S+\) is gone: its process ended .*"
        assert status == "-6" and re.fullmatch(named, text) and "MPI_" not in text, told
    took = WATCH.took(died / 1e9, max(int(moment) for _, _, moment, _ in failed) / 1e9)
    print(f"{verb} {mode}, {launch.__name__}: named after {took * 1e3:.1f} ms")
    assert took < TOLD_S, told
    left_out = 0 if "VERIFY_MPI" in more else size - 1  # else it is the program's to end
    assert err.count("MPI_Finalize() is left out") == left_out, told
    warned = err.count("the program's MPI_Finalize() may wait for ever")
    assert warned == size - 1 - left_out, told
    assert err.count("begun by the program") == (0 if left_out else size), told


def test_kills_in_the_middle_are_named_whatever_the_verb():
    """Rank 0 is root of the verbs that have one."""
    for number, verb in enumerate(VERBS):
        for launch in launchers.RECOVERY:
            for mode in ("in-order", "named") if FULL else (MODES[launch],):
                kill_in(launch, verb, 600003, mode, number % 3)


def test_kills_inside_mpi_are_named_though_mpi_says_nothing():
    """The victim's part is in flight; then no look of the others finds anything, nor fails. Rank 0
    is killed, which is root of the verbs that have one, and another rank."""
    for number, verb in enumerate(VERBS):
        for launch, file in DYING.items():
            file = tap.need(file, "not built (Debian: libmpich-dev, libopenmpi-dev)")
            kill_in(launch, verb, 600003, "in-order", 0, HORON_MPI_LIBRARY=file)
            kill_in(launch, verb, 600003, "named", 1 + number % 2, HORON_MPI_LIBRARY=file)


def test_kills_of_the_root_and_of_another_are_named():
    for launch in launchers.RECOVERY:
        for victim in (0, 2) if FULL else (0,):
            kill_in(launch, "broadcast", 600003, "named", victim)
            kill_in(launch, "reduce", 3, "in-order", victim)


def test_kills_in_a_set_by_another_backend_than_the_jobs_are_named():
    for launch in launchers.RECOVERY:
        for victim, mode in (0, "named"), (1, "in-order"):
            kill_in(launch, "allreduce", 600003, mode, victim, "mpi", "native,mpi")
            kill_in(launch, "alltoall", 60003, mode, victim, "native", "mpi,native")


def test_kills_where_the_main_thread_alone_may_call_mpi_are_named():
    for launch, file in OWN.items():
        for victim, mode in (0, "named"), (2, "in-order"):
            kill_in(launch, "allreduce", 600003, mode, victim, VERIFY_MPI=file)


def test_kills_between_leaving_and_the_end_do_not_hold_up_the_others():
    """Open MPI lets them through MPI_Finalize(), which MPICH does not."""
    for launch, file in DYING.items():
        file = tap.need(file, "not built (Debian: libmpich-dev, libopenmpi-dev)")
        for victim in (0, 2):
            command = ("sh", "-c", TELLS_END, "-", SUM_ONCE, "10")
            env = {**ENV, "HORON_MPI_LIBRARY": file, "DYING_RANK": str(victim)}
            with launch(3, *command, options=(launchers.RECOVERY[launch],), **env) as job:
                _, out, err = job.end()
                job.assert_nothing_left()
            told = (launch.__name__, victim, out, err)
            ends = sorted(re.findall(r"^rank ends: (\d+)$", out, re.M))
            assert ends == ["0", "0", "137"], told
            if launch is launchers.hydra:
                assert err.count("MPI_Finalize() is left out") == 2, told


def test_a_kill_of_a_rank_outside_the_last_job_does_not_hold_up_its_ranks():
    """It was in the one before, of all of them, where the others have learned of its process."""
    launch = launchers.hydra
    file = tap.need(DYING[launch], "not built (Debian: libmpich-dev)")
    with tempfile.TemporaryDirectory() as folder:
        command = ("sh", "-c", TELLS_END, "-", PARTS, f"file:{folder}", "0,1")
        env = {**ENV, "HORON_MPI_LIBRARY": file, "DYING_RANK": "2"}
        with launch(3, *command, options=(launchers.RECOVERY[launch],), **env) as job:
            _, out, err = job.end()
            job.assert_nothing_left()
    sums = sorted(re.findall(r"^sum (\d) by mpi$", out, re.M))
    assert sums == ["2", "2", "3", "3", "3"], (out, err)
    assert sorted(re.findall(r"^rank ends: (\d+)$", out, re.M)) == ["0", "0", "137"], (out, err)
    assert err.count("MPI_Finalize() is left out") == 2, (out, err)


def test_the_cause_is_told_without_a_setting_where_the_launcher_tells_none():
    """By each of the others, before its program hears of it: a launcher may leave no more time."""
    words = (ENDLESS, "allreduce", "600003", "in-order", "1")
    cause = r"^horon rank (\d) \(\S+\) warn: the job failed: rank 1 \(\S+\) is gone: "
    for launch, option in launchers.RECOVERY.items():
        shell = ("sh", "-c", IN_A_SHELL, "-", *words)
        with launch(3, *shell, options=(option,), UCX_TLS=ENV["UCX_TLS"]) as job:
            _, out, err = job.end()
        job.assert_nothing_left()
        assert sorted(re.findall(cause, err, re.M)) == ["0", "2"], (launch.__name__, out, err)
    status, out, err = jobs.run("-np", "3", *words)
    assert status != 0 and "the job failed" not in err, (out, err)
    assert len(re.findall(r"rank 1 .*killed", err)) == 1, (out, err)


tap.run(dict(vars()))
