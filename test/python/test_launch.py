# SPDX-License-Identifier: Apache-2.0
"""Scripts as users start them: with horonrun, with a variable or two, alone."""

import contextlib
import os
import re
import runpy
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from ctypes.util import find_library
from pathlib import Path

import pytest
from conftest import LIMIT_SECONDS, clean_environment

EXAMPLE = Path(__file__).parents[2] / "framework_ops" / "examples" / "torch_mnist.py"
# A whole training; threads of torch's wait for each other many times a step.
EXAMPLE_SECONDS = 4 * LIMIT_SECONDS
# Each line is one string: torchrun gives its ranks one unbuffered output, and print() writes each
# of its arguments by itself.
SCRIPT = """
import horon
horon.init()
total = horon.allreduce(horon.rank() + 1, op=horon.Sum)
print(f"rank {horon.rank()} of {horon.size()} local {horon.local_rank()} total {total}")
"""
TORCH_SCRIPT = """
import torch
import torch.distributed as dist
import horon.torch as hvd
mean = hvd.allreduce(torch.full((2,), hvd.rank() + 1.0))
dist.init_process_group("gloo")
total = torch.full((1,), hvd.rank() + 1.0)
dist.all_reduce(total)
dist.destroy_process_group()
print("mean {} {} and {}".format(*mean.tolist(), total.item()))
"""


def start(command, limit=LIMIT_SECONDS, **variables):
    done = subprocess.run(
        command,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_script_alone_is_a_world_of_one():
    assert "rank 0 of 1 local 0 total 1" in start([sys.executable, "-c", SCRIPT])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_script_under_horonrun(horonrun, n):
    out = start([horonrun, "-np", str(n), sys.executable, "-c", SCRIPT])
    for rank in range(n):
        assert f"rank {rank} of {n} local {rank} total {n * (n + 1) // 2}" in out


# Three jobs of a launch of five, of which rank 4 has none; then that of all, and these once more.
SELECTIONS_SCRIPT = """
import os
import horon
import numpy
started = int(os.environ.get("RANK", os.environ.get("HORON_RANK")))
selections = {0: [0, 2], 2: [0, 2], 3: [3, 1], 1: [3, 1]}
for turn in range(2):
    if started == 4:
        try:
            horon.init(comm=[0, 2])
        except ValueError as error:
            print(f"refused: {error}")
    else:
        selection = selections[started]
        sets = [horon.ProcessSet([1])]
        horon.init(comm=selection, process_sets=sets)
        assert (horon.rank(), horon.size()) == (selection.index(started), 2)
        assert horon.allreduce(started, op=horon.Sum) == sum(selection)
        assert horon.broadcast(started, 1) == selection[1]
        assert sets[0].included() == (started == selection[1])
        horon.shutdown()
    if turn == 0 and "HORON_STORE" in os.environ:
        horon.init(comm=range(5) if started % 2 else None)
        assert (horon.rank(), horon.size()) == (started, 5)
        assert horon.allreduce(started, op=horon.Sum) == 10
        horon.shutdown()
horon.init(comm=[numpy.int64(started)])
assert (horon.rank(), horon.size()) == (0, 1)
print("done", started)
"""


def test_selections_of_a_launch_are_jobs_of_their_own(horonrun):
    out = start([horonrun, "-np", "5", sys.executable, "-c", SELECTIONS_SCRIPT])
    assert all(f"done {rank}" in out for rank in range(5))
    assert out.count("refused: rank 4 of the 5 that were started is not among the ranks") == 2


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "3"),
        ([3, 9], "3,9"),
        (range(4, 8), "4-7"),
        (range(0, 1000, 2), "0-998:2"),
        ([7, 5, 5], "7,5,5"),
        ([0, 5, 6, 7, 3, 2], "0,5,6-7,3,2"),
    ],
)
def test_selection_of_ranks_at_equal_steps_is_a_short_text(ranks, text):
    from horon import _selection

    assert _selection.ranks_setting(ranks) == {"RANKS": text}


def rank_selection_at_a_store_of_a_rank():
    """Rank 1 joins nothing; the first of the list serves."""
    import horon

    started = int(os.environ["HORON_RANK"])
    if started == 1:
        return None
    horon.init(comm=[2, 0])
    return horon.rank(), horon.allgather(started)


def test_selection_meets_at_a_store_that_its_first_rank_serves(run_ranks):
    want = [2, 0]
    assert run_ranks(3, rank_selection_at_a_store_of_a_rank) == [(1, want), None, (0, want)]


def test_selections_of_a_launch_by_a_variable(horonrun):
    script = "[ $HORON_RANK = 0 ] || exec env HORON_RANKS=2,1 {} -c '{}'"
    command = script.format(sys.executable, SCRIPT)
    out = start([horonrun, "-np", "3", "sh", "-c", command])
    assert "rank 0 of 2 local 0 total 3" in out and "rank 1 of 2 local 1 total 3" in out


