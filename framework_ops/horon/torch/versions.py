# SPDX-License-Identifier: Apache-2.0
"""Which gradients were written while they were on their way, by what torch counts.

A tensor has a counter, its version, which rises with each change in place. What horon changes
itself it counts before it notes the version, and what its own threads write raises nothing; so a
gradient whose version is above the noted one was written by somebody else.

Views of one tensor share its counter, and so do the gradients that torch itself cuts from one
tensor: those of parameters that were joined by cat(). There a rise may have been right. It was if
it came before the last note: backward adds to one gradient when another is on its way already. It
may have been if not all of the memory is on its way: what lies beside these gradients (that of a
parameter which no pass has used, or which another optimizer has) may be written at any time.

But if they fill the memory, the rise is after the last note and nobody had a right to it: each of
them was complete before it was noted, and all of them were to stay as they are.

Nothing tells which tensors share a counter. That they lie in one memory and have the same version
now is needed for it, and taken for it: a mistake can hide a change, but not make one up. Nor can
the counter, which begins anew after 2**32 changes. A gradient that was made in inference mode has
no counter, and what is written to it is not found.
"""


def version_of(gradient):
    """-> how often torch has counted that it was changed in place; 0 if torch does not count"""
    return 0 if gradient.is_inference() else gradient._version


def written(slots):
    """-> of these slots, whose gradients are on their way, those that share a counter which tells
    that one of them was written; none, if no gradient was, or nobody can tell"""
    families = {_home(slot): [] for slot in slots if version_of(slot.sent) > slot.version}
    if families:
        for slot in slots:
            families.get(_home(slot), []).append(slot)
    for family in families.values():
        risen = _risen(family)
        if risen and _fill_their_memory(family):
            return risen
    return []


def _home(slot):
    """Equal for the gradients that lie in one memory; a sparse one is by itself."""
    return ("sparse", id(slot)) if slot.memory is None else ("dense", slot.memory.data_ptr())


def _risen(family):
    """-> those whose version is above the last that was noted of any that may share its counter"""
    noted = {}
    for slot in family:
        now = version_of(slot.sent)
        noted[now] = max(slot.version, noted.get(now, 0))
    return [slot for slot in family if version_of(slot.sent) > noted[version_of(slot.sent)]]


def _fill_their_memory(family):
    """Whether it holds nothing but these gradients."""
    if family[0].memory is None:
        return True
    filled = 0
    for first, end in sorted(_span(slot.sent) for slot in family):
        if first > filled:
            return False
        filled = max(filled, end)
    return filled == max(slot.memory.nbytes() for slot in family)


def _span(tensor):
    """-> its first byte and the one behind its last, if its elements lie there without a gap and
    an overlap, in whatever order; otherwise it counts as empty"""
    count = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != count:
                return 0, 0
            count *= size
    first = tensor.storage_offset() * tensor.element_size()
    return first, first + count * tensor.element_size()
