# SPDX-License-Identifier: Apache-2.0
"""The installed package: what it needs, what it shows, and that no file of it is forgotten."""

import importlib.metadata
import inspect
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
sys.path.append(str(ROOT / "test" / "drift"))

import hardening  # noqa: E402

SOURCE = ROOT / "framework_ops"
EXTENSION = Path(horon._horon.__file__)

# What horovod.torch 0.28 has, but for elastic, and how its functions are called
HOROVOD_NAMES = """
Adasum Average Compression HorovodInternalError Max Min Product Sum global_process_set mpi_ops
"""
HOROVOD_PLAIN = """
shutdown is_initialized stop_timeline size local_size cross_size rank local_rank cross_rank
is_homogeneous mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built
ddl_built ccl_built cuda_built rocm_built
"""
SET = "process_set=global_process_set"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
COMPRESSION = "compression=Compression.none"
REDUCE = f"average=None, name=None, op=None, {SCALES}, {SET}"
REDUCE_GIVEN = f"average=None, name=None, {COMPRESSION}, op=None, {SCALES}, {SET}"
BROADCAST = f"tensor, root_rank, name=None, {SET}"
HOROVOD_FUNCTIONS = {
    **dict.fromkeys(HOROVOD_PLAIN.split(), ""),
    "init": "comm=None, process_sets=None",
    "check_extension": "ext_name, ext_env_var, pkg_path, *args",
    "start_timeline": "file_path, mark_cycles=False",
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "allreduce": f"tensor, {REDUCE_GIVEN}",
    "allreduce_": f"tensor, {REDUCE}",
    "allreduce_async": f"tensor, {REDUCE}",
    "allreduce_async_": f"tensor, {REDUCE}",
    "grouped_allreduce": f"tensors, {REDUCE_GIVEN}",
    "grouped_allreduce_": f"tensors, {REDUCE}",
    "grouped_allreduce_async": f"tensors, {REDUCE}",
    "grouped_allreduce_async_": f"tensors, {REDUCE}",
    "sparse_allreduce_async": f"tensor, name, op, {SET}",
    "allgather": f"tensor, name=None, {SET}",
    "allgather_async": f"tensor, name=None, {SET}",
    "grouped_allgather": f"tensors, name=None, {SET}",
    "grouped_allgather_async": f"tensors, name=None, {SET}",
    "broadcast": BROADCAST,
    "broadcast_": BROADCAST,
    "broadcast_async": BROADCAST,
    "broadcast_async_": BROADCAST,
    "alltoall": f"tensor, splits=None, name=None, {SET}",
    "alltoall_async": f"tensor, splits=None, name=None, {SET}",
    "reducescatter": f"tensor, name=None, {COMPRESSION}, op=Average, {SET}, {SCALES}",
    "reducescatter_async": f"tensor, name=None, op=Average, {SET}, {SCALES}",
    "grouped_reducescatter": f"tensors, name=None, {COMPRESSION}, op=Average, {SET}, {SCALES}",
    "grouped_reducescatter_async": f"tensors, name=None, op=Average, {SET}, {SCALES}",
    "join": "device=-1",
    "barrier": SET,
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": f"obj, root_rank=0, name=None, {SET}",
    "allgather_object": f"obj, name=None, {SET}",
    "DistributedOptimizer": f"optimizer, named_parameters=None, {COMPRESSION}, "
    "backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, "
    f"groups=None, sparse_as_dense=False, {SET}",
    "SyncBatchNorm": "num_features, eps=1e-5, momentum=0.1, affine=True, "
    f"track_running_stats=True, {SET}",
}


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


def linked_files():
    """The extension, and what else of the wheel is linked: its programs."""
    try:
        files = importlib.metadata.files("horon") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = {Path(file.locate()).resolve() for file in files} | {EXTENSION.resolve()}
    return sorted(path for path in paths if hardening.is_linked(path))


def test_wheel_is_hardened():
    if not (shutil.which("readelf") and shutil.which("nm")):
        pytest.skip("no readelf, or no nm")
    made = linked_files()
    assert EXTENSION.resolve() in made
    for path in made:
        hardening.assert_hardened(path)
        if not hardening.is_sanitized(path):
            hardening.assert_fortified(path)


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
    from horon.torch import mpi_ops, optimizer

    for name in HOROVOD_NAMES.split():
        assert hasattr(hvd, name), name
    for name in hvd.__all__:
        assert getattr(hvd, name) is not None
    assert mpi_ops.allreduce_async_ is hvd.allreduce_async_ and mpi_ops.size is hvd.size
    assert issubclass(optimizer._DistributedAdasumOptimizer, optimizer._DistributedOptimizer)


def test_torch_functions_are_called_as_horovods():
    """What it names comes first, in its order and with its defaults; what is added may be left
    out."""
    pytest.importorskip("torch")
    import horon.torch as hvd

    for name, parameters in HOROVOD_FUNCTIONS.items():
        wanted = inspect.signature(eval(f"lambda {parameters}: None", vars(hvd)))
        given = list(inspect.signature(getattr(hvd, name)).parameters.values())
        for want, there in zip(wanted.parameters.values(), given, strict=False):
            assert (there.name, there.kind) == (want.name, want.kind), name
            if want.default is not inspect.Parameter.empty:
                assert there.default == want.default, (name, want)
        count = len(wanted.parameters)
        assert len(given) >= count, name
        assert all(there.default is not inspect.Parameter.empty for there in given[count:]), name


def test_torch_shows_mpi_ops_at_once():
    pytest.importorskip("torch")
    script = "import horon.torch as hvd; print(hvd.mpi_ops.HorovodInternalError.__name__)"
    assert run(sys.executable, "-c", script) == "HoronInternalError\n"


def test_torch_says_what_there_is_instead_of_elastic():
    pytest.importorskip("torch")
    import horon.torch as hvd

    assert not hasattr(hvd, "elastic")
    for error, statement in (
        (AttributeError, "hvd.elastic.run"),
        (ImportError, "from horon.torch import elastic"),
        (ImportError, "import horon.torch.elastic"),
        (ImportError, "from horon.torch.elastic import TorchState"),
    ):
        with pytest.raises(error, match=r"has no elastic mode yet: .* horonrun --keep-survivors"):
            exec(statement, {"hvd": hvd})
    with pytest.raises(AttributeError, match=r"^module 'horon\.torch' has no attribute 'elastc'"):
        _ = hvd.elastc
