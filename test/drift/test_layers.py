# SPDX-License-Identifier: Apache-2.0
"""Calls go one way. A library is given only the folders that it may include from, so that a call in
the wrong direction does not compile; here that is tried, with the flags the build really uses."""

import re
import shlex
import subprocess

import tap
import tree

# What the files of a folder may be given as -I, relative to the root. The first match counts.
MAY_SEE = (
    ("runtime/base/", {"include", "runtime/base"}),
    ("collectives/", {"include", "runtime/base", "collectives"}),
    ("runtime/", {"include", "runtime/base", "collectives", "runtime"}),
    ("framework_ops/", {"include"}),
)


def commands():
    """(source, command) of all that is compiled, but for the copies that tests compile."""
    for entry in tap.need(tree.compile_commands(), "this build wrote no compile_commands.json"):
        if entry["output"].startswith("test/"):
            continue
        source = (tree.BUILD / entry["file"]).resolve()
        if source.is_relative_to(tree.ROOT) and not source.is_relative_to(tree.BUILD):
            yield str(source.relative_to(tree.ROOT)), shlex.split(entry["command"])


def included_folders(command):
    """The -I folders that lie in the tree, relative to its root."""
    folders = set()
    for word in command:
        if word.startswith("-I"):
            folder = (tree.BUILD / word[2:]).resolve()
            if folder.is_relative_to(tree.ROOT) and not folder.is_relative_to(tree.BUILD):
                folders.add(str(folder.relative_to(tree.ROOT)))
    return folders


def compiles(prefix, line):
    """Whether @p line compiles with the flags of the first source under @p prefix."""
    command = next((words for source, words in commands() if source.startswith(prefix)), None)
    tap.need(command, f"nothing under {prefix} is built")
    command = command[command[0].endswith("ccache") :]  # it wants the compiler named
    flags = [word for word in command[1:] if word.startswith(("-I", "-D", "-std"))]
    done = subprocess.run(
        [command[0] if "cc" in command[0] or "clang" in command[0] else "cc", *flags,
         "-x", "c", "-fsyntax-only", "-"],
        input=line + "\n", cwd=tree.BUILD, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def test_layers_collectives_cannot_include_the_coordinator():
    assert compiles("collectives/", '#include "status.h"'), "the control does not compile"
    assert not compiles("collectives/", '#include "coordinator/coordinator.h"')


def test_layers_base_cannot_include_links():
    assert compiles("runtime/base/", '#include "status.h"'), "the control does not compile"
    assert not compiles("runtime/base/", '#include "link/mux.h"')


def test_layers_coordinator_can_include_links():
    """The direction that is allowed: otherwise the two above would prove nothing."""
    assert compiles("runtime/coordinator/", '#include "link/mux.h"')


def test_layers_folders_given_are_the_folders_allowed():
    wrong = []
    for source, command in commands():
        allowed = next((seen for prefix, seen in MAY_SEE if source.startswith(prefix)), None)
        if allowed is None:
            continue
        own = source.rpartition("/")[0]
        extra = sorted(included_folders(command) - allowed - {own})
        extra = [
            folder for folder in extra if not own.startswith(folder + "/") or folder == "runtime"
        ]
        if extra:
            wrong.append(f"{source}: -I {' -I '.join(extra)}")
    tree.assert_none(wrong, "sources given folders that they may not see")


def test_layers_no_include_climbs_out():
    wrong = [
        f"{name}:{number}: {line.strip()}"
        for name in tree.files(".c", ".h", under=("runtime", "collectives", "framework_ops"))
        for number, line in enumerate(tree.text(name).splitlines(), 1)
        if re.match(r'\s*#\s*include\s*"[^"]*\.\./', line)
    ]
    tree.assert_none(wrong, "includes with ../ in them")


tap.run(globals())
