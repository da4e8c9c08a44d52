# SPDX-License-Identifier: Apache-2.0
"""Runs the test_* functions of a module and prints TAP, which Meson counts one by one."""

import sys
import traceback


class Skip(Exception):
    """Raised by a test that cannot run here; its text says why."""


def need(value, why):
    """@return @p value, or skips the test if it is None or empty."""
    if not value:
        raise Skip(why)
    return value


def run(module):
    """Prints TAP for the test_* functions of a module (its vars()); exits non-zero on a failure."""
    tests = [(name, item) for name, item in module.items() if name.startswith("test_")]
    print(f"1..{len(tests)}")
    failed = False
    for number, (name, function) in enumerate(tests, 1):
        try:
            function()
        except Skip as skip:
            print(f"ok {number} - {name} # SKIP {skip}")
        except Exception as error:
            failed = True
            if not isinstance(error, AssertionError):
                traceback.print_exc(file=sys.stdout)
            print("\n".join(f"# {line}" for line in str(error).splitlines()))
            print(f"not ok {number} - {name}")
        else:
            print(f"ok {number} - {name}")
        sys.stdout.flush()
    sys.exit(1 if failed else 0)
