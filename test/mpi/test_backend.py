# SPDX-License-Identifier: Apache-2.0
"""Operations that MPI carries, of either family: their results, and what becomes of failures."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import launchers  # noqa: E402
import slurm  # noqa: E402
import tap  # noqa: E402
from results import MPI, VERIFY, check_results  # noqa: E402

VERIFY_PIECES = os.environ.get("VERIFY_PIECES")
IN_PLACE = os.environ.get("IN_PLACE")
DROPPED = os.environ.get("DROPPED")
REMOVED = os.environ.get("REMOVED")
SUM_ONCE = os.environ.get("SUM_ONCE")
SETS = os.environ.get("SETS")
MIXED = os.environ.get("MIXED")
ROUNDING = os.environ.get("ROUNDING")
PERF = os.environ.get("HORON_TEST_PERF")
BESIDE_MPI = os.environ.get("BESIDE_MPI")
LINKED = os.environ.get("LINKED")
ASKED = os.environ.get("ASKED")
FAILING_MPI_LIBRARY = os.environ.get("FAILING_MPI_LIBRARY")
SANITIZER = os.environ.get("SANITIZER")
FILES = {launchers.mpirun: "libmpi.so.40", launchers.hydra: "libmpich.so.12"}
NAMES = {launchers.mpirun: "Open MPI", launchers.hydra: "MPICH"}


def need_library(file):
    """In a process of its own, as it may have one MPI."""
    load = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", file]
    there = subprocess.run(load, check=False, capture_output=True).returncode == 0
    tap.need(there, f"{file} cannot be loaded (Debian: libopenmpi3, libmpich12)")


def test_results_of_every_verb_are_right():
    for launch in FILES:
        for mode, size in ("in-order", 2), ("named", 3), ("grouped", 4), ("in-order", 5):
            err = check_results(launch, mode, size, HORON_BACKEND="mpi,native")
            assert err.count(NAMES[launch]) >= size, err
            assert err.count("begun by horon") == size, err


def test_results_are_right_in_pieces_that_mpi_can_count():
    for launch in FILES:
        for mode, size in ("in-order", 2), ("in-order", 3):
            err = check_results(launch, mode, size, program=VERIFY_PIECES)
            assert err.count("begun by horon") == size, err


def test_rows_in_place_come_right():
    for launch in FILES:
        for size in 2, 3, 5:
            with launch(size, IN_PLACE, **MPI) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0 and out.count(" is through") == size, (size, out, err)
            assert "does not carry" not in err, err


def test_results_are_right_where_the_main_thread_alone_may_call_mpi():
    """The program has called MPI_Init(): what is in flight moves while that thread is in horon."""
    for launch, file in FILES.items():
        for mode, size in ("in-order", 3), ("named", 2), ("grouped", 4):
            err = check_results(launch, mode, size, VERIFY_MPI=file, HORON_BACKEND="mpi,native")
            assert err.count("begun by the program") == size, err


def test_sums_that_round_are_as_near_as_their_additions_allow():
    """MPI adds in an order of its own; the whole of the other results are of numbers that do not
    round."""
    for launch in FILES:
        for size in 2, 3, 5:
            with launch(size, ROUNDING, **MPI) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0 and out.count("of what it may be wrong") == 24 * size, (out, err)


def test_results_in_a_process_set_are_right():
    for launch in FILES:
        for mode, size in ("in-order", 3), ("grouped", 2), ("named", 4):
            err = check_results(launch, mode, size, in_set=True, HORON_BACKEND="native,mpi")
            assert f"among {size + 1} ranks" not in err, err


def test_results_without_ranks_that_have_joined_are_right():
    """Without one, without several, and alone. Each time all cases that need no data of theirs."""
    for launch in FILES:
        check_results(launch, "joining", 5, HORON_BACKEND="mpi,native")
        check_results(launch, "joining", 3, in_set=True, HORON_BACKEND="native,mpi")
        check_results(launch, "joining", 4, HORON_JOIN_AVERAGE="given")


def test_process_sets_that_overlap_and_ranks_that_join():
    for launch in FILES:
        with launch(5, SETS, "50", **MPI) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0, (out, err)
        assert out.count(" is through") == 5, (out, err)
        assert "backend mpi is connected, among 5 ranks" in err, err  # by what they join
        assert err.count("backend mpi is connected, among 3 ranks") >= 9, err


def test_what_a_joined_rank_drops_of_one_team_is_in_no_sum_of_another():
    for launch in FILES:
        with launch(4, DROPPED, "300", **{**MPI, "HORON_BACKEND": "mpi,native"}) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0 and out.count(" is through") == 4, (out, err)


def test_sets_that_are_removed_in_use_harm_no_others():
    """What of them is in flight, or is being made, is in no later set's way. Ranks leave
    MPI_Finalize() out then, for which the launchers would end the job."""
    for launch, rounds in (launchers.mpirun, "100"), (launchers.hydra, "10"):
        with launch(4, REMOVED, rounds, options=(launchers.RECOVERY[launch],), **MPI) as job:
            _, out, err = job.end()
        job.assert_nothing_left()
        assert out.count(" is through") == 4, (out, err)


def test_a_process_set_may_have_a_backend_of_its_own():
    """Said when it is added, or in the setting that makes it. The job sums by its own links beside
    it, and joins."""
    for launch in FILES:
        with launch(5, SETS, "20", "mpi", **{**MPI, "HORON_BACKEND": "native,mpi"}) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0, (out, err)
        assert out.count(" is through") == 5, (out, err)
        assert err.count("backend mpi is connected, among 3 ranks") >= 9, err
        assert "among 5 ranks" not in err, err
        env = {**MPI, "HORON_BACKEND": "native,mpi"}
        env["HORON_PROCESS_SETS"] = "0,1,2@mpi;1,2,3@mpi;0,2,3@mpi"
        with launch(5, SETS, "20", "mpi", "made", **env) as job:
            status, out, err = job.end()
        assert status == 0, (out, err)
        assert out.count(" is through") == 5, (out, err)
        assert err.count("backend mpi is connected, among 3 ranks") >= 9, err
        with launch(5, SETS, "20", "native", **MPI) as job:
            status, out, err = job.end()
        assert status == 0, (out, err)
        assert "backend mpi is connected, among 5 ranks" in err, err  # the job
        assert "among 3 ranks" not in err, err


def test_groups_and_joins_in_sets_that_come_and_go():
    """By the backend that the job prefers, and by the other one; nothing is left of a set. What a
    sanitizer keeps of memory that was freed differs from run to run."""
    for launch in FILES:
        for prefers, by in (("native,mpi", "mpi"), ("mpi,native", "native"), ("mpi", "mpi")):
            with launch(5, MIXED, "20", by, **{**MPI, "HORON_BACKEND": prefers}) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0, (prefers, by, out, err)
            left = re.findall(r"with (-?\d+) files, (-?\d+) threads and (-?\d+) KiB more", out)
            assert len(left) == 5, (prefers, by, out, err)
            for files, threads, kib in left:  # one a round, if it were one a set
                assert int(files) < 5 and int(threads) < 5, left
                assert int(kib) < 5000 or SANITIZER != "none", left


def test_what_carries_it_stands_above_what_is_measured():
    words = (PERF, "allreduce", "-b", "8", "-e", "1M", "-f", "64", "-n", "2", "-w", "1", "-c", "1")
    for launch in FILES:
        with launch(2, *words, **{**MPI, "HORON_BACKEND": "native,mpi"}) as job:
            status, out, err = job.end()
        assert status == 0 and "# carried by native\n" in out, (out, err)
        with launch(2, *words, "--backend", "mpi", **MPI) as job:
            status, out, err = job.end()
        assert status == 0 and "# carried by mpi\n" in out, (out, err)


def test_a_job_of_one_rank_begins_no_mpi():
    for launch in FILES:
        err = check_results(launch, "in-order", 1)
        assert "begun by horon" not in err, err


def test_a_job_that_does_not_ask_for_mpi_opens_no_library():
    """So that MPIs that are installed and unused cost nothing. LD_DEBUG tells each file."""
    command = ("env", "LD_DEBUG=files", SUM_ONCE, "1009")

    def opened(launch, **env):
        with launch(2, *command, **env) as job:
            status, out, err = job.end()
        assert status == 0, (out, err)
        assert err.count("calling init: ") > 2, err
        return re.findall(r"file=(\S*lib(?:p?mpi|pmix|open-)\S*) \[0\];  (?:dynamic|gen)", err)

    def horonrun(size, *words, **env):
        return jobs.Job("-np", str(size), *words, env=env)

    for launch in (horonrun, *FILES):
        assert not opened(launch), launch
    for launch in FILES:
        assert opened(launch, **MPI), launch


def test_ranks_that_mpi_did_not_start_do_without():
    need_library(FILES[launchers.mpirun])
    with jobs.Job("-np", "2", SUM_ONCE, "1009", env=MPI) as job:
        status, out, err = job.end()
    assert status == 0, (out, err)
    told = "backend mpi is not used: MPI is not begun in a process that horonrun started: start it "
    assert len(re.findall(told + "with .* or horonrun --mpi", err)) == 2, err


PROGRAMS_OWN = (
    r"started 2 ranks, but \S*libmpi\S* \(.*\), which the program uses, (sees one|is not its "
    r"library): start them with its own mpirun, or have the program use the launcher's MPI"
)


def test_a_library_of_the_other_family_is_named():
    for launch, other in (launchers.mpirun, launchers.hydra), (launchers.hydra, launchers.mpirun):
        with launch(2, SUM_ONCE, "1009", **MPI, HORON_MPI_LIBRARY=FILES[other]) as job:
            status, out, err = job.end()
        assert status != 0, (out, err)
        told = r"started 2 ranks, but libmpi.*start them with its own mpirun, or name"
        assert re.search(told, err), err
        # Each is alone in its world; but one that hears of the other may be in MPI_Init() still.
        hears = re.findall(r"^join: rank \d ", err, re.M)
        assert err.count("MPI_Finalize() is left out") <= len(hears) < 2, err


def test_a_communicator_of_the_other_family_is_refused():
    """Each rank is a world of one there, and would be a job of one without a word."""
    for launch, other in (launchers.mpirun, launchers.hydra), (launchers.hydra, launchers.mpirun):
        for step in "it":
            with launch(2, BESIDE_MPI, FILES[other], f"{step}wslf") as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status != 0 and "sum" not in out, (out, err)
            assert re.search(PROGRAMS_OWN, err), err
    with jobs.Job("-np", "2", BESIDE_MPI, FILES[launchers.mpirun], "twslf") as job:
        status, out, err = job.end()
    assert status != 0 and "sum" not in out, (out, err)
    assert re.search(rf"horonrun {PROGRAMS_OWN}", err), err


def test_a_program_whose_own_mpi_is_of_the_other_family_is_told_what_it_can_do():
    """It could not follow a word to name another library: it has this one."""
    for launch, other in (launchers.mpirun, launchers.hydra), (launchers.hydra, launchers.mpirun):
        for steps in "jsl", "tjsl":
            with launch(2, BESIDE_MPI, FILES[other], steps, **MPI) as job:
                status, out, err = job.end()
            assert status != 0 and "sum" not in out, (out, err)
            assert re.search(PROGRAMS_OWN, err) and "HORON_MPI_LIBRARY" not in err, (steps, err)


def test_a_program_that_is_alone_in_its_own_mpi_is_told_once_though_nothing_needs_it():
    for launch, other in (launchers.mpirun, launchers.hydra), (launchers.hydra, launchers.mpirun):
        for own in launch, other:
            words = (BESIDE_MPI, FILES[own], "ijslf")
            with launch(2, *words, ASAN_OPTIONS=MPI["ASAN_OPTIONS"]) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0 and out.count("sum 2") == 2, (out, err)
            assert err.count("each is alone in the program's MPI") == (own == other), err


def test_a_communicator_of_one_rank_is_a_job_of_one():
    """c is MPI_COMM_SELF: of a world of two, and of one that nothing started."""
    for launch, file in FILES.items():
        for size in 2, 1:
            with launch(size, BESIDE_MPI, file, "tcslf", ASAN_OPTIONS=MPI["ASAN_OPTIONS"]) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0 and out.count("sum 1\n") == size, (out, err)


def test_a_rank_that_lacks_the_library_fails_where_others_wait_for_it():
    """In MPI_Init(), for ever."""
    alone = "test $PMI_RANK$OMPI_COMM_WORLD_RANK = 1 && "
    alone += 'export HORON_MPI_LIBRARY=/etc/passwd; exec "$@"'
    for launch in FILES:
        with launch(2, "sh", "-c", alone, "sh", SUM_ONCE, "1009", **MPI) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status != 0, (out, err)
        told = "backend mpi: HORON_MPI_LIBRARY=/etc/passwd: .*begin MPI together"
        assert re.search(told, err), err


def test_a_second_mpi_is_not_opened():
    """Of a program that has begun the launcher's, or has it; w finds it otherwise than j."""
    for launch, other in (launchers.mpirun, launchers.hydra), (launchers.hydra, launchers.mpirun):
        file, second = FILES[launch], FILES[other]
        for steps in "tjslf", "jsl", "twslf":
            words = ("env", "LD_DEBUG=files", BESIDE_MPI, file, steps)
            with launch(2, *words, **MPI, HORON_MPI_LIBRARY=second) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status != 0, (steps, out, err)
            assert "calling init: " in err, err
            assert not re.search(rf"calling init: \S*/{re.escape(second)}", err), (steps, err)
            named = rf"HORON_MPI_LIBRARY names {re.escape(second)}, but this process has "
            assert re.search(rf"{named}\S*/{re.escape(file)} already", err), (steps, err)
            with launch(2, BESIDE_MPI, file, steps, **MPI, HORON_MPI_LIBRARY=file) as job:
                status, out, err = job.end()
            assert status == 0 and out.count("sum 2") == 2, (steps, out, err)


