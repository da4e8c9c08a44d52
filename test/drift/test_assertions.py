# SPDX-License-Identifier: Apache-2.0
"""Assertions are law: state machines, ranges and owners of the library are asserted, and there are
at least so many of them. A table by room is printed, so that one sees where they are few."""

import re
import shutil
import subprocess
import tempfile

import tap
import tree

PER_1000_LINES = 5.0
ASSERTION = re.compile(r"(?<![_\w])assert\(|HORON_ASSERT_OWNER\(|static_assert\(")
OWNER = "HORON_ASSERT_OWNER("
ROOMS = ("collectives", "runtime")


def counted():
    """(room, lines, assertions) of each folder that has sources."""
    rooms = {}
    for name in tree.files(".c", ".h", under=ROOMS):
        lines = tree.text(name).splitlines()
        found = sum(1 for line in lines if ASSERTION.search(line) and "#define" not in line)
        old = rooms.get(str(name.parent), (0, 0))
        rooms[str(name.parent)] = (old[0] + len(lines), old[1] + found)
    return rooms


def test_assertions_are_many_enough():
    rooms = counted()
    lines, found = (sum(row[i] for row in rooms.values()) for i in (0, 1))
    for room, (room_lines, room_found) in sorted(rooms.items()):
        print(f"# {room}: {room_found} in {room_lines} lines, {room_found * 1000 / room_lines:.1f}")
    print(f"# all: {found} in {lines} lines, {found * 1000 / lines:.2f} in 1000")
    owners = sum(tree.text(name).count(OWNER) for name in tree.files(".c", ".h", under=ROOMS)) - 1
    print(f"# of these {owners} ask whose turn it is, in builds with debugging or a sanitizer only")
    assert found * 1000 >= PER_1000_LINES * lines, (
        f"{found} assertions in {lines} lines; {PER_1000_LINES} in 1000 are meant"
    )


def test_assertions_cannot_be_switched_off():
    meson = tap.need(shutil.which("meson"), "there is no meson")
    for value in ("true", "if-release"):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [meson, "setup", f"-Db_ndebug={value}", folder, tree.ROOT],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        assert done.returncode != 0, f"-Db_ndebug={value} is accepted"
        assert "no build without assertions" in done.stdout, done.stdout[-400:]


tap.run(globals())
