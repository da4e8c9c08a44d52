# SPDX-License-Identifier: Apache-2.0
"""The tests that docs/horovod-tests.md names are there, and its counts are right."""

import ast
import re

import tap
import tree

PAGE = "docs/horovod-tests.md"
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


def test_named_tests_are_counted():
    page = tree.text(PAGE)
    every = rows(page)
    found = re.search(r"Of the (\d+) tests (\d+) have a counterpart", page)
    assert found, f"{PAGE} does not say how many tests have a counterpart"
    counted = (len(every), sum(bool(row[1]) for row in every))
    assert tuple(map(int, found.groups())) == counted, f"{PAGE} has {counted}"


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
