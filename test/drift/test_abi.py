# SPDX-License-Identifier: Apache-2.0
"""Reports how the ABI differs from the one kept in abi/. Until 1.0 it may change, so a difference
is printed, not a failure; after 1.0 one that breaks callers fails.

The kept one is written anew with: tools/lib/write-abi [BUILD-FOLDER]."""

import platform
import re
import shutil
import subprocess

import tap
import tree

KEPT = tree.ROOT / "test" / "drift" / "abi" / "libhoron-0.1.abi"

# Bits of abidiff's exit status.
ERROR, CHANGE, INCOMPATIBLE = 1 | 2, 4, 8


def major_version():
    header = tree.text("include/horon/horon.h")
    return int(re.search(r"HORON_VERSION_MAJOR (\d+)", header)[1])


def test_abi_change_is_reported():
    tool = tap.need(shutil.which("abidiff"), "there is no abidiff (Debian: abigail-tools)")
    library = tap.need(tree.built("libhoron.so*"), "this build made no libhoron.so")
    assert KEPT.is_file(), f"{KEPT.relative_to(tree.ROOT)} is missing; tools/lib/write-abi makes it"
    sections = subprocess.run(
        ["objdump", "-h", library], capture_output=True, text=True, check=True
    )
    tap.need(".debug_info" in sections.stdout, "this build has no debugging symbols to compare")
    tap.need(platform.machine() == "x86_64", "the kept description is of x86_64")
    done = subprocess.run(
        [tool, "--no-show-locs", str(KEPT), str(library)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode & ERROR, done.stdout + done.stderr
    if done.returncode & (CHANGE | INCOMPATIBLE):
        print("\n".join(f"# {line}" for line in done.stdout.splitlines()))
    assert major_version() == 0 or not done.returncode & INCOMPATIBLE, done.stdout


tap.run(globals())
