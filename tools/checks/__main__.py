# SPDX-License-Identifier: Apache-2.0
"""tools/check: runs every test and says what passed, failed and was skipped, and why.

The check has parts. A part is a generator that begins its builds, yields, and runs its suites when
its turn comes. Builds are made one after another in the order of the parts, beside the suites of
earlier ones: these wait for processes and silent hosts, and leave cores idle. So the suites that
wait most run beside the others of their build.
"""

import argparse
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import busy
import python_side
import style
import suites
from builds import FULL, TOP, Build
from results import SKIPPED, Case, Report

SUPPRESSIONS = TOP / "test" / "sanitize"
# name of the build, its optimisation, and whether the fuzz targets are in it. To optimise the
# checks of addresses takes a fifth of the build, and the tests run no faster for it.
SANITIZERS = {"address,undefined": ("asan", 1, True), "thread": ("tsan", 2, False)}
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
        "--busy",
        type=int,
        metavar="N",
        default=0,
        help="instead of all that: " + ", ".join((*busy.SUITES, busy.PYTHON)) + " N times each, "
        "side by side, with a busy loop on each core",
    )
    parser.add_argument(
        "--no-setup", action="store_true", help="install nothing; take the machine as it is"
    )
    parser.add_argument("--only-read", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def sanitizer_build(sanitizer):
    name, optimization, fuzzed = SANITIZERS[sanitizer]
    clang = bool(shutil.which("clang"))
    # of what a debugger reads, the lines: reports name them
    flags = "-fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
    fuzz_options = ["-Dfuzz=true"] if clang and fuzzed else []
    if fuzz_options:
        flags += " -fsanitize=fuzzer-no-link"
    return Build(
        name,
        "clang" if clang else "gcc",
        [f"-Doptimization={optimization}", "-Ddebug=true", f"-Db_sanitize={sanitizer}",
         "-Db_lundef=false", f"-Dc_args={flags}", *fuzz_options],
        SANITIZER_ENVIRONMENT,
        wanted=suites.WANTED[sanitizer],
        timeout_multiplier=6,
    )  # fmt: skip


def fuzz_build():
    """The fuzz targets of the build for addresses: what it compiles twice is compiled once."""
    return replace(sanitizer_build("address,undefined"), wanted=suites.fuzz_tests)


def gcc_build():
    return Build("check", "gcc", ["-Doptimization=3", "-Ddebug=true"])


def run_suites(report, build, wanted, title="{}"):
    """What waits for silent hosts goes beside the other suites; the long forms come after them."""
    beside = [suite for suite in wanted if suite in suites.WAITING]
    long = suites.long_forms(wanted)
    with ThreadPoolExecutor(max_workers=1) as other:
        begun = [(suite, other.submit(build.run_suite, suite)) for suite in beside]
        for suite in wanted:
            if suite not in beside and suite not in long:
                report.run(title.format(suite), build.run_suite, suite)
        for suite, running in begun:
            report.run(title.format(suite), running.result)
    for suite in long:
        report.run(title.format(suite), build.run_suite, suite)


def gcc_part(report, options, ahead):
    """The gcc build and its suites."""
    build = gcc_build()
    compiled = ahead.submit(build.compile)
    yield
    if not report.run("build gcc", compiled.result):
        return
    wanted = options.suite or (suites.QUICK if options.quick else suites.SUITES)
    long = suites.long_forms(build.suites()) if options.full else []
    run_suites(report, build, [*wanted, *long])


def busy_part(report, options, ahead):
    """What a busy machine makes of the gcc build and the wheel."""
    build = gcc_build()
    compiled, installed = ahead.submit(build.compile), ahead.submit(python_side.install_wheel)
    yield
    made = report.run("build gcc", compiled.result)
    if not (report.run("wheel", installed.result) and made):
        return
    with busy.loops():
        for suite, cases in busy.rounds_of(build, options.busy):
            report.run(suite, lambda cases=cases: cases)


def style_part(report):
    yield
    report.run("style", style.run_style)


def clang_part(report, options, ahead):
    """Clang reads everything too, for its warnings; the sanitizers' builds show them as well. The
    fuzz targets exist in clang's builds only."""
    if not shutil.which("clang"):
        yield
        skipped = [Case("clang", SKIPPED, "there is no clang")]
        report.run("warnings of clang", lambda: skipped)
        report.run(suites.FUZZ, lambda: skipped)
        return
    build, fuzz = Build("clang", "clang", ["-Doptimization=0"]), fuzz_build()
    wanted = options.full or not options.sanitize
    read = ahead.submit(build.read_sources) if wanted else None
    targets = ahead.submit(fuzz.compile)
    yield
    clean = wanted and report.run("warnings of clang", read.result)
    if report.run("build fuzz targets", targets.result):
        report.run(suites.FUZZ, fuzz.run_suite, suites.FUZZ)
        if options.full:
            report.run(suites.FUZZ_FULL, fuzz.run_suite, suites.FUZZ_FULL)
    if options.full and clean:
        report.run("clang-tidy", style.run_clang_tidy, build)


def python_part(report, ahead):
    installed = ahead.submit(python_side.install_wheel)
    yield
    if report.run("wheel", installed.result):
        report.run("python", python_side.run_pytest)


def sanitized_part(report, options, ahead, sanitizer):
    build = sanitizer_build(sanitizer)
    title = sanitizer.replace(",", "+")
    compiled = ahead.submit(build.compile)
    yield
    if report.run(f"build ({title})", compiled.result):
        wanted = suites.sanitized(sanitizer, build.suites(), options.full)
        run_suites(report, build, wanted, f"{{}} ({title})")


def all_parts(report, options, ahead):
    if options.busy:
        return [busy_part(report, options, ahead)]
    parts = [gcc_part(report, options, ahead)]
    if not options.suite:
        parts.append(style_part(report))
        if not options.quick:
            parts += [clang_part(report, options, ahead), python_part(report, ahead)]
    if options.sanitize:
        parts += [sanitized_part(report, options, ahead, name) for name in SANITIZERS]
    return parts


def run(report, options):
    ahead = ThreadPoolExecutor(max_workers=1)
    try:
        parts = all_parts(report, options, ahead)
        for _ in range(2):  # all builds begin, then all suites run
            for part in parts:
                next(part, None)
    finally:
        ahead.shutdown(cancel_futures=True)


def main():
    options = arguments()
    if options.only_read:
        return 0
    if options.full:
        os.environ[FULL] = "1"
    report = Report()
    print("tests", flush=True)
    run(report, options)
    report.print_summary()
    return 1 if report.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
