# SPDX-License-Identifier: Apache-2.0
"""Runs the test_* functions of a module and prints TAP, which Meson counts one by one."""

import contextlib
import io
import signal
import sys
import traceback


class Skip(Exception):
    """Raised by a test that cannot run here; its text says why."""


def need(value, why):
    """@return @p value, or skips the test if it is None or empty."""
    if not value:
        raise Skip(why)
    return value


class Comments(io.TextIOBase):
    """What tests print is for people: comments of TAP, as their other lines mean nothing to it."""

    def __init__(self, out):
        self.out = out
        self.in_line = False

    def write(self, text):
        for line in text.splitlines(keepends=True):
            if not self.in_line and not line.startswith("#"):
                self.out.write("# ")
            self.out.write(line)
            self.in_line = not line.endswith("\n")
        return len(text)

    def end(self):
        if self.in_line:
            self.write("\n")


def call(function):
    comments = Comments(sys.stdout)
    try:
        with contextlib.redirect_stdout(comments):
            function()
    finally:
        comments.end()


def hear_signals():
    """What nohup and a shell's & make a program ignore, all that it starts would ignore as well."""
    for signo in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(signo) == signal.SIG_IGN:
            signal.signal(signo, signal.SIG_DFL)


def run(module):
    """Prints TAP for the test_* functions of a module (its vars()); exits non-zero on a failure."""
    tests = [(name, item) for name, item in module.items() if name.startswith("test_")]
    hear_signals()
    print(f"1..{len(tests)}")
    failed = False
    for number, (name, function) in enumerate(tests, 1):
        try:
            call(function)
        except Skip as skip:
            print(f"ok {number} - {name} # SKIP {skip}")
        except Exception as error:
            failed = True
            if not isinstance(error, AssertionError):
                traceback.print_exc(file=Comments(sys.stdout))
            print("\n".join(f"# {line}" for line in str(error).splitlines()))
            print(f"not ok {number} - {name}")
        else:
            print(f"ok {number} - {name}")
        sys.stdout.flush()
    sys.exit(1 if failed else 0)
