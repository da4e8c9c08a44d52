# SPDX-License-Identifier: Apache-2.0
"""horon.h is a header for C99 and C++11, pedantically, whichever compiler reads it."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import tap
import tree

INCLUDE = tree.ROOT / "include"
WARNINGS = ["-Wall", "-Wextra", "-pedantic", "-Wundef", "-Wshadow", "-Werror"]
PROGRAM = """#include <horon/horon.h>
#include <horon/horon.h>
int main(void)
{
    horon_descriptor_t descriptor = HORON_DESCRIPTOR_INIT;
    horon_options_t options = HORON_OPTIONS_INIT;
    return (descriptor.count == 0 && options.rank == -1) ? 0 : 1;
}
"""


def compiles(tool, standard, suffix):
    tap.need(shutil.which(tool), f"there is no {tool}")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"use{suffix}"
        source.write_text(PROGRAM, encoding="utf-8")
        done = subprocess.run(
            [tool, f"-std={standard}", *WARNINGS, f"-I{INCLUDE}", "-fsyntax-only", str(source)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_header_is_c99_for_gcc():
    compiles("gcc", "c99", ".c")


def test_header_is_c17_for_gcc():
    compiles("gcc", "c17", ".c")


def test_header_is_cxx11_for_gcc():
    compiles("g++", "c++11", ".cc")


def test_header_is_cxx20_for_gcc():
    compiles("g++", "c++20", ".cc")


def test_header_is_c99_for_clang():
    compiles("clang", "c99", ".c")


def test_header_is_cxx11_for_clang():
    compiles("clang++", "c++11", ".cc")


def test_header_needs_no_other_header_of_horon():
    own = [line for line in tree.text("include/horon/horon.h").splitlines() if '#include "' in line]
    assert not own, own


tap.run(globals())
