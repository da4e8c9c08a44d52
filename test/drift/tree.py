# SPDX-License-Identifier: Apache-2.0
"""The checkout as the drift tests see it: files that git tracks or would, and the build folder."""

import json
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(os.environ.get("HORON_TEST_ROOT", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("HORON_TEST_BUILD", ROOT / "build" / "check"))
ROOMS = ("benchmarks", "collectives", "framework_ops", "include", "runtime", "test", "tools")


def files(*suffixes, under=ROOMS):
    """Paths relative to ROOT, sorted, of files with one of the suffixes (all if none is given)."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *under],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        names = [Path(name) for name in done.stdout.splitlines()]
    else:  # not a git checkout: everything that is there
        paths = (path for room in under for path in (ROOT / room).rglob("*"))
        names = [path.relative_to(ROOT) for path in paths if "__pycache__" not in path.parts]
    return sorted(
        name
        for name in names
        if (not suffixes or name.suffix in suffixes) and (ROOT / name).is_file()
    )


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


C_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.DOTALL,
)


def c_tokens(source):
    """(kind, first line, text) of each comment and string, and of the code between them."""
    at, line = 0, 1
    for found in C_TOKENS.finditer(source):
        for kind, text in (("code", source[at : found.start()]), (found.lastgroup, found.group())):
            if text:
                yield kind, line, text
            line += text.count("\n")
        at = found.end()
    yield "code", line, source[at:]


def built(name):
    """The file of this name in the build folder, or None."""
    found = sorted(path for path in BUILD.rglob(name) if path.is_file())
    return found[0] if found else None


def installed():
    """The files that the build installs, wherever they are now; none if there is no build."""
    path = BUILD / "meson-info" / "intro-installed.json"
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []


def compile_commands():
    """The entries of what the build compiles; none if there is no build."""
    path = BUILD / "compile_commands.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def assert_none(problems, what):
    """Fails with the list, if there is one."""
    assert not problems, f"{len(problems)} {what}:\n" + "\n".join(str(row) for row in problems)