def test_srun_without_what_an_mpi_needs_does_without():
    """Open MPI would end the process, and MPICH have each rank alone."""
    open_mpi, mpich = FILES.values()
    need_library(open_mpi)
    need_library(mpich)
    with slurm.cluster() as env:
        for way, file, needs in (
            ("none", "", "pmix"),
            ("none", open_mpi, "pmix"),
            ("none", mpich, "pmi2"),
            ("pmi2", open_mpi, "pmix"),
            ("pmi2", "", None),
            ("pmix", open_mpi, None),
        ):
            if way == "pmix":
                slurm.need_pmix(env)
            words = (f"--mpi={way}", "-N1", "-n2", "-w", slurm.NODES[1])
            with slurm.run(env, *words, **MPI, HORON_MPI_LIBRARY=file) as job:
                status, out, err = job.end()
            assert status == 0, (way, file, out, err)
            assert len(re.findall(r"^rank \d of 2, ", out, re.M)) == 2, (way, file, out, err)
            told = rf"backend mpi is not used: MPI is not begun.*--mpi={way} .*--mpi={needs},"
            assert len(re.findall(told, err)) == (2 if needs else 0), (way, file, err)
            used = err.count("backend mpi is connected, among 2 ranks")
            assert used == (0 if needs else 2), (way, file, err)


