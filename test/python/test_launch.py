# SPDX-License-Identifier: Apache-2.0
"""Scripts as users start them: with horonrun, with a variable or two, alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_SECONDS, clean_environment

EXAMPLE = Path(__file__).parents[2] / "framework_ops" / "examples" / "torch_mnist.py"
SCRIPT = """
import horon
horon.init()
total = horon.allreduce(horon.rank() + 1, op=horon.Sum)
print("rank", horon.rank(), "of", horon.size(), "local", horon.local_rank(), "total", total)
"""


def start(command, cores=None, **variables):
    """cores: those that the command may use; threads of torch's that share one do not spin."""
    done = subprocess.run(
        command,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS if cores is None else 4 * LIMIT_SECONDS,
        preexec_fn=cores and (lambda: os.sched_setaffinity(0, cores)),
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


def test_unhandled_exception_ends_the_job(horonrun):
    script = """
import horon
horon.init()
if horon.rank() == 1:
    raise RuntimeError("out of luck")
horon.allreduce(1.0)
"""
    done = subprocess.run(
        [horonrun, "-np", "2", sys.executable, "-c", script],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert "out of luck" in done.stdout + done.stderr


def accuracy(out):
    return float(re.search(r"test accuracy ([\d.]+) %", out).group(1))


def one_core():
    return {min(os.sched_getaffinity(0))}


def test_example_alone():
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    assert accuracy(start([sys.executable, str(EXAMPLE)], one_core())) > 95


def test_example_on_two_ranks_equals_one_process(horonrun):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    command = [horonrun, "-np", "2", sys.executable, str(EXAMPLE), "--epochs", "8"]
    out = start(command, one_core())
    assert accuracy(out) > 80
    away = float(re.search(r"differ by at most ([\d.e+-]+)", out).group(1))
    assert away < 1e-2
    assert "times as fast" in out and "waiting for communication" in out
    assert re.search(r"loss [\d.]+ +\d+ images/s +waiting", out)


@pytest.mark.parametrize("n", [1, 2])
def test_ranks_of_the_example_share_the_cores(horonrun, n):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    cores = len(os.sched_getaffinity(0))
    share = max(1, cores // n)
    command = [horonrun, "-np", str(n), sys.executable, str(EXAMPLE), "--epochs", "1"]
    out = start(command, os.sched_getaffinity(0))
    assert re.search(
        rf"{n} ranks? on 1 host, torch with {share} threads? a rank of {cores} cor", out
    )
    assert (f"one process of {cores} thread" in out) == (n > 1), out
    assert (f"{n} ranks of {share} thread" in out) == (n > 1), out
