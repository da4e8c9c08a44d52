# SPDX-License-Identifier: Apache-2.0
"""Builds with Meson, each in a folder of its own under build/, and the suites run in them.

A build may run beside the suites of another one, which wait a good deal and leave cores idle.
"""

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import logs
import suites
from results import FAILED, PASSED, Case

TOP = Path(__file__).resolve().parents[2]
VENV_BIN = TOP / ".venv" / "bin"
FULL = "HORON_TEST_FULL"  # a variable of the tests: tools/check --full
FULL_TIMES = 4  # how much longer what has no long form of its own may take then

# Suites have limits, builds have none: what runs beside a suite goes behind it.
BEHIND = ["nice", "-n", "5"]


def find_tool(name):
    """The tool of the system, else the one pip put into .venv."""
    found = shutil.which(name)
    if found is None and (VENV_BIN / name).exists():
        found = str(VENV_BIN / name)
    return found


def _read_source(entry):
    """What the compiler says of an entry of compile_commands.json; nothing if all is well."""
    done = subprocess.run(
        [*BEHIND, *shlex.split(entry["command"]), "-fsyntax-only"], cwd=entry["directory"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    return done.stdout or (f"status {done.returncode}\n" if done.returncode else "")


@dataclass
class Build:
    name: str  # its folder: build/NAME
    compiler: str  # gcc or clang
    options: list[str] = field(default_factory=list)  # of meson setup
    environment: dict[str, str] = field(default_factory=dict)  # of its tests
    # Which tests it has, see suites.py; others are not run, nor are their programs compiled.
    wanted: Callable = suites.all_tests
    # For machines busier than the one a limit was set on. A test that hangs takes its whole limit;
    # the check is to end all the same.
    timeout_multiplier: int = 3

    @property
    def folder(self):
        return TOP / "build" / self.name

    def log_path(self):
        path = TOP / "build" / "logs" / f"build-{self.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def compile(self):
        """Configures if need be, and compiles. One case."""
        began = time.monotonic()
        failure = self._run(self._configure_command, self._renew_command, self._compile_command)
        return [failure or self._made(began)]

    def read_sources(self):
        """Configures if need be, and has the compiler read every source, for its warnings: that
        takes a third of compiling. One case."""
        began = time.monotonic()
        failure = self._run(self._configure_command, self._renew)
        if failure:
            return [failure]
        database = (self.folder / "compile_commands.json").read_text(encoding="utf-8")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            said = list(pool.map(_read_source, json.loads(database)))
        self.log_path().write_text("".join(said), encoding="utf-8")
        return [self._compile_failure("not 0") if any(said) else self._made(began)]

    def _run(self, *commands_of):
        """@return the case of the first command that fails, or None"""
        for command_of in commands_of:
            command = command_of()
            if command is None:
                continue
            with open(self.log_path(), "w", encoding="utf-8") as log:
                done = subprocess.run(
                    [*BEHIND, *command], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, env={**os.environ, "CC": self.compiler}, cwd=TOP,
                    check=False,
                )  # fmt: skip
            if done.returncode != 0:
                return self._compile_failure(done.returncode)
        return None

    def _made(self, began):
        (self.folder / "horon-options").write_text(self._wanted(), encoding="utf-8")
        took = time.monotonic() - began
        return Case(f"{self.compiler} {self.name}", PASSED, took=took)

    def _wanted(self):
        return json.dumps([self.compiler, self.options])

    def _configure_command(self):
        """None if the folder is configured as wanted: ninja notices changed meson.build files."""
        stamp = self.folder / "horon-options"
        if stamp.exists() and stamp.read_text(encoding="utf-8") == self._wanted():
            return None
        shutil.rmtree(self.folder, ignore_errors=True)
        return [find_tool("meson") or "meson", "setup", *self.options, str(self.folder), str(TOP)]

    def _renew(self):
        """Of a folder of before: what there is to build may be something else now."""
        return [find_tool("ninja") or "ninja", "-C", str(self.folder), "build.ninja"]

    def _renew_command(self):
        """None where nobody asks Meson which tests there are before all is compiled."""
        return None if self.wanted is suites.all_tests else self._renew()

    def _compile_command(self):
        command = [find_tool("ninja") or "ninja", "-C", str(self.folder)]
        if self.wanted is not suites.all_tests:
            targets = self._targets()
            needed = sorted({name for test in self._tests for name in test["depends"]})
            files = [Path(file) for name in needed for file in targets[name]["filename"]]
            command += [str(file.relative_to(self.folder)) for file in files]
        return command

    def _targets(self):
        return {target["id"]: target for target in self._introspect("--targets")}

    @cached_property
    def _tests(self):
        """The tests that are wanted, as Meson describes them; asked for once all is configured."""
        tests = self._introspect("--tests")
        if self.wanted is suites.all_tests:
            return tests
        targets = self._targets()

        def sources(test):
            for name in test["depends"]:
                for group in targets[name]["target_sources"]:
                    yield from group.get("sources", ())

        return [test for test in tests if self.wanted(test, sources(test))]

    def _introspect(self, what):
        done = subprocess.run(
            [find_tool("meson") or "meson", "introspect", what, str(self.folder)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    def _compile_failure(self, status):
        text = self.log_path().read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        errors = [line for line in lines if "error:" in line or "ERROR:" in line]
        reason = errors[0] if errors else f"status {status}"
        return Case(f"{self.compiler} {self.name}", FAILED, reason, "\n".join(errors[:20]) or text)

    def suites(self):
        """The names of the suites that have at least one test here."""
        return {name for test in self._tests for name in suites.suites_of(test)}

    def run_suite(self, suite):
        """Runs the tests of a suite. A suite that is not there is a failure."""
        names = [test["name"] for test in self._tests if suite in suites.suites_of(test)]
        if not names:
            return [Case(suite, FAILED, "missing: no test is registered in this suite")]
        base = f"testlog-{suite}"
        log = self.folder / "meson-logs" / f"{base}.json"
        log.unlink(missing_ok=True)
        longer = FULL in os.environ and not suite.endswith("-full")
        times = self.timeout_multiplier * (FULL_TIMES if longer else 1)
        command = [
            find_tool("meson") or "meson", "test", "-C", str(self.folder), "--no-rebuild",
            "--suite", suite, "--logbase", base,
            "--timeout-multiplier", str(times),
            "--num-processes", str(suites.programs_at_once(suite, os.cpu_count() or 1)), *names,
        ]  # fmt: skip
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env={**os.environ, **self.environment}, check=False,
        )  # fmt: skip
        cases = logs.meson_cases(log) if log.exists() else []
        if done.returncode != 0 and all(case.outcome != FAILED for case in cases):
            cases.append(Case(suite, FAILED, f"meson test: status {done.returncode}", done.stdout))
        return cases
