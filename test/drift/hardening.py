# SPDX-License-Identifier: Apache-2.0
"""What turns a bug into a crash rather than into a way in, as it is in a linked file: however that
came by its flags. Tests of what is built (test_exports.py) and of what is installed (test/python)
ask here."""

import re
import subprocess


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def is_linked(path):
    """Whether this file is a program or a shared library."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(18)
    kind = int.from_bytes(head[16:], "little" if head[5:6] == b"\x01" else "big")
    return head[:4] == b"\x7fELF" and kind in (2, 3)  # an object has 1


def segments_of(made):
    """-> {type: flags}, as "RW", of the program headers"""
    rows = output("readelf", "-lW", str(made)).splitlines()
    found = (re.match(r"^  ([A-Z_]+) +(?:0x\w+ +){5}([RWE ]{3}) ", row) for row in rows)
    return {match[1]: match[2].replace(" ", "") for match in found if match}


def imports_of(made):
    rows = output("nm", "-D", "--undefined-only", str(made)).splitlines()
    return {row.split()[-1].partition("@")[0] for row in rows}


def assert_hardened(made):
    segments, dynamic = segments_of(made), output("readelf", "-d", str(made))
    assert "LOAD" in segments, f"{made}: {segments}"
    assert "GNU_RELRO" in segments, f"{made}: what is only relocated stays writable"
    now = re.search(r"\(BIND_NOW\)|\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW", dynamic)
    assert now, f"{made}: it is relocated while it runs\n{dynamic}"
    assert segments.get("GNU_STACK") == "RW", f"{made}: the stack is {segments.get('GNU_STACK')}"
    assert "__stack_chk_fail" in imports_of(made), f"{made}: no function protects its stack"
    assert "DYN" in output("readelf", "-hW", str(made)), f"{made} lies at one address"


def is_sanitized(made):
    """Whether a sanitizer checks more by itself, and is in the way of FORTIFY."""
    return any(re.match(r"__(asan|tsan|ubsan|msan)_", name) for name in imports_of(made))


def assert_fortified(made):
    """Of what was optimised; the rest cannot be."""
    checked = [name for name in imports_of(made) if re.match(r"__\w+_chk$", name)]
    assert checked, f"{made}: no call is fortified"
