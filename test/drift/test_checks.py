# SPDX-License-Identifier: Apache-2.0
"""tools/check counts what ran: its readers, on outputs written by hand."""

import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import tap
import tree

sys.path.insert(0, str(tree.ROOT / "tools" / "checks"))
import logs
import suites
from results import FAILED, PASSED, SKIPPED, Case, Report, counts

CMOCKA = """[==========] Running 3 test(s).
[ RUN      ] test_a
[       OK ] test_a
[ RUN      ] test_b
[  FAILED  ] test_b
[ RUN      ] test_c
skip: needs root
[  SKIPPED ] test_c
[==========] 3 test(s) run.
"""


def entry(**fields):
    return {"name": "horon:unit / program", "stdout": "", "returncode": 0, "result": "OK", **fields}


def outcomes(**fields):
    return [case.outcome for case in logs.program_cases(entry(**fields))]


def test_checks_wrong_word_is_refused_before_the_machine_is_set_up():
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder, "tools")
        shutil.copytree(tree.ROOT / "tools" / "checks", tools / "checks")
        shutil.copy(tree.ROOT / "tools" / "check", tools)
        setup = tools / "setup"
        setup.write_text("#!/bin/sh\necho is set up; exit 1\n")
        setup.chmod(0o755)
        for word, status, said in (("--bogus", 2, "--bogus"), ("--quick", 1, "is set up")):
            ran = subprocess.run([tools / "check", word], capture_output=True, text=True)
            assert ran.returncode == status, (word, ran)
            assert said in ran.stdout + ran.stderr, (word, ran)
            assert ("is set up" in ran.stdout) == (status == 1), (word, ran)