def test_a_backend_that_is_none_is_refused():
    with jobs.Job("-np", "1", SUM_ONCE, "1009", env={"HORON_BACKEND": "native,mpy"}) as job:
        status, out, err = job.end()
    assert status != 0, (out, err)
    assert 'HORON_BACKEND names "mpy"' in err and "native, mpi" in err, err


def test_a_program_that_uses_mpi_itself():
    """i is MPI_Init(), which lets one thread make calls; t MPI_Init_thread(), which lets all. In o
    another thread joins."""
    for launch, file in FILES.items():
        own = ["ijsbslf", "ijbxsbxlbjsblf", "iosbslf", "tosbslf"]
        own += "tjsbslf", "tjsblf", "tjsbfl", "tjslbjsblf", "jsblbjsl", "twsblwslf"
        for steps in own:
            with launch(3, BESIDE_MPI, file, steps, **MPI) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0, (steps, out, err)
            sums = steps.count("s") + 2 * steps.count("x")
            assert out.count("sum 3") == 3 * sums, (steps, out, err)
            used = err.count("backend mpi is connected, among 3 ranks")
            if steps.startswith("io"):
                assert used == 0, err
                told = "backend mpi is not used: MPI was begun for calls of one thread"
                assert err.count(told) == 3, err
            else:
                assert used >= 3, (steps, err)


