# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of the part that they take in a step, and how they differ.

Every rank hears the texts of all, and so finds the same difference.
"""

from horon import _horon
from horon._names import operation_name
from horon.exceptions import HoronInternalError

_BEFORE_MEMBER = "\t"  # in what is told about a gradient that is in a group

# What a rank has made of the gradients that the last synchronize() gave it, before a step for which
# it has computed none: told as if it were a gradient. Ranks that differ are not in the same step.
STEPPED = "\tstepped"
CLEARED = "\tcleared"


def text_of_part(slots, groups, made_of_last):
    """-> the gradients that this rank exchanges in this step: their names; of a group's, first
    what it goes by, as it meets what other ranks have in that place. made_of_last: "", or one of
    the two above"""
    alone = [slot.name for slot in slots if slot.group is None and slot.takes_part()]
    grouped = [
        name.removeprefix("allreduce.") + _BEFORE_MEMBER + slot.name
        for group in groups
        for name, slot in zip(group.wire_names(), group.slots, strict=True)
    ]
    made = [made_of_last] if made_of_last else []
    return "\n".join(["", *made, *alone, *grouped, ""])


def _out_of_step(team, parts):
    """-> what to raise if a rank has cleared what another one has stepped with, or None"""
    cleared = next((rank for rank, names in parts.items() if CLEARED in names), None)
    stepped = next((rank for rank, names in parts.items() if STEPPED in names), None)
    for names in parts.values():
        names -= {CLEARED, STEPPED}
    if cleared is None or stepped is None:
        return None
    first = min(cleared, stepped)
    return HoronInternalError(
        f"rank {cleared} has called zero_grad() after synchronize(), and then begun a step without "
        f"gradients of its own; rank {stepped} has stepped with what synchronize() gave: call "
        "zero_grad() there on all ranks, or on none; broadcast_parameters() and "
        "broadcast_optimizer_state() make ranks alike",
        _horon.STATUSES["ERR_MISMATCH"],
        "DESCRIPTION",
        *sorted((cleared, stepped)),
        host=team.hosts[team.ranks.index(first)],
    )


def difference(team, texts):
    """-> what to raise if two ranks differ, or None. A rank that has joined has no text."""
    names_of = {text: set(text.split("\n")[1:-1]) for text in set(texts)}  # mostly one
    parts = {rank: names_of[text] for rank, text in zip(team.ranks, texts, strict=True) if text}
    odd = _out_of_step(team, parts)
    if odd is not None:
        return odd
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
