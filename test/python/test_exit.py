# SPDX-License-Identifier: Apache-2.0
"""A rank that an exception ends: the others say so, and its launcher names it and not them."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import LIMIT_SECONDS, clean_environment

RUNS = 20 if os.environ.get("HORON_TEST_FULL") else 2
# Ranks share standard error: each says what it has to say in one piece.
SCRIPT = """
import sys
import horon
sys.stderr = open(2, "w", buffering=1 << 16, closefd=False)
horon.init()
if horon.rank() == 1:
    raise ZeroDivisionError("boom\\nand more")
horon.allreduce(1.0)
"""
# After "allreduce failed: ", or alone where the operation began when rank 1 had said so.
SAYS_SO = re.compile(
    r"HoronInternalError: (.* )?rank 1 \(.*\) is exiting: ZeroDivisionError: boom$", re.M
)


def run_failing(command, script, status=None):
    """-> what it printed"""
    done = subprocess.run(
        [*command, sys.executable, script],
        env={**clean_environment(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode != 0 and status in (None, done.returncode), done.stdout
    return done.stdout


def fail(command, script):
    out = run_failing(command, script)
    assert SAYS_SO.search(out), out
    return out


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_horonrun_names_the_rank_that_raised(horonrun, script):
    for _ in range(RUNS):
        out = fail([horonrun, "-np", "3"], script)
        assert re.search(r"^horonrun: rank 1 on .* exited with status 1; command", out, re.M), out


def test_mpirun_names_the_rank_that_raised(script):
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None:
        pytest.skip("mpirun of Open MPI is not installed (Debian: openmpi-bin)")
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "3"]
    for _ in range(RUNS):
        # Open MPI's jobs of one user share a folder there, and two that make it at once fail.
        with tempfile.TemporaryDirectory(prefix="mpi") as own:
            out = fail(["env", f"TMPDIR={own}", *command], script)
        assert re.search(r"Process name: \[\[\d+,1\],1\]", out), out


def test_torchrun_names_the_rank_that_raised(script):
    pytest.importorskip("torch")
    beside = Path(sys.executable).with_name("torchrun")
    torchrun = str(beside) if beside.exists() else shutil.which("torchrun")
    if torchrun is None:
        pytest.skip("torchrun is not installed (PyTorch brings it)")
    for _ in range(RUNS):
        out = fail([torchrun, "--standalone", "--nproc-per-node", "3", "--no-python"], script)
        cause = out[out.index("Root Cause") :]
        assert re.search(r"^ *rank +: 1 ", cause, re.M), out


SPEECHLESS = """
import sys
import horon
sys.stderr = open(2, "w", buffering=1 << 16, closefd=False)
class Speechless(Exception):
    def __str__(self):
        raise ValueError("no text")
horon.init()
if horon.rank() == 1:
    raise Speechless
horon.allreduce(1.0)
"""


def test_an_exception_that_has_no_text_is_told_by_its_class(horonrun, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SPEECHLESS)
    out = run_failing([horonrun, "-np", "2"], str(path))
    # the allreduce fails, or is refused if rank 0 knew before it began it
    assert re.search(r"HoronInternalError: .*rank 1 \(.*\) is exiting: Speechless$", out, re.M), out
    assert "atexit" not in out


SEEN_AFTER_SECONDS = 1.5  # more than a rank stays for a launcher that it knows nothing of


def test_a_rank_that_follows_stays_until_the_launcher_has_seen_the_first(script, tmp_path):
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    env = {**clean_environment(), "HORON_SIZE": "2", "HORON_JOB_KEY": "0123456789abcdef" * 2}
    env["HORON_STORE"] = f"file:{store}"
    ranks = [
        subprocess.Popen(
            [sys.executable, script], env={**env, "HORON_RANK": rank}, stderr=subprocess.DEVNULL
        )
        for rank in "01"
    ]
    try:
        os.waitid(os.P_PID, ranks[1].pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is there
        with pytest.raises(subprocess.TimeoutExpired):
            ranks[0].wait(SEEN_AFTER_SECONDS)
        assert ranks[1].wait() == 1
        assert ranks[0].wait(LIMIT_SECONDS) == 1
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


STATUS = """
import sys
import horon
horon.init()
if horon.rank() == 1:
    sys.exit({status})
horon.allreduce(1.0)
"""


def end_with_status(horonrun, tmp_path, status, text, passed_on):
    """-> what horonrun printed, of three ranks of which the second ends with a status"""
    path = tmp_path / "script.py"
    path.write_text(STATUS.format(status=status))
    out = run_failing([horonrun, "-np", "3"], str(path), status=passed_on)
    told = rf"^\[(\d)\]<stderr>:.*HoronInternalError: (?:.* )?rank 1 \(.*\) is exiting: {text}$"
    assert sorted(re.findall(told, out, re.M)) == ["0", "2"], out
    return out


def test_a_status_of_sys_exit_is_told_and_passed_on(horonrun, tmp_path):
    for _ in range(RUNS):
        out = end_with_status(horonrun, tmp_path, 3, "exit status 3", 3)
        assert re.search(r"^horonrun: rank 1 on .* exited with status 3; command", out, re.M), out


def test_a_status_that_the_system_cuts_to_0_is_told_as_it_was(horonrun, tmp_path):
    """Such as os.system() returns of a command that failed: the parent is told of a success."""
    text = "exit status 256, of which the system keeps 0"
    end_with_status(horonrun, tmp_path, 256, text, None)


def rank_ends_well():
    """A script that ends without an exception leaves the job: what the others began still ends."""
    import horon

    horon.init()
    return horon.allreduce(1.0, op=horon.Sum)


def test_no_exception_no_failure(run_ranks):
    assert run_ranks(3, rank_ends_well) == [3.0] * 3


CHILDREN = """
import multiprocessing, sys

def be(rank):
    import horon
    horon.init(rank=rank, size=2)
    if rank == 0:
        {end}
    else:
        horon.allreduce(1.0)

if __name__ == "__main__":
    start = multiprocessing.get_context("{method}").Process
    ranks = [start(target=be, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(ranks[1].exitcode)
"""
ENDS = {
    "return": r"rank 0 \(.*\) has shut down its context",
    "sys.exit(0)": r"rank 0 \(.*\) has shut down its context",
    "sys.exit(3)": r"rank 0 \(.*\) is exiting: SystemExit: 3",
    'raise ZeroDivisionError("boom")': r"rank 0 \(.*\) is exiting: ZeroDivisionError: boom",
}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("end", ENDS)
def test_process_of_multiprocessing_leaves(tmp_path, end, method):
    path = tmp_path / "script.py"
    path.write_text(CHILDREN.format(end=end, method=method))
    (tmp_path / "store").mkdir(mode=0o700)
    store = {"HORON_STORE": f"file:{tmp_path / 'store'}", "HORON_JOB_KEY": secrets.token_hex(16)}
    out = run_failing(["env", *(f"{name}={value}" for name, value in store.items())], str(path), 1)
    assert re.search(ENDS[end], out), out
