# SPDX-License-Identifier: Apache-2.0
"""Layout and lint: clang-format and ruff decide; bash reads the scripts; clang-tidy with --full."""

import re
import shutil
import subprocess

from builds import TOP, VENV_BIN
from results import FAILED, PASSED, SKIPPED, Case

CLANG_FORMAT_MAJOR = "14"  # Debian 12's; other versions lay some things out otherwise


def files(*patterns):
    """Files of the checkout, tracked or new, that git does not ignore."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=TOP, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        names = done.stdout.splitlines()
    else:
        names = [str(path.relative_to(TOP)) for glob in patterns for path in TOP.rglob(glob)]
    return sorted(name for name in names if (TOP / name).is_file())


def scripts():
    """Shell scripts, told by their first line."""
    found = []
    for name in files("tools/*", "benchmarks/*", "test/*", ".ci/*"):
        with open(TOP / name, "rb") as file:
            if re.match(rb"#!.*\b(ba)?sh\b", file.readline(80)):
                found.append(name)
    return [*found, *files("tools/lib/*.sh")]


def run_tool(title, command):
    done = subprocess.run(
        command, cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return Case(title, PASSED)
    first = next((line for line in done.stdout.splitlines() if line.strip()), "no output")
    return Case(title, FAILED, first, done.stdout)


def clang_format():
    tool = shutil.which(f"clang-format-{CLANG_FORMAT_MAJOR}") or shutil.which("clang-format")
    if tool is None:
        return Case("clang-format", SKIPPED, "there is no clang-format")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    if f"version {CLANG_FORMAT_MAJOR}." not in version.stdout:
        return Case("clang-format", SKIPPED, f"needs version {CLANG_FORMAT_MAJOR}")
    return run_tool("clang-format", [tool, "--dry-run", "-Werror", *files("*.c", "*.h")])


def ruff(title, *arguments):
    tool = VENV_BIN / "ruff"
    if not tool.exists():
        return Case(title, SKIPPED, "there is no ruff in .venv; tools/setup installs it")
    return run_tool(title, [tool, *arguments, *files("*.py")])


def shell_syntax():
    bad = [run_tool(name, ["bash", "-n", name]) for name in scripts()]
    failures = [case for case in bad if case.outcome == FAILED]
    return failures or [Case("bash -n", PASSED)]


def run_style():
    return [
        clang_format(),
        ruff("ruff check", "check", "--no-cache", "-q"),
        ruff("ruff format", "format", "--no-cache", "--check", "-q"),
        *shell_syntax(),
    ]


def run_clang_tidy(build):
    """One case a source file. @p build is clang's: its compile_commands.json is read."""
    tool = shutil.which("clang-tidy")
    if tool is None:
        return [Case("clang-tidy", SKIPPED, "there is no clang-tidy")]
    sources = files("runtime/*.c", "collectives/*.c", "tools/*.c", "benchmarks/*.c")
    return [run_tool(name, [tool, "-quiet", "-p", build.folder, name]) for name in sources]
