# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of the part that they take in a step, and how they differ.

Every rank hears the texts of all, and so finds the same difference.
"""

from horon import _horon
from horon._names import operation_name
from horon.exceptions import HoronInternalError

_BEFORE_MEMBER = "\t"  # in what is told about a gradient that is in a group


def text_of_part(slots, groups):
    """-> the gradients that this rank exchanges in this step: their names; of a group's, first
    what it goes by, as it meets what other ranks have in that place"""
    alone = [slot.name for slot in slots if slot.group is None and slot.takes_part()]
    grouped = [
        name.removeprefix("allreduce.") + _BEFORE_MEMBER + slot.name
        for group in groups
        for name, slot in zip(group.wire_names(), group.slots, strict=True)
    ]
    return "\n".join(["", *alone, *grouped, ""])


def difference(team, texts):
    """-> what to raise if two ranks differ, or None. A rank that has joined has no text."""
    names_of = {text: set(text.split("\n")[1:-1]) for text in set(texts)}  # mostly one
    parts = {rank: names_of[text] for rank, text in zip(team.ranks, texts, strict=True) if text}
    every = set().union(*parts.values())
    lacking = {rank: sorted(every - names) for rank, names in parts.items() if every - names}
    if not lacking:
        return None
    rank, names = next(iter(lacking.items()))
    other = next(one for one, its in parts.items() if names[0] in its)
    name, _, member = names[0].partition(_BEFORE_MEMBER)
    what = f"{member}, as {name} of a group," if member else name
    return HoronInternalError(
        f"the gradient of {what} is exchanged by rank {other} and not by rank {rank}, where it "
        "is frozen, not in the optimizer or in another group: freeze, add or group it on all "
        "ranks alike, between the same steps, or on none",
        _horon.STATUSES["ERR_MISMATCH"],
        "DESCRIPTION",
        *sorted((rank, other)),
        host=team.hosts[team.ranks.index(min(rank, other))],
        name=operation_name("allreduce", name, None),
    )
