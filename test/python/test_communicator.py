# SPDX-License-Identifier: Apache-2.0
"""Jobs of the ranks of a communicator of MPI, with what Debian or PyPI has of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_SECONDS, clean_environment

pytest.importorskip("mpi4py", reason="mpi4py is not installed (pip install mpi4py)")

# The launcher, and the library that mpi4py shall load, by what name it asks for.
FAMILIES = {
    "Open MPI": (
        "mpirun",
        "libmpi.so.40",
        "libmpi.so.40",
        ["--oversubscribe", "--bind-to", "none"],
    ),
    "MPICH": ("mpiexec.hydra", "libmpich.so.12", "libmpi.so.12", []),
}

# Five ranks: {0, 2, 4} in reverse and {1, 3} are two jobs at a time, twice; rank 3 takes a job of
# its own then; and at last all are one, of a communicator that is freed at once.
SCRIPT = """
from mpi4py import MPI
import os
import numpy
import horon
world = MPI.COMM_WORLD
me = world.rank
half = world.Split(me % 2, -me if me % 2 == 0 else me)
for turn in range(2):
    horon.init(comm=half)
    horon.init(comm=half)
    assert (horon.rank(), horon.size()) == (half.rank, half.size)
    assert horon.local_size() == half.size
    try:
        horon.init(comm=world)
        raise SystemExit("another communicator is taken")
    except ValueError as error:
        assert "comm is another communicator" in str(error), error
    for count in 1, 1009, 300007:
        mine = numpy.full(count, me + 1.0)
        total = horon.allreduce(mine, op=horon.Sum, name="one")
        assert (total == (9.0 if me % 2 == 0 else 6.0)).all(), total
    first = horon.broadcast_object(me, root_rank=0)
    assert first == (4 if me % 2 == 0 else 1), first
    half.Barrier()
    horon.shutdown()
for none, why in ((MPI.COMM_NULL, "MPI_COMM_NULL"), (half, "rank and size")):
    try:
        horon.init(comm=none, **({} if none == MPI.COMM_NULL else {"rank": 0, "size": 1}))
        raise SystemExit("it is taken")
    except ValueError as error:
        assert why in str(error), error
if me == 3:
    horon.init(comm=MPI.COMM_SELF)
    assert horon.size() == 1 and horon.allreduce(3.0) == 3.0
    horon.shutdown()
copy = world.Dup()
horon.init(comm=copy)
copy.Free()
assert horon.allreduce(me + 1.0, op=horon.Sum) == 15.0 and horon.size() == 5
horon.shutdown()
os.write(1, b"rank %d is through\\n" % me)
"""

# One rank of three does not come: the others miss it. It stays as long as they need mpirun.
MISSING_SCRIPT = """
from mpi4py import MPI
import os
import horon
me = MPI.COMM_WORLD.rank
if me != GONE:
    try:
        horon.init(comm=MPI.COMM_WORLD, settings={"START_TIMEOUT": "1s"})
    except (TimeoutError, horon.HorovodInternalError) as error:
        os.write(1, b"missed: %s\\n" % str(error).encode())
    MPI.COMM_WORLD.send("over", dest=GONE)
else:
    MPI.COMM_WORLD.recv()
    MPI.COMM_WORLD.recv()
os._exit(0)
"""

# Two jobs of two ranks. One rank of the first is killed: its peer is told, and the second goes on.
KILL_SCRIPT = """
from mpi4py import MPI
import os
import pathlib
import signal
import horon
me = MPI.COMM_WORLD.rank
horon.init(comm=MPI.COMM_WORLD.Split(me % 2, me))
told = pathlib.Path(os.environ["FOLDER"], "told")
assert horon.allreduce(me + 1.0, op=horon.Sum) == (4.0 if me % 2 == 0 else 6.0)
if me == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if me == 0:
    try:
        while True:
            horon.allreduce(1.0, name="one")
    except horon.HorovodInternalError as error:
        told.write_text(str(error))
else:
    while horon.allreduce(float(told.exists()), op=horon.Max, name="other") == 0.0:
        pass
    horon.shutdown()  # the other one may not be through yet
os.write(1, b"rank %d is through\\n" % me)
os._exit(0)
"""


# Rank 1 ends otherwise than by MPI, whose end mpi4py keeps until all else of Python is done; the
# others end by what they hear of it. `last` runs behind horon's own handler, before MPI_Finalize().
END_SCRIPT = """
import atexit
import os
import sys
def last():
    os.write(2, b"MPI_Finalize() of rank %d comes\\n" % me)
    with open(os.environ.get("CAME", os.devnull), "a") as came:
        came.write(str(me))
atexit.register(last)
from mpi4py import MPI
import horon
horon.init()
me = horon.rank()
horon.allreduce(1.0)
if me == 1:
    END