def the_check():
    """tools/checks/__main__.py as a module."""
    path = tree.ROOT / "tools" / "checks" / "__main__.py"
    spec = importlib.util.spec_from_file_location("the_check", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed_by(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        function(*arguments)
    return printed.getvalue()


def run_stand_ins(order, failing="", suite_waits_for=None):
    """Runs a check whose builds and suites are written to @p order. @return report and output"""

    class StandIn:
        def __init__(self, name, *_, **__):
            self.name = name

        def compile(self):
            order.append(f"build {self.name}")
            if suite_waits_for and self.name == "tsan":
                suite_waits_for.set()
            if self.name == failing:
                return [Case(self.name, FAILED, "no", "a.c:1")]
            return [Case(self.name, PASSED)]

        def run_suite(self, suite):
            if suite_waits_for:
                assert suite_waits_for.wait(20), "a suite is to wait for the build of a later one"
            order.append(f"{suite} {self.name}")
            return [Case(suite, PASSED)]

        def suites(self):
            return set(suites.SUITES)

    check, report = the_check(), Report()
    check.Build = StandIn
    options = SimpleNamespace(suite=["unit"], quick=False, full=False, sanitize=True, busy=0)
    return report, printed_by(check.run, report, options)


def test_checks_builds_go_on_beside_the_suites_of_earlier_ones():
    order = []
    report, _ = run_stand_ins(order, suite_waits_for=threading.Event())
    assert order[:4] == ["build check", "build asan", "build tsan", "unit check"], order
    wanted = (("asan", "address,undefined"), ("tsan", "thread"))
    wanted = [f"{s} {build}" for build, name in wanted for s in suites.SANITIZED[name]]
    in_turn = [one for one in wanted if not one.startswith("hosts")]
    assert [one for one in order[4:] if not one.startswith("hosts")] == in_turn, order
    assert sorted(order[4:]) == sorted(wanted), order
    assert not report.failed()


def test_checks_suites_that_wait_run_beside_the_others_and_long_forms_after_them():
    both, order = threading.Barrier(2), []

    def run_suite(suite):
        if suite in ("hosts", "unit"):
            both.wait(20)
        order.append(suite)
        return [Case(suite, PASSED)]

    check, report = the_check(), Report()
    wanted = ["multi-full", "hosts", "world", "unit"]
    printed_by(check.run_suites, report, SimpleNamespace(run_suite=run_suite), wanted, "{} (x)")
    assert list(report.suites) == ["world (x)", "unit (x)", "hosts (x)", "multi-full (x)"]
    assert order[0] == "world" and order[-1] == "multi-full" and len(order) == 4, order


def test_checks_failed_build_is_told_and_others_go_on():
    order = []
    report, printed = run_stand_ins(order, failing="asan")
    assert "FAILED asan: no" in printed and "| a.c:1" in printed, printed
    assert "unit check" in order and "unit tsan" in order and "unit asan" not in order, order
    assert report.failed()


def test_checks_busy_rounds_run_side_by_side_beside_a_loop_on_each_core():
    """Each suite is to wait for the first round of all others; and the loops end."""
    check, report = the_check(), Report()
    busy = check.busy
    together, seen = threading.Barrier(len(busy.SUITES) + 1), []

    def first_together(suite):
        if suite not in seen:
            seen.append(suite)
            together.wait(20)
        elif suite == "hosts":
            return [Case("a", FAILED, "no")]
        elif suite == "unit":
            return []
        return [Case("a", PASSED)]

    busy.python_side = SimpleNamespace(
        run_pytest=lambda: first_together(busy.PYTHON), install_wheel=lambda: [Case("w", PASSED)]
    )
    check.python_side = busy.python_side
    stand_in = SimpleNamespace(compile=lambda: [Case("c", PASSED)], run_suite=first_together)
    check.gcc_build = lambda: stand_in
    printed = printed_by(check.run, report, SimpleNamespace(busy=2))
    assert [len(report.suites[suite]) for suite in (*busy.SUITES, busy.PYTHON)] == [2] * 5, printed
    assert "FAILED a: no" in printed and "FAILED unit: nothing ran" in printed, printed
    with busy.loops():
        begun = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        assert len(begun) == len(os.sched_getaffinity(0)), begun
    assert not any(Path(f"/proc/{pid}").exists() for pid in begun), begun


def test_checks_what_began_before_it_was_waited_for_says_how_long_it_took():
    report = Report()
    printed = printed_by(report.run, "wheel", lambda: [Case("wheel", PASSED, took=99.0)])
    assert printed.rstrip().endswith("0.0 s, of 99.0 s"), printed
    printed = printed_by(report.run, "style", lambda: [Case("ruff", PASSED)])
    assert printed.rstrip().endswith("failed, 0 skipped, 0.0 s"), printed


def test_checks_cmocka_functions_are_counted_once():
    repeated = "[  ERROR   ] --- 1 != 2\n[   LINE   ] --- t.c:8: error: Failure!\n"
    repeated += "rank 1: it is gone\n 1 FAILED TEST(S)\n"
    repeated += "[  FAILED  ] 1 test(s), listed below:\n[  FAILED  ] test_b\n"
    cases = logs.program_cases(entry(stdout=CMOCKA, stderr=repeated, result="FAIL", returncode=1))
    assert [case.outcome for case in cases] == [PASSED, FAILED, SKIPPED]
    assert cases[1].reason == "1 != 2; t.c:8: error: Failure!"
    assert "rank 1: it is gone" in cases[1].output
    assert cases[2].reason == "needs root"
    assert counts(cases) == "1 passed, 1 failed, 1 skipped"


def test_checks_skip_without_a_reason_says_so():
    output = "[ RUN      ] test_c\n[  SKIPPED ] test_c\n"
    assert logs.program_cases(entry(stdout=output))[0].reason == logs.NO_REASON


def test_checks_crash_after_passing_is_a_failure():
    output = "[ RUN      ] test_a\n[       OK ] test_a\n"
    cases = logs.program_cases(entry(stdout=output, result="FAIL", returncode=-11))
    assert [case.outcome for case in cases] == [PASSED, FAILED]
    assert cases[1].reason == "killed by SIGSEGV"


def test_checks_sanitizer_finding_is_named():
    summary = "SUMMARY: ThreadSanitizer: data race a.c:1 in f"
    output = "[ RUN      ] test_a\n[       OK ] test_a\n"
    cases = logs.program_cases(entry(stdout=output, stderr=summary, result="FAIL", returncode=66))
    assert [case.outcome for case in cases] == [PASSED, FAILED]
    assert cases[1].reason == summary
    assert outcomes(stderr=summary, result="SKIP", returncode=77) == [FAILED]


def test_checks_timeout_is_a_failure():
    assert outcomes(stdout=CMOCKA, result="TIMEOUT", duration=9.0)[-1] == FAILED


def test_checks_silent_program_is_one_case():
    assert outcomes() == [PASSED]
    assert outcomes(result="FAIL", returncode=1) == [FAILED]
    assert outcomes(result="SKIP", stdout="skip: no network\n", returncode=77) == [SKIPPED]


def test_checks_tap_is_counted_by_line():
    output = "1..4\nok 1 - a\n# why\nnot ok 2 - b\nok 3 - c # SKIP no ssh\nnot ok 4 # SKIP d\n"
    cases = logs.program_cases(entry(stdout=output, result="FAIL", returncode=1))
    assert [case.outcome for case in cases] == [PASSED, FAILED, SKIPPED, SKIPPED]
    assert cases[2].reason == "no ssh"


def test_checks_junit_is_read():
    text = """<testsuites><testsuite><testcase classname="test.a" name="one"/>
    <testcase classname="test.a" name="two"><failure message="no">trace</failure></testcase>
    <testcase classname="test.a" name="three"><skipped message="no torch"/></testcase>
    </testsuite></testsuites>"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junit.xml"
        path.write_text(text, encoding="utf-8")
        cases = logs.junit_cases(path)
    assert [case.outcome for case in cases] == [PASSED, FAILED, SKIPPED]
    assert cases[2].reason == "no torch"


def test_checks_meson_log_is_read_line_by_line():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.json"
        path.write_text("\n".join(json.dumps(entry()) for _ in range(3)), encoding="utf-8")
        assert logs.meson_cases(path) == [Case("program", PASSED)] * 3


def test_checks_what_a_test_prints_is_a_comment():
    program = (
        "import tap\n"
        "def test_talks():\n"
        "    print('1..9')\n"
        "    print('# one already')\n"
        "    print('not ok 1', 'without an end', end='')\n"
        "def test_breaks():\n"
        "    print('ok 2')\n"
        "    raise ValueError('1..3')\n"
        "tap.run(globals())\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=Path(tap.__file__).parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("# ")] == [
        "1..2", "ok 1 - test_talks", "not ok 2 - test_breaks",
    ], lines  # fmt: skip
    assert lines[1:4] == ["# 1..9", "# one already", "# not ok 1 without an end"], lines


def test_checks_programs_at_once_follow_what_a_suite_needs():
    for suite in ("multi-full", "hosts-full"):
        assert suites.programs_at_once(suite, 3) == 1, suite
    for suite in ("unit", "multi", "world-full", "simulation-full", "fuzz-full"):
        assert suites.programs_at_once(suite, 3) == 3, suite
    assert suites.programs_at_once("hosts", 3) == 6


def test_checks_sanitized_builds_repeat_long_forms_with_full_only():
    available = {*suites.SUITES, "world-full", "simulation-full", "multi-full"}
    more = {"address,undefined": ["world-full", "simulation-full", "multi-full"],
            "thread": ["multi-full"]}  # fmt: skip
    for sanitizer, short in suites.SANITIZED.items():
        assert suites.sanitized(sanitizer, available, False) == list(short)
        assert suites.sanitized(sanitizer, available, True) == [*short, *more[sanitizer]]


def test_checks_thread_sanitizer_sees_all_but_what_has_one_thread():
    assert set(suites.SANITIZED["address,undefined"]) == {*suites.SUITES} - {"drift"}
    assert set(suites.SANITIZED["thread"]) == {*suites.SUITES} - {"drift", "simulation"}
    threads, helper = tree.ROOT / "test/world/test_world_threads.c", tree.ROOT / "test/multi/job.c"
    for suite, name, sources, wanted in (
        ("world", "world/threads", [helper, threads], True),
        ("world", "world/verbs", [helper], False),
        ("world-full", "world/many-more", [threads], False),
        ("multi", "multi/kill", [helper], True),
        ("multi-full", "multi/large", [], True),
        ("hosts", "hosts/traffic", [], False),
        ("hosts", f"hosts/layouts {suites.FULL_LAYOUT}", [], True),
        ("hosts", "hosts/layouts 0,0,1,1", [], False),
        ("torture", "torture/test_torture_boot.c one_host", [threads], True),
        ("drift", "test_checks", [threads], False),
    ):
        test = {"name": name, "suite": [f"horon:{suite}"]}
        assert suites.threaded_tests(test, sources) is wanted, name


def test_checks_helpers_that_begin_threads_are_known():
    """A test that begins threads by way of another helper would be left out in silence."""
    helpers = {
        path.name
        for path in (tree.ROOT / "test").rglob("*.c")
        if path.with_suffix(".h").exists() and "pthread_create" in path.read_text("utf-8")
    }
    assert all(suites.BEGINS_THREADS.search(f'#include "{Path(name).stem}.h"') for name in helpers)
    assert len(helpers) == 2, helpers


def test_checks_long_forms_are_found_by_their_name():
    assert suites.long_forms({"world", "world-full", "fuzz-short"}) == ["world-full"]


tap.run(globals())
