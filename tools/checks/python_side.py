# SPDX-License-Identifier: Apache-2.0
"""The Python part: the wheel is built and installed as a user would, then pytest runs."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import logs
from builds import BEHIND, TOP, VENV_BIN
from results import FAILED, PASSED, Case


def environment():
    """The environment with .venv activated."""
    return {
        **os.environ,
        "PATH": f"{VENV_BIN}:{os.environ.get('PATH', '')}",
        "VIRTUAL_ENV": str(VENV_BIN.parent),
    }


def install_wheel():
    began = time.monotonic()
    done = subprocess.run(
        [*BEHIND, TOP / "tools" / "setup", "horon"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode != 0:
        return [Case("pip install .", FAILED, f"status {done.returncode}", done.stdout)]
    missing = [
        name
        for name in ("horonrun", "horon-perf", "horon-info")
        if not os.access(VENV_BIN / name, os.X_OK)
    ]
    if missing:
        return [Case("pip install .", FAILED, f"not in .venv/bin: {', '.join(missing)}")]
    return [Case("pip install .", PASSED, took=time.monotonic() - began)]


def run_pytest():
    """The files in turn to as many runs as there are cores: ranks that start wait a good deal."""
    files = sorted((TOP / "test" / "python").glob("test_*.py"))
    if not files:
        return [Case("python", FAILED, "missing: there is no test in test/python")]
    runs = min(os.cpu_count() or 1, 4)
    with ThreadPoolExecutor(runs) as pool:
        parts = pool.map(_run_files, range(runs), (files[first::runs] for first in range(runs)))
        return [case for cases in parts for case in cases]


def _run_files(number, files):
    junit = TOP / "build" / "logs" / f"pytest-{number}.xml"
    junit.unlink(missing_ok=True)
    done = subprocess.run(
        [VENV_BIN / "python", "-B", "-m", "pytest", *files, "-q", "-p", "no:cacheprovider",
         "--timeout=180", f"--junitxml={junit}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env=environment(), cwd=TOP, check=False,
    )  # fmt: skip
    cases = logs.junit_cases(junit) if junit.exists() else []
    if done.returncode != 0 and all(case.outcome != FAILED for case in cases):
        cases.append(Case("pytest", FAILED, f"status {done.returncode}", done.stdout))
    return cases
