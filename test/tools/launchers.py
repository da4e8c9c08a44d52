# SPDX-License-Identifier: Apache-2.0
"""Jobs that the launchers of MPI start: Open MPI's mpirun and MPICH's hydra, and as horonrun's."""

import contextlib
import itertools
import os
import pathlib
import shutil
import tempfile

import jobs
import tap
import tree

# The MPIs that PyPI has, where tools/setup has put them, a folder each.
WHEELS = pathlib.Path(os.environ.get("HORON_TEST_MPI", tree.ROOT / ".venv" / "mpi"))
JOBS = itertools.count(os.getpid())  # of hydra; several of these tests may run at once


def free_ports_of_hydra():
    """Anybody's connection to its port ends mpiexec ("assert (!closed) failed"), and one that the
    system gives may have been another process's, for which others look still. So it gets ports
    below those; and its own, as of two that take the same one at once the second fails ("listen
    error"). Ranks may look for rank 0 there: horon's connect to no stranger on their host."""
    first = 20000 + next(JOBS) % 500 * 10
    return {"MPIEXEC_PORT_RANGE": f"{first}:{first + 9}"}


@contextlib.contextmanager
def folders_of_mpi():
    """What MPI's processes leave behind when they are killed goes with these: folders of Open
    MPI's launch, whose jobs of one user share one in TMPDIR, where two that make it at once fail,
    as ranks that hydra starts do, so it is there before; and memory that the ranks of a job share,
    which else lies in /dev/shm for ever."""
    with (
        tempfile.TemporaryDirectory(prefix="mpi") as own,
        tempfile.TemporaryDirectory(prefix="mpi", dir="/dev/shm") as shared,
    ):
        parts = ("btl_vader", "btl_sm", "osc_sm", "osc_rdma")
        places = {f"OMPI_MCA_{part}_backing_directory": shared for part in parts}
        host = os.uname().nodename.split(".")[0]
        os.mkdir(f"{own}/ompi.{host}.{os.geteuid()}", 0o700)
        yield {"TMPDIR": own, "UCX_POSIX_DIR": shared, **places}


@contextlib.contextmanager
def below_horonrun(program, *words, prefix=(), **env):
    """A job of `horonrun --mpi`, started, whose launcher is @p program."""
    tap.need(None not in words, "the rank program is not built")
    package = {"mpirun": "openmpi-bin", "mpiexec.hydra": "mpich"}.get(program)
    tap.need(shutil.which(program), f"{program} is not installed (Debian: {package})")
    words = ["--mpi", "--mpirun", program, *words]
    with folders_of_mpi() as folders:
        env = {**free_ports_of_hydra(), **env, **folders}
        with jobs.Job(*words, prefix=prefix, env=env) as job:
            yield job


@contextlib.contextmanager
def mpirun(size, *command, options=(), program=None, **env):
    """A job of mpirun's, started. More ranks than cores are welcome."""
    tap.need(None not in command, "the rank program is not built")
    found = program or shutil.which("mpirun")
    program = tap.need(found, "mpirun is not installed (Debian: openmpi-bin)")
    options = ["--bind-to", "none", "--oversubscribe", *options]
    options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words = ["-np", str(size), *options, *command]
    with folders_of_mpi() as folders:
        with jobs.Job(*words, program=program, env={**env, **folders}) as job:
            yield job


@contextlib.contextmanager
def hydra(size, *command, options=(), program=None, **env):
    """Likewise a job of MPICH's."""
    tap.need(None not in command, "the rank program is not built")
    found = program or shutil.which("mpiexec.hydra")
    launcher = tap.need(found, "hydra is not installed (Debian: mpich)")
    words = ["-n", str(size), *options, *command]
    with folders_of_mpi() as folders:
        env = {**free_ports_of_hydra(), **env, **folders}
        with jobs.Job(*words, program=launcher, env=env) as job:
            yield job


# With which each leaves the others alone where a rank is lost.
RECOVERY = {mpirun: "--enable-recovery", hydra: "-disable-auto-cleanup"}
