# SPDX-License-Identifier: Apache-2.0
"""tools/check: runs every test and says what passed, failed and was skipped, and why."""

import argparse
import os
import shutil
import sys
from dataclasses import replace

import python_side
import style
import suites
from builds import FULL, TOP, Build
from results import SKIPPED, Case, Report

SUPPRESSIONS = TOP / "test" / "sanitize"
# name of the build, and whether the fuzz targets are in it
SANITIZERS = {"address,undefined": ("asan", True), "thread": ("tsan", False)}
SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1"
    ":allocator_may_return_null=1",
    "LSAN_OPTIONS": f"suppressions={SUPPRESSIONS / 'lsan.supp'}:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": f"suppressions={SUPPRESSIONS / 'tsan.supp'}:halt_on_error=1"
    ":second_deadlock_stack=1:history_size=4:die_after_fork=0",
}


def arguments():
    parser = argparse.ArgumentParser(prog="tools/check", description=__doc__)
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="repeat the C part under the address+undefined and the thread sanitizer",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="add what takes long: kill rounds, long fuzzing, many seeds (suites *-full)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only one build and: " + ", ".join(suites.QUICK) + ", style",
    )
    parser.add_argument(
        "--suite", action="append", metavar="NAME", help="only this suite, gcc build; repeatable"
    )
    parser.add_argument(
        "--no-setup", action="store_true", help="install nothing; take the machine as it is"
    )
    parser.add_argument("--only-read", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def sanitizer_build(sanitizer):
    name, fuzzed = SANITIZERS[sanitizer]
    clang = bool(shutil.which("clang"))
    flags = "-fno-sanitize-recover=all -fno-omit-frame-pointer"
    fuzz_options = ["-Dfuzz=true"] if clang and fuzzed else []
    if fuzz_options:
        flags += " -fsanitize=fuzzer-no-link"
    return Build(
        name,
        "clang" if clang else "gcc",
        ["--buildtype=debugoptimized", f"-Db_sanitize={sanitizer}", "-Db_lundef=false",
         f"-Dc_args={flags}", *fuzz_options],
        SANITIZER_ENVIRONMENT,
        timeout_multiplier=6,
    )  # fmt: skip


def fuzz_build():
    """The fuzz targets of the build for addresses: what it compiles twice is compiled once."""
    return replace(sanitizer_build("address,undefined"), only="fuzz_")


def run_plain(report, options):
    """The gcc build and its suites."""
    build = Build("check", "gcc", ["-Doptimization=3", "-Ddebug=true"])
    if not report.run("build gcc", build.compile):
        return
    for suite in options.suite or (suites.QUICK if options.quick else suites.SUITES):
        report.run(suite, build.run_suite, suite)
    if options.full:
        for suite in suites.long_forms(build.suites()):
            report.run(suite, build.run_suite, suite)


def run_clang(report, options):
    """Clang compiles everything too, for its warnings, which need no optimisation; the fuzz targets
    exist in its build only. Returns the plain build, or None."""
    if not shutil.which("clang"):
        skipped = [Case("clang", SKIPPED, "there is no clang")]
        report.run("build clang", lambda: skipped)
        report.run(suites.FUZZ, lambda: skipped)
        return None
    build = Build("clang", "clang", ["-Doptimization=0"])
    compiled = report.run("build clang", build.compile)
    fuzz = fuzz_build()
    if report.run("build fuzz targets", fuzz.compile):
        report.run(suites.FUZZ, fuzz.run_suite, suites.FUZZ)
        if options.full:
            report.run(suites.FUZZ_FULL, fuzz.run_suite, suites.FUZZ_FULL)
    return build if compiled else None


def run_sanitized(report, options):
    for sanitizer in SANITIZERS:
        build = sanitizer_build(sanitizer)
        title = sanitizer.replace(",", "+")
        if report.run(f"build ({title})", build.compile):
            for suite in suites.sanitized(sanitizer, build.suites(), options.full):
                report.run(f"{suite} ({title})", build.run_suite, suite)


def main():
    options = arguments()
    if options.only_read:
        return 0
    if options.full:
        os.environ[FULL] = "1"
    report = Report()
    print("tests", flush=True)
    run_plain(report, options)
    if not options.suite:
        report.run("style", style.run_style)
        if not options.quick:
            clang = run_clang(report, options)
            if report.run("wheel", python_side.install_wheel):
                report.run("python", python_side.run_pytest)
            if options.full and clang:
                report.run("clang-tidy", style.run_clang_tidy, clang)
    if options.sanitize:
        run_sanitized(report, options)
    report.print_summary()
    return 1 if report.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