while True:
    horon.allreduce(1.0)
"""


def run(family, folder, size, script, *options, python=(), **variables):
    """@param options, python  the launcher's, and Python's -> (status, output, errors)"""
    launcher, file, name, words = FAMILIES[family]
    program = shutil.which(launcher)
    library = next(Path("/usr/lib").glob(f"*/{file}"), None)
    if not program or not library:
        pytest.skip(f"{launcher} or {file} is not installed")
    (folder / name).symlink_to(library)  # Debian's MPICH has a name of its own
    env = {
        **clean_environment(),
        "MPI4PY_LIBMPI": str(folder / name),
        "LD_LIBRARY_PATH": str(folder),
        "HORON_STALL_WARN": "0",
        **variables,
    }
    if os.geteuid() == 0 and family == "Open MPI":
        words = [*words, "--allow-run-as-root"]
    done = subprocess.run(
        [program, *words, *options, "-n", str(size), sys.executable, *python, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("backend", ["native", "mpi"])
@pytest.mark.parametrize("family", FAMILIES)
def test_disjoint_communicators_are_jobs_at_the_same_time(family, backend, tmp_path):
    status, out, err = run(
        family, tmp_path, 5, SCRIPT, HORON_BACKEND=backend, HORON_LOG_LEVEL="info"
    )
    assert status == 0, out + err
    assert out.count(" is through") == 5, out + err
    used = [err.count(f"backend mpi is connected, among {n} ranks") for n in (2, 3, 5)]
    assert all(used) if backend == "mpi" else not any(used), (used, err)


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_of_a_communicator_share_a_key_that_the_user_gave(family, tmp_path):
    status, out, err = run(family, tmp_path, 5, SCRIPT, HORON_JOB_KEY="a key for this test alone")
    assert status == 0, out + err
    assert out.count(" is through") == 5, out + err


@pytest.mark.parametrize("backend", ["native", "mpi"])
def test_a_killed_rank_fails_the_job_of_its_communicator_alone(backend, tmp_path):
    variables = {"HORON_BACKEND": backend, "FOLDER": str(tmp_path)}
    _, out, err = run("Open MPI", tmp_path, 4, KILL_SCRIPT, "--enable-recovery", **variables)
    for rank in (0, 1, 3):
        assert f"rank {rank} is through" in out, out + err
    assert re.search(r"rank 1 \(.*\)", (tmp_path / "told").read_text()), out + err


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ("1", "of 3 ranks, rank 1 never came"),
        ("0", "not all of the 3 processes of the communicator (MPI_COMM_WORLD, if "),
    ],
)
def test_a_rank_of_a_communicator_that_does_not_come_is_missed(gone, told, tmp_path):
    _, out, err = run("Open MPI", tmp_path, 3, MISSING_SCRIPT.replace("GONE", gone))
    assert out.count("missed: ") == 2, out + err
    assert told in out, out + err


@pytest.mark.parametrize("backend", ["native", "mpi"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_whose_end_is_an_exception_waits_for_nobody_beside_mpi(family, backend, tmp_path):
    """Each other one stays for its end, which the launcher shall see first: behind MPI_Finalize(),
    which waits for all of them."""
    script = END_SCRIPT.replace("END", "raise ValueError('the dog ate it')")
    status, out, err = run(family, tmp_path, 3, script, HORON_BACKEND=backend)
    assert status != 0, out + err
    assert err.count("is exiting: ValueError: the dog ate it") == 2, out + err
    for rank in range(3):
        before = err.split(f"MPI_Finalize() of rank {rank} comes")
        assert len(before) == 2, out + err
        assert not re.search(rf"horon rank {rank} .*stays for up to", before[0]), out + err


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rank_that_failed_is_the_first_to_abort_mpi(family, tmp_path):
    """All whose script an exception ends call MPI_Abort(), and the launcher blames the first. It
    kills all then, and often loses what that one has said of it."""
    script = END_SCRIPT.replace("END", "raise ValueError('the dog ate it')")
    came = tmp_path / "came"
    status, out, err = run(family, tmp_path, 3, script, CAME=str(came), python=["-m", "mpi4py"])
    told = r"(?:MPI_ABORT was invoked on rank|MPI_Abort\(.* process) (\d)"
    assert status != 0 and came.read_text().startswith("1"), out + err
    assert set(re.findall(told, out + err)) <= {"1"}, out + err


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_that_exits_leaves_the_job_before_mpi_ends(family, status, tmp_path):
    """The others would wait for it, and it for them in MPI_Finalize()."""
    script = END_SCRIPT.replace("END", f"sys.exit({status})")
    ended, out, err = run(family, tmp_path, 3, script)
    assert ended != 0, out + err
    assert err.count("rank 1 (") >= 2 and "has shut down its context" in err, out + err