def test_selections_of_a_launch_whose_address_is_derived():
    """As torchrun's: one finds the port taken, and its other rank finds it at the next."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    names = {"WORLD_SIZE": "5", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    names["HORON_JOB_KEY"] = secrets.token_hex(16)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SELECTIONS_SCRIPT],
            env={**clean_environment(), **names, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(5)
    ]
    try:
        outs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [out.splitlines()[-1] for out in outs] == [f"done {rank}" for rank in range(5)]


def processes_with(mark):
    """Processes whose environment holds @p mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def kill_all_with(mark):
    """@return those that were killed"""
    found = processes_with(mark)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def test_script_under_torchrun(tmp_path):
    """With torch.distributed in the same processes, which uses the launcher's port, too."""
    pytest.importorskip("torch")
    beside = Path(sys.executable).with_name("torchrun")
    torchrun = str(beside) if beside.exists() else shutil.which("torchrun")
    if torchrun is None:
        pytest.skip("torchrun is not installed (PyTorch brings it)")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + TORCH_SCRIPT)
    mark = f"TEST_MARK={uuid.uuid4().hex}"
    command = [torchrun, "--standalone", "--nproc-per-node", "2", str(script)]
    try:
        out = start(command, OMP_NUM_THREADS="1", TEST_MARK=mark.partition("=")[2])
    finally:
        left = kill_all_with(mark)
    assert not left
    for rank in range(2):
        assert f"rank {rank} of 2 local {rank} total 3" in out, out
    assert out.count("mean 1.5 1.5 and 3.0") == 2, out


def run_script(horonrun, script, *options):
    """Two ranks of it."""
    return subprocess.run(
        [horonrun, "-np", "2", *options, sys.executable, "-c", script],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def test_unhandled_exception_ends_the_job(horonrun):
    script = """
import horon
horon.init()
if horon.rank() == 1:
    raise RuntimeError("out of luck")
horon.allreduce(1.0)
"""
    done = run_script(horonrun, script)
    assert done.returncode != 0
    assert "out of luck" in done.stdout + done.stderr


def test_what_a_rank_lacks_for_too_long_ends_the_job(horonrun):
    """Each of two ranks waits for ever for a tensor that the other one does not have."""
    script = "import horon; horon.init(); horon.allreduce(1.0, name='ab'[horon.rank()])"
    done = run_script(horonrun, script, "--stall-check-shutdown-time-seconds", "1")
    assert done.returncode != 0
    told = (
        r"rank (\d) .* ends the job, as HORON_STALL_SHUTDOWN_TIME says: allreduce 'allreduce.[ab]' "
    )
    assert re.search(told + r"has waited for \d+ s: .*waiting for rank (?!\1)\d ", done.stderr)


def accuracy(out):
    return float(re.search(r"test accuracy ([\d.]+) %", out).group(1))


def rank_example(*arguments):
    """All ranks share one core: threads of torch's that share one do not spin."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.argv = [str(EXAMPLE), *arguments]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def output_of_example(start_ranks, n, *arguments):
    """As of `horonrun -np n`, in ranks that need not import torch anew."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn.datasets")
    ranks = start_ranks(n, rank_example, *arguments)
    ranks.results(EXAMPLE_SECONDS)
    return ranks.logs()


@pytest.mark.timeout(EXAMPLE_SECONDS + LIMIT_SECONDS)
def test_example_learns(start_ranks):
    assert accuracy(output_of_example(start_ranks, 1)) > 95


@pytest.mark.timeout(EXAMPLE_SECONDS + LIMIT_SECONDS)
def test_example_on_two_ranks_equals_one_process(start_ranks):
    out = output_of_example(start_ranks, 2, "--epochs", "8")
    assert accuracy(out) > 80
    away = float(re.search(r"differ by at most ([\d.e+-]+)", out).group(1))
    assert away < 1e-2
    assert "times as fast" in out and "waiting for communication" in out
    assert re.search(r"loss [\d.]+ +\d+ images/s +waiting", out)


@pytest.mark.timeout(EXAMPLE_SECONDS + LIMIT_SECONDS)
@pytest.mark.parametrize("n", [1, 2])
def test_ranks_of_the_example_share_the_cores(horonrun, n):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // n)
    launcher = [horonrun, "-np", str(n)] if n > 1 else []
    command = [*launcher, sys.executable, str(EXAMPLE), "--epochs", "1", "--batch", "256"]
    out = start(command, EXAMPLE_SECONDS)
    assert "test accuracy" in out
    assert re.search(
        rf"{n} ranks? on 1 host, torch with {share} threads? a rank of {cores} cor", out
    )
    assert (f"one process of {cores} thread" in out) == (n > 1), out
    assert (f"{n} ranks of {share} thread" in out) == (n > 1), out


FIRST_MPI = "from mpi4py import MPI\nimport horon, torch\nhoron.init()\n"
FIRST_HORON = "import horon, torch\nhoron.init()\nfrom mpi4py import MPI\n"
# Open MPI's processes of one user share a folder there, and two that make it at once fail.
OWN_FOLDER = """
import os, pathlib
own = pathlib.Path(os.environ["TMPDIR"], os.environ["HORON_RANK"])
own.mkdir()
os.environ["TMPDIR"] = str(own)
"""
BOTH = """
both = horon.allreduce(1, op=horon.Sum), MPI.COMM_WORLD.allreduce(torch.ones(1).item())
print(f"rank {horon.rank()}: horon {both[0]}, MPI {both[1]}")
"""


@pytest.mark.parametrize("begin", [FIRST_MPI, FIRST_HORON], ids=["mpi first", "horon first"])
def test_script_beside_torch_and_mpi4py(horonrun, begin):
    """libev's shared object has names of libevent, which Open MPI uses: they must not meet."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if not (find_library("mpi") or find_library("mpich")):
        pytest.skip("there is no MPI library for mpi4py")
    with tempfile.TemporaryDirectory(prefix="mpi") as folder:
        ranks = [horonrun, "-np", "2", sys.executable, "-c", OWN_FOLDER + begin + BOTH]
        out = start(["env", f"TMPDIR={folder}", *ranks])
    for rank in range(2):
        assert f"rank {rank}: horon 2, MPI 1.0" in out
