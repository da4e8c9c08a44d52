# SPDX-License-Identifier: Apache-2.0
"""Ranks that Slurm's srun has started find each other, on one machine. test/hosts has its nodes in
network namespaces."""

import os
import pathlib
import re
import signal
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import slurm  # noqa: E402
import tap  # noqa: E402


def test_srun_ranks_of_one_node_meet_without_a_setting():
    with slurm.cluster() as env:
        for way in ("none", "pmi2"):
            with slurm.run(env, f"--mpi={way}", "-N1", "-n2", "-w", slurm.NODES[1]) as job:
                job.end_well(2)


def test_srun_ranks_of_two_nodes_meet_at_the_first():
    with slurm.cluster() as env:
        for way in ("none", "pmi2"):
            with slurm.run(env, f"--mpi={way}", "-N2", "-n3") as job:
                job.end_well(3)


def test_srun_ranks_of_two_nodes_meet_by_pmix():
    with slurm.cluster() as env:
        slurm.need_pmix(env)
        for size in (2, 3):
            with slurm.run(env, "--mpi=pmix", "-N2", f"-n{size}", HORON_LOG_LEVEL="debug") as job:
                status, out, err = job.end()
            assert status == 0, (out, err)
            assert len(re.findall(rf"^rank \d of {size}, ", out, re.M)) == size, (out, err)
            assert "as rank 0 said through the launcher" in err, err


def test_srun_ranks_of_one_node_have_a_key_of_their_own_by_pmix():
    with slurm.cluster() as env:
        slurm.need_pmix(env)
        folders = set()
        command = ("sh", "-c", 'echo "folder $PMIX_SERVER_TMPDIR"; exec "$@"', "-")
        command += (slurm.SUM_ONCE, slurm.COUNT)
        for _ in range(2):
            more = {"command": command, "HORON_LOG_LEVEL": "debug"}
            with slurm.run(env, "--mpi=pmix", "-N1", "-n2", "-w", slurm.NODES[1], **more) as job:
                status, out, err = job.end()
            assert status == 0, (out, err)
            assert err.count("the job key comes from the launcher's folder") == 2, (out, err)
            folders |= set(re.findall(r"folder (.*)", out))
        assert len(folders) == 2, folders  # a step each
        jobs.until(lambda: not any(map(os.path.exists, folders)), "Slurm removed their folders")


def test_srun_rank_that_is_killed_ends_the_job():
    with slurm.cluster() as env:
        with slurm.run(env, "-N2", "-n2", "-K", command=(slurm.SUM_ONCE, slurm.COUNT, "-1")) as job:
            job.wait_for_output(rb"rank \d of 2", 2)
            is_rank = slurm.SUM_ONCE.encode()
            ranks = [pid for pid in job.pids() if jobs.command_line(pid).startswith(is_rank)]
            assert len(ranks) == 2, ranks
            os.kill(ranks[1], signal.SIGKILL)
            status, out, err = job.end()
            job.assert_nothing_left()
        assert status != 0, (out, err)  # srun may end the other rank before that one speaks


tap.run(dict(vars()))