def test_a_request_that_is_kept_keeps_no_mpi():
    """The next job has it, and it ends with the process: Open MPI's launcher counts that."""
    for launch, file in FILES.items():
        for steps in "jkl", "jkljsl":
            with launch(3, BESIDE_MPI, file, steps, **MPI) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0 and out.count("sum 3") == 3 * (len(steps) // 3), (steps, out, err)
            connected = err.count("backend mpi is connected, among 3 ranks")
            assert connected == out.count("sum 3"), (steps, err)


def test_a_program_that_is_linked_with_open_mpi():
    program = tap.need(LINKED, "not built (Debian: libopenmpi-dev)")
    with launchers.mpirun(2, program, **MPI) as job:
        status, out, err = job.end()
    job.assert_nothing_left()
    assert status == 0 and out.count("summed") == 2, (out, err)
    assert err.count("backend mpi is connected, among 2 ranks") == 4, err


def test_a_program_that_ends_mpi_before_it_leaves():
    """Before the first operation native carries them; what comes behind it fails."""
    for launch, file in FILES.items():
        for steps in "tjbfsl", "tjsbfl", "jsbfl", "tjsbfs":
            with launch(3, BESIDE_MPI, file, steps, **MPI) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            fails = steps == "tjsbfs"
            assert (status != 0) == fails, (steps, out, err)
            assert out.count("sum 3") == 3, (steps, out, err)
            used = "backend mpi is connected, among 3 ranks" in err
            assert used == (steps != "tjbfsl"), (steps, err)
            assert ("failed: MPI was ended by the program" in err) == fails, (steps, err)


def test_a_program_that_ends_mpi_beside_an_operation():
    """MPICH 4.0 crashes where a thread is in a call in that moment, whatever it does then."""
    launch = launchers.mpirun
    for steps in ("tjsbvbfzl", "tjsbvfzl", "tjsbvbfzl"):
        with launch(3, BESIDE_MPI, FILES[launch], steps, **MPI) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0 and out.count("large: 0 are wrong") == 3, (steps, out, err)


def test_a_program_that_ends_mpi_while_an_operation_waits():
    """For other ranks: a thread calls MPI now and then meanwhile, which MPICH's end does not
    survive."""
    for launch, file in FILES.items():
        with launch(3, BESIDE_MPI, file, "tjsssafl", **MPI) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0 and out.count("sum 3") == 9, (launch.__name__, out, err)


def test_the_one_thread_that_may_call_mpi_waits_without_a_core():
    """Else rank 0 never comes."""
    for launch, file in FILES.items():
        with launch(2, BESIDE_MPI, file, "ijsdlf", **MPI, HORON_SPIN_US="0") as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0 and out.count("sum 2") == 4, (out, err)


def test_a_program_that_begins_mpi_for_one_thread_at_a_time():
    """e is MPI_Init_thread(MPI_THREAD_SERIALIZED)."""
    for launch, file in FILES.items():
        for promise, used in ("1", 6), ("0", 0):
            # in the second context lanes are connected in another order than in the first
            env = {**MPI, "HORON_MPI_SERIALIZED": promise, "HORON_BACKEND": "mpi,native"}
            with launch(3, BESIDE_MPI, file, "ejxxsxplbjsxslbf", **env) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status == 0, (out, err)
            assert out.count("sum 3") == 3 * 11, (out, err)
            assert out.count("of two 2") == 2, (out, err)
            connected = err.count("backend mpi is connected, among 3 ranks")
            assert connected == 2 * used, (connected, err)
            if used:
                assert "with MPI_THREAD_SERIALIZED it carries no process set's" in err, err
            else:
                told = "set HORON_MPI_SERIALIZED=1 if the program makes none"
                assert err.count(told) == 2 * 3, err  # a line a rank in each context


def test_a_communicator_before_mpi_begins_or_after_it_ends_is_refused():
    for launch, file in FILES.items():
        for steps, what in ("wsl", "has not begun"), ("tfw", "has ended"):
            with launch(2, BESIDE_MPI, file, steps, **MPI) as job:
                status, out, err = job.end()
            job.assert_nothing_left()
            assert status != 0, (out, err)
            assert f"{what} in this process, and has no communicators" in err, err


# Debian's MPICH stands on UCX, which ends a process that reads the memory of one that is gone, or
# writes to it by TCP.
READS_NO_MEMORY = {"UCX_TLS": "posix,sysv,self"}
# Hydra ends all once a process that it started itself is killed, whatever its options say.
IN_A_SHELL = 'trap "" USR1; "$@" >"$0/out${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"; true'


def test_of_contexts_that_ask_at_once_the_first_one_has_mpi():
    """Else one that never had it says at its end how the process is to end, or nobody does."""
    for launch in FILES:
        with launch(2, ASKED, **MPI) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0 and out.count("in turn") == 2, (out, err)


def test_the_second_of_two_contexts_does_without():
    """J, S and L are of it. Two would take each other's communicators for theirs."""
    for launch, file in FILES.items():
        with launch(3, BESIDE_MPI, file, "jJsSsSLl", **MPI) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0, (out, err)
        assert out.count("sum 3") == 12, (out, err)
        assert err.count("another context of this process uses MPI") == 3, err
        assert err.count("backend mpi is connected, among 3 ranks") == 3, err


def kill_one(launch, folder, command, options, before=lambda pid: None, **env):
    """@return what the others of three ranks say"""
    with launch(3, *command, options=options, **MPI, **READS_NO_MEMORY, **env) as job:
        outs = [pathlib.Path(folder, f"out{rank}") for rank in range(3)]

        def have_summed():
            return all(out.exists() and "summed" in out.read_text() for out in outs)

        jobs.until(have_summed, "three ranks have summed")
        ranks = [pid for pid in job.pids() if jobs.command_line(pid).startswith(VERIFY.encode())]
        assert len(ranks) == 3, ranks
        before(ranks[1])
        os.kill(ranks[1], signal.SIGKILL)
        _, _, err = job.end()  # with a status of the launcher's choice
        job.assert_nothing_left()
    assert err.count("MPI_Finalize() is left out") == 2, err
    failed = re.findall(r"failed \d+ -?\d+ (.*)", "".join(out.read_text() for out in outs))
    assert len(failed) == 2, (failed, err)
    return failed


def test_a_killed_rank_is_named_and_ends_the_others():
    for launch, option in launchers.RECOVERY.items():
        for count in "64", "1000003":
            with tempfile.TemporaryDirectory() as folder:
                command = ("sh", "-c", IN_A_SHELL, folder, VERIFY, "sum", count, "-1")
                failed = kill_one(launch, folder, command, (option,))
            assert len({re.search(r"rank \d", text)[0] for text in failed}) == 1, failed


def test_a_rank_that_mpi_misses_before_horon_does_is_named():
    """It stands still in a sum: only MPI's calls fail, which are told to. Then it is killed."""
    file = tap.need(FAILING_MPI_LIBRARY, "not built (Debian: libmpich-dev), or with a sanitizer")
    with tempfile.TemporaryDirectory() as folder:
        asked = pathlib.Path(folder, "asked")

        def stop(pid):
            written = pathlib.Path(folder, "asked.new")
            written.write_text(str(pid))
            written.rename(asked)
            jobs.until(pathlib.Path(folder, "asked.told").exists, "a call of MPI has failed")

        command = ("sh", "-c", IN_A_SHELL, folder, VERIFY, "sum", "1000003", "-1")
        options = ("-disable-auto-cleanup",)
        env = {"HORON_MPI_LIBRARY": file, "FAILING_MPI": str(asked)}
        failed = kill_one(launchers.hydra, folder, command, options, stop, **env)
    assert len({re.search(r"rank \d", text)[0] for text in failed}) == 1, failed


tap.run(dict(vars()))
