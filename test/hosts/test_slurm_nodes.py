# SPDX-License-Identifier: Apache-2.0
"""Slurm with each node in a network namespace: its ranks are on several hosts, and nothing but
what srun tells says where they meet."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import netns  # noqa: E402
import slurm  # noqa: E402
import tap  # noqa: E402

WHY_NOT = netns.why_not(with_ssh=False)
BESIDE_MPI = os.environ.get("BESIDE_MPI")
# MPI itself loses memory.
LOSES = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0"}
KEY = {"HORON_JOB_KEY": "a key for this test alone"}


@contextlib.contextmanager
def cluster():
    """@return a function that starts a job of srun's there, on both nodes"""
    if WHY_NOT:
        raise tap.Skip(WHY_NOT)
    tap.need(shutil.which("nsenter"), "nsenter is not installed (Debian: util-linux)")
    with netns.Hosts(2, with_ssh=False) as net:
        # Not by `ip netns exec`, which hides the control groups that slurmd looks for.
        insides = [("nsenter", f"--net=/run/netns/{name}") for name in net.names]
        # A node is called by its address, as there is no name server in a namespace.
        with slurm.cluster(net.addresses, net.addresses, insides) as env:

            def srun(way, *words, **more):
                if way == "pmix":
                    slurm.need_pmix(env, insides[0])
                options = (f"--mpi={way}", "-N2", *words)
                return slurm.run(env, *options, inside=insides[0], **more)

            yield srun


def end_well(job):
    status, out, err = job.end()
    assert status == 0, (out, err)
    places = sorted(re.findall(r"^rank (\d) of 4, local (\d) of 2, hosts 2$", out, re.M))
    assert places == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")], (out, err)
    return err


def test_srun_ranks_of_two_hosts_meet_at_the_first_node():
    with cluster() as srun:
        for way in ("none", "pmi2"):
            with srun(way, "-n4", **KEY) as job:
                end_well(job)


def test_srun_ranks_of_two_hosts_meet_and_get_a_key_by_pmix():
    with cluster() as srun, srun("pmix", "-n4", HORON_LOG_LEVEL="debug") as job:
        assert "as rank 0 said through the launcher" in end_well(job)


def test_srun_ranks_of_two_hosts_meet_and_get_a_key_by_mpi():
    """Slurm's list of nodes says where they meet, but neither it nor the user tells a key."""
    tap.need(BESIDE_MPI, "the rank program is not built (BESIDE_MPI)")
    tap.need(shutil.which("mpirun.openmpi"), "Open MPI is not installed (Debian: openmpi-bin)")
    command = (BESIDE_MPI, "libmpi.so.40", "iujsbslf")
    with cluster() as srun:
        # Both nodes have this machine's name and files, where Open MPI's memory of both would meet.
        env = {"OMPI_MCA_btl": "self,tcp", "HORON_LOG_LEVEL": "debug", **LOSES}
        with srun("pmix", "-n4", command=command, **env) as job:
            status, out, err = job.end()
    assert status == 0 and out.count("sum 4") == 8, (out, err)
    assert err.count("as rank 0 said through MPI") == 4, err
    assert err.count("joined 4 ranks on 2 hosts") == 4, err


def test_srun_ranks_of_two_hosts_without_a_key_are_told():
    with cluster() as srun, srun("none", "-n4", HORON_START_TIMEOUT="5s") as job:
        status, out, err = job.end()
    assert status != 0 and "HORON_JOB_KEY" in err, (out, err)


def test_srun_rank_of_another_host_that_is_killed_is_named():
    # What rank 0 says goes to a file, as srun may drop it when it ends the step.
    with tempfile.NamedTemporaryFile() as said, cluster() as srun:
        words = f"exec {slurm.SUM_ONCE} {slurm.COUNT} -1 2> {said.name}.$SLURM_PROCID"
        with srun("none", "-n2", command=("sh", "-c", words), **KEY) as job:
            job.wait_for_output(rb"rank \d of 2", 2)
            is_rank = slurm.SUM_ONCE.encode()
            ranks = {
                re.search(rb"SLURM_PROCID=(\d)", jobs.environment_of(pid))[1]: pid
                for pid in job.pids()
                if jobs.command_line(pid).startswith(is_rank)
            }
            os.kill(ranks[b"1"], signal.SIGKILL)
            status, out, err = job.end()
        logs = [pathlib.Path(f"{said.name}.{rank}") for rank in range(2)]
        told = logs[0].read_text()
        for log in logs:
            log.unlink()
    assert status != 0, (out, err)
    assert "rank 1 (" in told and "the connection without leaving" in told, (told, err)


tap.run(dict(vars()))
