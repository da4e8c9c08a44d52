# SPDX-License-Identifier: Apache-2.0
"""libhoron.so exports what horon.h declares, and nothing else; what is installed is hardened; no
state outlives a context."""

import re
import shutil
import tempfile
from pathlib import Path

import tap
import tree
from hardening import assert_fortified, assert_hardened, is_linked, output

HEADER = "include/horon/horon.h"

# fork() knows no handle, so its handlers need a list of the process's contexts. MPI is one in a
# process, begins and ends once, and keeps what is given up in it; what combines elements for it is
# told of no context.
HOLDS_STATE = (
    "fork.c.o",
    "gloo_hash_store.c.o",
    "backend_mpi_begin.c.o",
    "backend_mpi_gate.c.o",
    "backend_mpi_library.c.o",
    "backend_mpi_shut.c.o",
)

# What the linker and the sanitizers put there.
LINKER_MADE = re.compile(
    r"^(_end|_edata|__bss_start|_init|_fini|__dso_handle|completed\.\d+|__TMC_END__)$"
)


def declared():
    header = re.sub(r"/\*.*?\*/", "", tree.text(HEADER), flags=re.S)
    header = re.sub(r"^\s*#.*?[^\\]$", "", header, flags=re.S | re.M)
    return set(re.findall(r"HORON_API\b[^;{(]*?(\w+)\s*\(", header))


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


def installed():
    """What is linked in this build, and goes to users."""
    found = [Path(name) for name in tree.installed() if is_linked(Path(name))]
    return tap.need(found, "this build made nothing that is installed")


def test_exports_installed_are_all_looked_at():
    names = {path.name.partition(".so")[0] for path in installed()}
    programs = {"horonrun", "horon-info", "horon-perf"}
    assert {"libhoron", *programs} <= names, names


def test_exports_installed_are_hardened():
    for made in installed():
        assert_hardened(made)


def test_exports_installed_check_sizes_where_they_are_optimised():
    commands = [row["command"] for row in tree.compile_commands() if "libhoron" in row["command"]]
    if not any(re.search(r" -O[1-3s] ", row) for row in commands):
        raise tap.Skip("FORTIFY needs an optimised build")
    if any(" -fsanitize=" in row for row in commands):
        raise tap.Skip("a sanitizer checks more by itself")
    for made in installed():
        assert_fortified(made)


def need_whole():
    commands = [row["command"] for row in tree.compile_commands() if "libhoron" in row["command"]]
    if not any(" -flto" in row for row in commands):
        raise tap.Skip("this build optimises file by file: no gcc, no -O3, or a sanitizer")


LINK = re.compile(r"^build (\S+): \w+_LINKER\S* .*\n(?: .*\n)*? LINK_ARGS = (.*)$", re.MULTILINE)
LIBRARY = re.compile(r"/libhoron(?:_base|_runtime|_collectives)?[.]a\b")


def test_exports_what_is_linked_of_the_library_says_how():
    """gcc does it as a whole if it is told nothing, which takes as long as the library's."""
    need_whole()
    found = LINK.findall((tree.BUILD / "build.ninja").read_text(encoding="utf-8"))
    of_library = [link for link in found if LIBRARY.search(link[1])]
    assert len(of_library) > 10, found
    tree.assert_none(
        [made for made, words in of_library if not re.search(r"-flto=auto|-fno-lto", words)],
        "links of the library that say neither -flto=auto nor -fno-lto",
    )


def test_exports_fast_path_is_optimised_as_a_whole():
    """The link is told so, and nothing tells it the contrary: names of gcc's own are the sign."""
    need_whole()
    for made in installed():
        if made.name.startswith(("libhoron", "horon-perf")):
            assert ".lto_priv." in output("nm", str(made)), f"{made} was linked file by file"


SOURCE = """#include <string.h>
int main(int count, char **words)
{
    char text[8];
    memcpy(text, words[0], (size_t)count);
    return strlen(text) == 7;
}
"""
HARD = [
    *("-O2", "-fPIE", "-pie", "-fstack-protector-all", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
    *("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"),
]
SOFT = {
    ("-fPIE", "-fno-pie", "-no-pie"): "lies at one address",
    ("-fstack-protector-all", "-fno-stack-protector"): "no function protects its stack",
    ("-D_FORTIFY_SOURCE=2",): "no call is fortified",
    ("-Wl,-z,relro", "-Wl,-z,norelro"): "stays writable",
    ("-Wl,-z,now", "-Wl,-z,lazy"): "while it runs",
    ("-Wl,-z,noexecstack", "-Wl,-z,execstack"): "the stack is RWE",
}


def softness(folder, *flags):
    """What is wrong with a program that is built so, or ""."""
    source, made = folder / "main.c", folder / "main"
    source.write_text(SOURCE, encoding="utf-8")
    output("cc", *flags, str(source), "-o", str(made))
    assert is_linked(made) and not is_linked(source)
    try:
        assert_hardened(made)
        assert_fortified(made)
    except AssertionError as error:
        return str(error)
    return ""


def test_exports_what_is_not_hardened_is_found():
    tap.need(shutil.which("cc"), "there is no cc")
    with tempfile.TemporaryDirectory() as folder:
        assert softness(Path(folder), *HARD) == ""
        for (hard, *soft), text in SOFT.items():
            found = softness(Path(folder), *(flag for flag in HARD if flag != hard), *soft)
            assert text in found, (hard, found)


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
