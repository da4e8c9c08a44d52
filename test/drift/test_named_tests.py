# SPDX-License-Identifier: Apache-2.0
"""The tests that docs/horovod-tests.md names are there, and it counts them right."""

import ast
import re

import tap
import tree

PAGE = "docs/horovod-tests.md"
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GPU = ("needs a GPU", "needs two GPUs")
NAMED = re.compile(r"`(test/python/\w+\.py)::(\w+)`")


def rows(page):
    """[Horovod's test, what asserts it, remark] of each row of the table."""
    lines = [line for line in page.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def functions(name):
    """The functions of a file that pytest calls; parametrised ones by their bare name."""
    if not (tree.ROOT / name).is_file():
        return set()
    body = ast.parse(tree.text(name)).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def problems(page, functions_of):
    wrong, seen = [], set()
    for row in rows(page):
        if len(row) != 3 or not re.fullmatch(r"`test_\w+`", row[0]):
            wrong.append(f"{row}: no row of a test, its counterparts and a remark")
            continue
        name, counterparts, remark = row
        if name in seen:
            wrong.append(f"{name} stands twice")
        seen.add(name)
        if not counterparts and not remark:
            wrong.append(f"{name} has neither a test nor a reason")
        if NAMED.sub("", counterparts).strip(" ,"):
            wrong.append(
                f"{name}: {counterparts} are not tests as `test/python/FILE.py::test_name`"
            )
        for file, test in NAMED.findall(counterparts):
            if not test.startswith("test_") or test not in functions_of(file):
                wrong.append(f"{name}: {file} has no {test}")
    return wrong


def test_named_tests_are_there():
    page = tree.text(PAGE)
    assert len(rows(page)) > 100, "the table is not found"
    tree.assert_none(problems(page, functions), f"wrong rows in {PAGE}")


def number(word):
    return int(word) if word.isdigit() else WORDS.index(word) + 1


def miscounted(page):
    """What the prose counts otherwise than the table has it."""
    every = rows(page)
    lone = [remark for _, counterparts, remark in every if not counterparts]
    counted = {
        "names": len(every),
        "tests": len(every),
        "have a counterpart": len(every) - len(lone),
        "need GPUs": sum(remark.startswith(GPU) for remark in lone),
        "asserts nothing": sum(remark.startswith("asserts nothing") for remark in lone),
    }
    if counted["need GPUs"] + counted["asserts nothing"] != len(lone):
        return ["a row without a counterpart is of neither kind that the prose counts"]
    prose = " ".join(line for line in page.splitlines() if not line.startswith("|"))
    wrong = []
    for what, wanted in counted.items():
        found = re.findall(rf"\b(\d+|{'|'.join(WORDS)})\s+{what}\b", prose)
        if [number(word) for word in found] != [wanted]:
            wrong.append(f"{what}: {wanted} in the table, in the prose {found}")
    return wrong


def test_named_tests_are_counted():
    tree.assert_none(miscounted(tree.text(PAGE)), f"wrong numbers in {PAGE}")


def test_named_tests_that_are_counted_wrong_are_found():
    head = "2 names. Of the 2 tests {} have a counterpart. Of the others {} need GPUs, {} asserts"
    table = "| a | b | c |\n|---|---|---|\n| `test_x` | here | |\n| `test_y` | | {} |"
    page = f"{head} nothing.\n{table}"
    assert not miscounted(page.format("one", 1, 0, "needs a GPU"))
    assert not miscounted(page.format(1, 0, "one", "asserts nothing of it"))
    for numbers in ((2, 1, 0), ("one", "two", 0), (1, 1, "one"), (1, "some", 0)):
        (found,) = miscounted(page.format(*numbers, "needs two GPUs"))
        assert " in the table" in found, found
    assert "neither" in miscounted(page.format(1, 1, 0, "because"))[0]
    found = miscounted(page.format(1, 1, 0, "needs a GPU").replace("2 names", "3 names"))
    assert found == ["names: 2 in the table, in the prose ['3']"], found


def test_named_tests_that_are_wrong_are_found():
    head = "| a | b | c |\n|---|---|---|\n"
    here = "`test/python/test_a.py::test_b`"
    for wrong, text in (
        (f"| `test_x` | {here} | |\n| `test_x` | | why |", "stands twice"),
        ("| `test_x` | | |", "neither a test nor a reason"),
        ("| `test_x` | `test/python/test_a.py::test_c` | |", "has no test_c"),
        ("| `test_x` | `test/python/test_a.py::helper` | |", "has no helper"),
        ("| `test_x` | `test/python/test_a.py::test_b[1]` | |", "are not tests"),
        (f"| `test_x` | {here} |", "no row"),
        (f"| x | {here} | |", "no row"),
    ):
        (found,) = problems(head + wrong, lambda _: {"test_b", "helper"})
        assert text in found, (wrong, found)
    assert not problems(head + f"| `test_x` | {here}, {here} | why |", lambda _: {"test_b"})


tap.run(globals())
