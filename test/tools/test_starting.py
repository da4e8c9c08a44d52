# SPDX-License-Identifier: Apache-2.0
"""Ranks that another launcher has started find each other: Open MPI's mpirun.

test/runtime/boot has the variables of all launchers as tables; test/python has torchrun.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
COUNT = "1009"


@contextlib.contextmanager
def mpirun(size, *words, **env):
    """A job of mpirun's, started. More ranks than cores are welcome. Open MPI's jobs of one user
    share a folder in TMPDIR, and two that make it at once fail: each has a TMPDIR of its own."""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    program = tap.need(shutil.which("mpirun"), "mpirun is not installed (Debian: openmpi-bin)")
    options = ["--bind-to", "none", "--oversubscribe"]
    options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words = ["-np", str(size), *options, SUM_ONCE, *(words or [COUNT])]
    with tempfile.TemporaryDirectory(prefix="mpi") as own:
        with jobs.Job(*words, program=program, env={**env, "TMPDIR": own}) as job:
            yield job


def end_well(job, size):
    status, out, err = job.end()
    job.assert_nothing_left()
    assert status == 0, (out, err)
    places = sorted(re.findall(r"^rank (\d+) of (\d+), local (\d+) of (\d+), hosts 1$", out, re.M))
    wanted = [(str(rank), str(size), str(rank), str(size)) for rank in range(size)]
    assert places == wanted, (out, err)


def test_mpirun_ranks_meet():
    for size in (1, 2, 3):
        with mpirun(size) as job:
            end_well(job, size)


def test_mpirun_ranks_meet_with_a_key():
    with mpirun(2, HORON_JOB_KEY="a key for this test alone") as job:
        end_well(job, 2)


def test_mpirun_jobs_at_once_do_not_meet():
    with mpirun(2) as one, mpirun(3) as other:
        end_well(one, 2)
        end_well(other, 3)


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


tap.run(dict(vars()))
