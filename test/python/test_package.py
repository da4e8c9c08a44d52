# SPDX-License-Identifier: Apache-2.0
"""The installed package: what it needs, what it shows, and that no file of it is forgotten."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import horon
import horon._horon
import pytest
from conftest import clean_environment

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "framework_ops"
EXTENSION = Path(horon._horon.__file__)
HOROVOD_NAMES = """
init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
is_homogeneous mpi_enabled mpi_built gloo_enabled gloo_built nccl_built cuda_built
mpi_threads_supported allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce
grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ allgather allgather_async
grouped_allgather alltoall alltoall_async broadcast broadcast_ broadcast_async broadcast_async_
barrier poll synchronize
DistributedOptimizer broadcast_parameters broadcast_optimizer_state broadcast_object
allgather_object Compression Average Sum Adasum Min Max Product global_process_set
HorovodInternalError
"""


def run(*command):
    return subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, check=True
    ).stdout


def test_extension_is_for_the_stable_abi():
    assert EXTENSION.name == "_horon.abi3.so"


def test_extension_shows_its_entry_alone():
    if not shutil.which("nm"):
        pytest.skip("no nm")
    shown = run("nm", "-D", "--defined-only", str(EXTENSION)).split()[2::3]
    assert shown == ["PyInit__horon"]


def test_extension_needs_no_framework():
    if not shutil.which("readelf"):
        pytest.skip("no readelf")
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", str(EXTENSION)))
    for word in ("torch", "tensorflow", "jax", "cuda", "nccl", "mpi", "python", "stdc++"):
        assert not any(word in library for library in needed), needed


def test_extension_is_never_unloaded():
    if not shutil.which("readelf"):
        pytest.skip("no readelf")
    flags = re.findall(r"\(FLAGS_1\)\s+Flags:(.*)", run("readelf", "-d", str(EXTENSION)))
    assert any("NODELETE" in row for row in flags), flags


def test_package_works_without_numpy_and_torch():
    script = """
import sys
sys.modules["numpy"] = sys.modules["torch"] = None
import horon
horon.init()
assert horon.allreduce(2.0) == 2.0
assert bytes(horon.allgather(b"ab")) == b"ab"
assert horon.broadcast_object({1: 2}) == {1: 2}
print("fine")
"""
    assert run(sys.executable, "-c", script) == "fine\n"


def test_every_source_file_is_built_or_installed():
    listed = set(re.findall(r"'(horon/[^']+\.(?:py|c))'", (SOURCE / "meson.build").read_text()))
    there = {
        str(path.relative_to(SOURCE))
        for pattern in ("*.py", "*.c")
        for path in (SOURCE / "horon").rglob(pattern)
    }
    assert listed == there


def test_public_names_exist():
    assert horon.__version__ == re.search(
        r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M
    ).group(1)
    for name in horon.__all__:
        assert getattr(horon, name) is not None


def test_torch_names_of_horovod_exist():
    pytest.importorskip("torch")
    import horon.torch as hvd
    from horon.torch import mpi_ops

    for name in HOROVOD_NAMES.split():
        assert hasattr(hvd, name), name
    for name in hvd.__all__:
        assert getattr(hvd, name) is not None
    assert mpi_ops.allreduce_async_ is hvd.allreduce_async_ and mpi_ops.size is hvd.size
