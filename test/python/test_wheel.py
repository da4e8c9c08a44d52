# SPDX-License-Identifier: Apache-2.0
"""`pip install .` as users run it: isolated, from a copy of the tree, with no framework present."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import clean_environment, needs_full

ROOT = Path(__file__).parents[2]
PARTS = ["LICENSE", "meson.build", "meson_options.txt", "pyproject.toml"]
ROOMS = ["benchmarks", "collectives", "framework_ops", "include", "runtime", "tools"]
UNREACHABLE = re.compile(
    r"connection broken|failed to establish a new connection|network is unreachable|timed out"
    r"|name resolution|proxyerror",
    re.I,
)
BUILD_SECONDS = 480
SCRIPT = """
import importlib.util, sys
import horon
for name in ("numpy", "torch", "tensorflow", "jax"):
    assert importlib.util.find_spec(name) is None, name
assert sys.prefix != sys.base_prefix and horon.__file__.startswith(sys.prefix), horon.__file__
horon.init()
assert (horon.rank(), horon.size()) == (0, 1)
assert horon.allreduce(2.0, op=horon.Sum) == 2.0
assert horon.broadcast_object({1: 2}) == {1: 2}
print("fine")
"""


def run(*command, limit=60):
    env = {name: value for name, value in clean_environment().items() if name != "PYTHONPATH"}
    env.update(PIP_RETRIES="1", PIP_TIMEOUT="15", PIP_DISABLE_PIP_VERSION_CHECK="1")
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=limit, check=False,
    )  # fmt: skip


def copy_tree(target):
    target.mkdir()
    for part in PARTS:
        shutil.copy(ROOT / part, target / part)
    for room in ROOMS:
        shutil.copytree(ROOT / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.timeout(BUILD_SECONDS + 100)
@needs_full
def test_one_wheel_for_the_stable_abi_is_built_in_isolation(tmp_path):
    python = tmp_path / "empty" / "bin" / "python"
    done = run(sys.executable, "-m", "venv", python.parents[1])
    assert done.returncode == 0, done.stdout
    copy_tree(tmp_path / "tree")
    wheels = tmp_path / "wheels"
    done = run(
        python, "-m", "pip", "wheel", "--no-deps", "-w", wheels, tmp_path / "tree",
        limit=BUILD_SECONDS,
    )  # fmt: skip
    if done.returncode and UNREACHABLE.search(done.stdout):
        pytest.skip("what the build needs cannot be had: the package index is not reached")
    assert done.returncode == 0, done.stdout

    names = [path.name for path in wheels.iterdir()]
    assert len(names) == 1, names
    assert re.fullmatch(r"horon-[\d.]+-cp311-abi3-linux_\w+\.whl", names[0]), names
    with zipfile.ZipFile(wheels / names[0]) as wheel:
        inside = wheel.namelist()
        meta = next(name for name in inside if name.endswith(".dist-info/METADATA"))
        assert "Requires-Dist" not in re.sub(r".*; extra == .*", "", wheel.read(meta).decode())
    assert [name for name in inside if ".so" in name] == ["horon/_horon.abi3.so"]

    done = run(python, "-m", "pip", "install", "--no-index", wheels / names[0])
    assert done.returncode == 0, done.stdout
    for command in ([python], [python.with_name("horonrun"), "-np", "1", python]):
        done = run(*command, "-c", SCRIPT)
        assert done.returncode == 0 and "fine" in done.stdout, done.stdout
    assert os.access(python.with_name("horon-info"), os.X_OK)
