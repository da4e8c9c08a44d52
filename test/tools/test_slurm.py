# SPDX-License-Identifier: Apache-2.0
"""Ranks that Slurm's srun has started find each other: a real cluster of two nodes, both of them
this machine, with daemons, ports and folders of its own."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import tap  # noqa: E402

SUM_ONCE = os.environ.get("SUM_ONCE")
COUNT = "1009"
# The first node has a name that can be found, where ranks meet that have several.
NODES = ("127.0.0.1", "n2")
START_S = 15  # a machine on which the daemons need longer has no such cluster
CONFIGURATION = """\
ClusterName=horon
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/node.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
MpiDefault=none
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16
"""


def free_ports(count):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def configure(folder):
    host = socket.gethostname().partition(".")[0]
    port, *ports = free_ports(1 + len(NODES))
    text = CONFIGURATION.format(host=host, port=port, folder=folder, nodes=",".join(NODES))
    for node, node_port in zip(NODES, ports, strict=True):
        (folder / f"tmp.{node}").mkdir()
        text += (
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} "
            f"CPUs={os.cpu_count()} State=UNKNOWN\n"
        )
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(text)


@contextlib.contextmanager
def cluster():
    """@return the environment of its users"""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    tap.need(os.geteuid() == 0, "Slurm's daemons need root")
    packages = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
    for name, package in packages.items():
        tap.need(shutil.which(name), f"{name} is not installed (Debian: {package})")
    with tempfile.TemporaryDirectory(prefix="slurm") as name:
        folder = pathlib.Path(name)
        configure(folder)
        env = {"SLURM_CONF": str(folder / "slurm.conf")}

        def idle_nodes():
            shown = subprocess.run(
                ["sinfo", "-h", "-N", "-o", "%T"], env={**jobs.CLEAN, **env}, capture_output=True
            )
            return shown.stdout.split().count(b"idle")

        with contextlib.ExitStack() as daemons:
            for words in (["slurmctld"], *(["slurmd", "-N", node] for node in NODES)):
                job = jobs.Job(*words[1:], "-D", program=words[0], env=env)
                daemon = daemons.enter_context(job)
                daemons.callback(daemon.process.wait)
                daemons.callback(daemon.process.terminate)
            try:
                jobs.until(lambda: idle_nodes() == len(NODES), "the nodes were there", START_S)
            except AssertionError:
                said = "".join(log.read_text() for log in folder.glob("*.log"))
                fatal = re.findall("fatal: .*", said) or "no word"
                tap.need(False, f"Slurm's daemons do not serve here: {fatal}")
            yield env


def run(env, *options, command=(SUM_ONCE, COUNT), **more):
    return jobs.Job(*options, *command, program="srun", env={**env, **more})


def test_srun_ranks_of_one_node_meet_without_a_setting():
    with cluster() as env:
        for way in ("none", "pmi2"):
            with run(env, f"--mpi={way}", "-N1", "-n2", "-w", NODES[1]) as job:
                job.end_well(2)


def test_srun_ranks_of_two_nodes_meet_at_the_first():
    with cluster() as env:
        for way in ("none", "pmi2"):
            with run(env, f"--mpi={way}", "-N2", "-n3") as job:
                job.end_well(3)


def test_srun_ranks_of_two_nodes_meet_by_pmix():
    with cluster() as env:
        shown = {"env": {**jobs.CLEAN, **env}, "capture_output": True}
        ways = subprocess.run(["srun", "--mpi=list"], **shown)
        tap.need(b"pmix" in ways.stdout + ways.stderr, "this Slurm has no PMIx")
        for size in (2, 3):
            with run(env, "--mpi=pmix", "-N2", f"-n{size}", HORON_LOG_LEVEL="debug") as job:
                status, out, err = job.end()
            assert status == 0, (out, err)
            assert len(re.findall(rf"^rank \d of {size}, ", out, re.M)) == size, (out, err)
            assert "as rank 0 said through the launcher" in err, err


def test_srun_rank_that_is_killed_ends_the_job():
    with cluster() as env:
        with run(env, "-N2", "-n2", "-K", command=(SUM_ONCE, COUNT, "-1")) as job:
            job.wait_for_output(rb"rank \d of 2", 2)
            is_rank = SUM_ONCE.encode()
            ranks = [pid for pid in job.pids() if jobs.command_line(pid).startswith(is_rank)]
            assert len(ranks) == 2, ranks
            os.kill(ranks[1], signal.SIGKILL)
            status, out, err = job.end()
            job.assert_nothing_left()
        assert status != 0, (out, err)  # srun may end the other rank before that one speaks


tap.run(dict(vars()))
