# SPDX-License-Identifier: Apache-2.0
"""The option table and what is written about it: every row explained, every name written exists."""

import re
import subprocess

import tap
import tree

PAGE = "tools/OPTIONS.md"

# Read before there are options (runtime/boot says what each is), or by the tests and scripts only.
NOT_OPTIONS = re.compile(
    r"HORON_(TEST_\w+|TORCH_SPEC|PYTHON|SKIP_DEBIAN|TREE_\w+|RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|API)$"
)


def horon_info(*arguments):
    program = tap.need(tree.built("horon-info"), "this build made no horon-info")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows():
    """name -> meaning, of the table that horon-info prints."""
    found = {}
    for line in horon_info("--config", "--markdown").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        match = re.match(r"`HORON_(\w+)`$", cells[0])
        if match:
            found[match[1]] = cells[-1].rstrip("| ")
    assert found, "horon-info --config --markdown prints no row"
    return found


def table():
    """The names in the source of the table."""
    return re.findall(r'\.name = "(\w+)"', tree.text("runtime/base/config.c"))


def test_options_every_row_is_printed():
    assert sorted(rows()) == sorted(table())


def test_options_every_row_is_explained():
    wrong = [
        f"{name}: {doc!r}" for name, doc in rows().items() if len(doc) < 20 or doc[-1] not in ".)"
    ]
    tree.assert_none(wrong, "rows without a sentence that explains them")


def test_options_every_row_is_used():
    """A row whose field nobody reads is an option that does nothing."""
    source = tree.text("runtime/base/config.c")
    fields = re.findall(r'\.name = "(\w+)".*?AT\((\w+)\)', source, re.S)
    users = "".join(
        tree.text(name)
        for name in tree.files(".c", under=("runtime", "collectives", "tools"))
        if str(name) != "runtime/base/config.c"
    )
    wrong = [name for name, field in fields if not re.search(rf"(->|\.){field}\b", users)]
    tree.assert_none(wrong, "options that no code reads")


def test_options_page_is_what_the_program_prints():
    assert (
        tree.text(PAGE).partition("\n|")[2]
        == horon_info("--config", "--markdown").partition("|")[2]
    ), f"{PAGE} is behind the table; build, then: tools/lib/write-options"


def test_options_named_in_documents_exist():
    known = {f"HORON_{name}" for name in table()}
    header = set(re.findall(r"\bHORON_[A-Z0-9_]+", tree.text("include/horon/horon.h")))
    statuses = {
        f"HORON_{name}"
        for name in re.findall(r"X\((\w+), -?\d", tree.text("include/horon/horon.h"))
    }
    boot = {
        name
        for path in tree.files(".c", ".h", under=("runtime/boot", "tools/horonrun"))
        for name in re.findall(r'"(HORON_[A-Z_]+)', tree.text(path))
    }
    wrong = []
    for name in [*tree.files(".md"), *tree.files(".md", under=("*.md",))]:
        for word in re.findall(r"\bHORON_[A-Z0-9_]+\b", tree.text(name)):
            if word not in known | header | statuses | boot and not NOT_OPTIONS.match(word):
                wrong.append(f"{name}: {word}")
    tree.assert_none(sorted(set(wrong)), "names in documents that nothing knows")


tap.run(globals())
