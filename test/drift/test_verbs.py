# SPDX-License-Identifier: Apache-2.0
"""A verb is a value in horon.h, a row in verbs.c, a file with its algorithm, and an entry in the
table of each backend that has it. What else of the library names a verb codes what a row should
say: as a constant, in an identifier or in a text."""

import re

import tap
import tree

# The table of each backend: of which verbs it has code.
TABLES = ("collectives/channel.c", "collectives/backend/gloo.c", "collectives/backend/mpi.c")
PLACES = ("include/horon/horon.h", "collectives/verbs.c", *TABLES)

# Verbs whose words mean other things, too, in identifiers and texts: these are not looked for.
ORDINARY = {
    "gather": "writev() gathers, and a coordinator gathers reports",
    "scatter": "the counterpart, as in scattered",
    "reduce": "what many verbs do with elements",
    "send": "what links and sockets do",
    "recv": "what links and sockets do",
}
# (file or folder, verb or "" for all of them): why it may be named there.
EXEMPT = {
    ("collectives/backend/gloo_plan.c", ""): "Gloo's schedules, which are of its own verbs",
    ("collectives/backend/gloo_plan.h", ""): "likewise",
    ("collectives/backend/gloo_run.c", ""): "which of those schedules an operation has",
    ("runtime/base/config.c", ""): "the texts of settings tell users which verbs they concern",
    ("collectives/channel_state.h", ""): "it declares what the table in channel.c points to",
    ("collectives/woven.c", "allreduce"): "it is a part of allreduce.c: the one on a single host",
    ("collectives/reduce.c", "allreduce"): "it shares the state and most steps of an allreduce",
    ("runtime/boot/identity/pmi.c", "barrier"): "a word of the launcher's protocol",
    ("runtime/boot/gloo/c10d_group.c", "barrier"): "it stands in a key of torch's",
    ("collectives/plan", "broadcast"): "a schedule between hosts, which many verbs use",
}


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


def is_file_of(name, verb):
    return name.parent.name == "collectives" and name.stem.split("_")[0] == verb


def words_in(source):
    """(line, verb) of identifiers and strings, in either case; comments and includes may."""
    code = re.sub(r"^ *# *include.*", "", source, flags=re.MULTILINE)
    wanted = "|".join(verb.lower() for verb in verbs() if verb.lower() not in ORDINARY)
    pattern = re.compile(rf"(?<![a-z])({wanted})s?(?![a-z])", re.IGNORECASE)
    for kind, first, text in tree.c_tokens(code):
        if kind != "comment":
            for found in pattern.finditer(text):
                yield first + text.count("\n", 0, found.start()), found.group(1).lower()


def exemption_of(name, verb):
    for (place, named), why in EXEMPT.items():
        if named in ("", verb) and (str(name) == place or place in map(str, name.parents)):
            assert why
            return (place, named)
    return None


def test_verbs_are_words_of_their_files_only():
    problems, used = [], set()
    for name in tree.files(".c", ".h", under=("include", "runtime", "collectives")):
        for line, verb in words_in(tree.text(name)) if str(name) not in PLACES else ():
            exemption = exemption_of(name, verb)
            used.add(exemption)
            if not exemption and not is_file_of(name, verb):
                problems.append(f"{name}:{line} says {verb}: ask its row in collectives/verbs.h")
    tree.assert_none(problems, "places say a verb")
    tree.assert_none(EXEMPT.keys() - used, "exemptions that nothing needs")


def test_verbs_are_found_as_words():
    source = (
        '#include "allreduce_state.h"\n/* a barrier\n */ int *barriers_held; // barrier\n'
        'say("no\\"t a broadcast /*");\n#define A_BARRIER 1\nint gathers, barriered, allgather2;'
    )
    found = list(words_in(source))
    assert found == [(3, "barrier"), (4, "broadcast"), (5, "barrier"), (6, "allgather")], found


def test_verbs_are_named_in_their_rows_and_files_only():
    assert len(verbs()) >= 4, "the enum of verbs was not understood"
    problems = []
    for name in tree.files(".c", ".h", under=("include", "runtime", "collectives")):
        if str(name) in PLACES:
            continue
        problems += [
            f"{name} names HORON_{verb}: ask its row in collectives/verbs.h"
            for verb in named_in(tree.text(name))
            if not is_file_of(name, verb.lower())
        ]
    tree.assert_none(problems, "files name a verb")


def test_verbs_are_claimed_by_backends_whose_tables_have_them():
    """A row says what counts for a verb, and not that there is code for it."""
    problems, backends = [], 0
    for name in tree.files(".c", under=("collectives/backend",)):
        source = tree.text(name)
        for slot in re.findall(r"\.has = (\w+),", source):
            backends += 1
            claim = re.search(rf"^static bool {slot}\(.*?^\}}", source, re.M | re.S).group(0)
            of_channel = "horon_channel_has((horon_verb_t)agreed->verb)" in claim
            if not of_channel and not ("[agreed->verb]" in claim and str(name) in TABLES):
                problems.append(f"{name} claims verbs that no table of TABLES has")
    assert backends >= 3, "the backends' has() were not found"
    tree.assert_none(problems, "backends claim any verb")


def test_verbs_have_a_row_each():
    rows = named_in(tree.text("collectives/verbs.c"))
    assert rows == verbs(), f"rows of {rows}, verbs {verbs()}"


def test_verbs_are_found_where_they_are_named():
    found = named_in("if (verb == HORON_BARRIER) return HORON_ALLREDUCES; HORON_BROADCAST_NAME")
    assert found == ["BROADCAST", "BARRIER"], found


if __name__ == "__main__":
    tap.run(vars())
