# SPDX-License-Identifier: Apache-2.0
"""libhoron.so exports what horon.h declares, and nothing else, and is hardened; no state outlives a
context."""

import re
import subprocess

import tap
import tree

HEADER = "include/horon/horon.h"

# fork() knows no handle, so its handlers need a list of the process's contexts.
HOLDS_STATE = ("fork.c.o",)

# What the linker and the sanitizers put there.
LINKER_MADE = re.compile(
    r"^(_end|_edata|__bss_start|_init|_fini|__dso_handle|completed\.\d+|__TMC_END__)$"
)


def declared():
    header = re.sub(r"/\*.*?\*/", "", tree.text(HEADER), flags=re.S)
    header = re.sub(r"^\s*#.*?[^\\]$", "", header, flags=re.S | re.M)
    return set(re.findall(r"HORON_API\b[^;{(]*?(\w+)\s*\(", header))


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def shared_library():
    return tap.need(tree.built("libhoron.so*"), "this build made no libhoron.so")


def test_exports_equal_the_header():
    rows = output("nm", "-D", "--defined-only", str(shared_library())).splitlines()
    exported = {row.split()[-1].partition("@")[0] for row in rows}
    exported = {name for name in exported if not LINKER_MADE.match(name)}
    missing, extra = sorted(declared() - exported), sorted(exported - declared())
    assert declared(), "no HORON_API declaration was found in the header"
    assert not missing, f"declared and not exported: {missing}"
    assert not extra, f"exported and not declared: {extra}"


def test_exports_stay_when_a_plugin_is_closed():
    """Our thread runs in the library's code, whatever calls dlclose()."""
    flags = re.findall(r"\(FLAGS_1\)\s+Flags:(.*)", output("readelf", "-d", str(shared_library())))
    assert any("NODELETE" in row for row in flags), flags


def segments_of(library):
    """-> {type: flags}, as "RW", of the program headers"""
    rows = output("readelf", "-lW", str(library)).splitlines()
    found = (re.match(r"^  ([A-Z_]+) +(?:0x\w+ +){5}([RWE ]{3}) ", row) for row in rows)
    return {match[1]: match[2].replace(" ", "") for match in found if match}


def imports_of(library):
    rows = output("nm", "-D", "--undefined-only", str(library)).splitlines()
    return {row.split()[-1].partition("@")[0] for row in rows}


def assert_hardened(made):
    segments, dynamic = segments_of(made), output("readelf", "-d", str(made))
    assert "LOAD" in segments, f"{made}: {segments}"
    assert "GNU_RELRO" in segments, f"{made}: what is only relocated stays writable"
    assert re.search(r"\(BIND_NOW\)|\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW", dynamic), dynamic
    assert segments.get("GNU_STACK") == "RW", f"{made}: the stack is {segments.get('GNU_STACK')}"
    assert "__stack_chk_fail" in imports_of(made), f"{made}: no function protects its stack"


def test_exports_library_is_hardened():
    """What the linker was asked for is in the file, however this build came by its flags."""
    assert_hardened(shared_library())


def test_exports_programs_are_hardened_and_lie_anywhere():
    for name in ("horonrun", "horon-info", "horon-perf"):
        program = tap.need(tree.built(name), f"this build made no {name}")
        assert_hardened(program)
        assert "DYN" in output("readelf", "-hW", str(program)), f"{name} lies at one address"


def test_exports_library_checks_sizes_where_it_is_optimised():
    library = shared_library()
    commands = [row["command"] for row in tree.compile_commands() if "libhoron" in row["command"]]
    if not any(re.search(r" -O[1-3s] ", row) for row in commands):
        raise tap.Skip("FORTIFY needs an optimised build")
    if any(" -fsanitize=" in row for row in commands):
        raise tap.Skip("a sanitizer checks more by itself")
    checked = sorted(name for name in imports_of(library) if re.match(r"__\w+_chk$", name))
    assert [name for name in checked if name != "__stack_chk_fail"], "no call is fortified"


def test_exports_begin_with_horon():
    wrong = sorted(name for name in declared() if not name.startswith("horon_"))
    assert not wrong, wrong


def test_exports_static_library_globals_begin_with_horon():
    library = tap.need(tree.built("libhoron.a"), "this build made no libhoron.a")
    rows = output("nm", "--defined-only", "--extern-only", str(library)).splitlines()
    names = {row.split()[-1] for row in rows if len(row.split()) == 3}
    wrong = sorted(name for name in names if not name.startswith("horon_"))
    assert names, "the static library defines nothing"
    assert not wrong, f"would collide with names of the program: {wrong}"


def test_exports_no_process_wide_mutable_state():
    """Objects in .data or .bss are state of the process; constants and thread-locals are not."""
    library = tap.need(tree.built("libhoron.a"), "this build made no libhoron.a")
    member, members, wrong = "", set(), []
    for row in output("objdump", "-t", str(library)).splitlines():
        if head := re.match(r"^(\S+):\s+file format", row):
            member = head[1]
            members.add(member)
        match = re.match(r"^[0-9a-f]+ .{7} (\.data\S*|\.bss\S*)\s+([0-9a-f]+)\s+(\S+)$", row)
        if not match or match[1].startswith(".data.rel.ro"):
            continue
        if int(match[2], 16) > 0 and not member.endswith(HOLDS_STATE):
            wrong.append(f"{member}: {match[3]}, {int(match[2], 16)} bytes in {match[1]}")
    assert any(name.endswith(HOLDS_STATE) for name in members), f"{library} holds {sorted(members)}"
    tree.assert_none(wrong, "objects of mutable process-wide state")


tap.run(globals())
