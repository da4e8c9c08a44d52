# SPDX-License-Identifier: Apache-2.0
"""A verb is a value in horon.h, a row in verbs.c, a file with its algorithm, and a row in the table
of each backend that has it. What else of the library names a verb codes what a row should say."""

import re

import tap
import tree

# The table of each backend: which file carries a verb out.
TABLES = ("collectives/channel.c",)
PLACES = ("include/horon/horon.h", "collectives/verbs.c", *TABLES)


def verbs():
    """The words of the enum, without HORON_."""
    enum = re.search(r"typedef enum horon_verb \{(.*?)\}", tree.text(PLACES[0]), re.DOTALL).group(1)
    return re.findall(r"^ *HORON_(\w+) = \d+", enum, re.MULTILINE)


def named_in(text):
    """Also where the verb begins a longer name: that is a constant of one verb, or of a room."""
    rooms = "|".join(path.name.upper() for path in (tree.ROOT / "collectives").iterdir())
    return [
        verb
        for verb in verbs()
        if re.search(rf"\bHORON_{verb}{'(?!_)' if verb in rooms.split('|') else ''}(?![A-Z])", text)
    ]


def test_verbs_are_named_in_their_rows_and_files_only():
    assert len(verbs()) >= 4, "the enum of verbs was not understood"
    problems = []
    for name in tree.files(".c", ".h", under=("include", "runtime", "collectives")):
        if str(name) in PLACES:
            continue
        problems += [
            f"{name} names HORON_{verb}: ask its row in collectives/verbs.h"
            for verb in named_in(tree.text(name))
            if name.stem.split("_")[0] != verb.lower() or name.parent.name != "collectives"
        ]
    tree.assert_none(problems, "files name a verb")


def test_verbs_have_a_row_each():
    rows = named_in(tree.text("collectives/verbs.c"))
    assert rows == verbs(), f"rows of {rows}, verbs {verbs()}"


def test_verbs_are_found_where_they_are_named():
    found = named_in("if (verb == HORON_BARRIER) return HORON_ALLREDUCES; HORON_BROADCAST_NAME")
    assert found == ["BROADCAST", "BARRIER"], found


if __name__ == "__main__":
    tap.run(vars())
