# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of two nodes, both of them this machine, with daemons, ports and folders of its own:
at its loopback, or in two network namespaces."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

import jobs
import tap

SUM_ONCE = os.environ.get("SUM_ONCE")
COUNT = "1009"
# The first node has a name that can be found, where ranks meet that have several.
NODES = ("127.0.0.1", "n2")
START_S = 15  # a machine on which the daemons need longer has no such cluster
CONFIGURATION = """\
ClusterName=horon
SlurmctldHost={host}({address})
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


def configure(folder, nodes, addresses):
    host = socket.gethostname().partition(".")[0]
    port, *ports = free_ports(1 + len(nodes))
    text = CONFIGURATION.format(
        host=host, address=addresses[0], port=port, folder=folder, nodes=",".join(nodes)
    )
    for node, address, node_port in zip(nodes, addresses, ports, strict=True):
        (folder / f"tmp.{node}").mkdir()
        text += (
            f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={node_port} "
            f"CPUs={os.cpu_count()} State=UNKNOWN\n"
        )
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(text)


@contextlib.contextmanager
def cluster(nodes=NODES, addresses=("127.0.0.1",) * 2, insides=((),) * 2):
    """@param insides the words that run a program where the node is; the controller is at the first
    @return the environment of its users"""
    tap.need(SUM_ONCE, "the rank program is not built (SUM_ONCE)")
    tap.need(os.geteuid() == 0, "Slurm's daemons need root")
    packages = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
    for name, package in packages.items():
        tap.need(shutil.which(name), f"{name} is not installed (Debian: {package})")
    with tempfile.TemporaryDirectory(prefix="slurm") as name:
        folder = pathlib.Path(name)
        configure(folder, nodes, addresses)
        env = {"SLURM_CONF": str(folder / "slurm.conf")}

        def idle_nodes():
            shown = subprocess.run(
                [*insides[0], "sinfo", "-h", "-N", "-o", "%T"],
                env={**jobs.CLEAN, **env},
                capture_output=True,
            )
            return shown.stdout.split().count(b"idle")

        with contextlib.ExitStack() as daemons:
            daemon_words = [(insides[0], "slurmctld")]
            daemon_words += [
                (inside, "slurmd", "-N", node) for inside, node in zip(insides, nodes, strict=True)
            ]
            for inside, program, *words in daemon_words:
                job = jobs.Job(*words, "-D", program=program, env=env, prefix=inside)
                daemon = daemons.enter_context(job)
                daemons.callback(daemon.process.wait)
                daemons.callback(daemon.process.terminate)
            try:
                jobs.until(lambda: idle_nodes() == len(nodes), "the nodes were there", START_S)
            except AssertionError:
                said = "".join(log.read_text() for log in folder.glob("*.log"))
                fatal = re.findall("fatal: .*|error: slurmd .*", said) or "no word"
                tap.need(False, f"Slurm's daemons do not serve here: {fatal}")
            yield env


def run(env, *options, command=(SUM_ONCE, COUNT), inside=(), **more):
    return jobs.Job(*options, *command, program="srun", prefix=inside, env={**env, **more})


def need_pmix(env, inside=()):
    shown = {"env": {**jobs.CLEAN, **env}, "capture_output": True}
    ways = subprocess.run([*inside, "srun", "--mpi=list"], **shown)
    tap.need(b"pmix" in ways.stdout + ways.stderr, "this Slurm has no PMIx")
