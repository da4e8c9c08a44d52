# SPDX-License-Identifier: Apache-2.0
"""What operations are called on the wire, which is how ranks find each other's.

A name may be as long as its user likes: one that the wire has no room for is cut, and ends in a
hash of the whole. So no operation that comes of another (its gradient, its parts) fails for its
name.
"""

import hashlib
import itertools
from collections import Counter, defaultdict

from horon import _horon

# A character has at most 4 bytes.
_SURELY_FIT = _horon.NAME_BYTES_MAX // 4
_counters = defaultdict(lambda: defaultdict(itertools.count))  # by process set, then by verb


def restart(set_id=None):
    """A new membership of the job, or of one process set: all its ranks count from 0."""
    if set_id is None:
        _counters.clear()
    else:
        _counters.pop(set_id, None)


def fit(name: str) -> str:
    """The name itself, or what stands for one that is too long."""
    if len(name) <= _SURELY_FIT:
        return name
    try:
        data = name.encode()
    except UnicodeEncodeError:
        return name  # refused, with the reason, by the code that reads it
    if len(data) <= _horon.NAME_BYTES_MAX:
        return name
    end = "#" + hashlib.blake2b(data, digest_size=16).hexdigest()
    return data[: _horon.NAME_BYTES_MAX - len(end)].decode(errors="ignore") + end


def auto_name(verb: str, process_set=None) -> str:
    """Names an operation that has no name: every rank's nth call of a verb on one process set is
    one operation.

    A call counts as soon as it is made, also if its arguments are refused or it fails. Else the
    next call of a rank that was refused alone would meet, unnoticed, the others' call before it.
    """
    set_id = getattr(process_set, "process_set_id", None) or 0
    return f"{verb}.noname.{next(_counters[set_id][verb])}"


def operation_name(verb: str, name: str | None, process_set) -> str:
    """Comes before any check of arguments: a call that is refused on one rank counts, too."""
    return fit(f"{verb}.{name}") if name else auto_name(verb, process_set)


def group_name(verb: str, name: str | None, process_set) -> str:
    return operation_name(verb if name else f"grouped_{verb}", name, process_set)


def member_names(name: str, n: int) -> list[str]:
    """They do not tell n: if ranks differ in it, they meet at the first name, and fail."""
    return [fit(f"{name}[{i}]") for i in range(n)]


def part_name(name: str, part: str) -> str:
    """Of an operation that another needs."""
    return fit(f"{name}.{part}")


def named_items(values, name):
    """-> [(name, value), ...] of a dict, of pairs, or of values, numbered under this name"""
    if hasattr(values, "items"):
        return sorted(values.items())
    return [
        value if isinstance(value, tuple) else (f"{name}.{i}", value)
        for i, value in enumerate(values)
    ]


def check_unique(names):
    """Raises on every rank that has these; on the wire the second would wait for the first."""
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise ValueError(
            f"Parameter names must be unique. Found duplicates: {', '.join(map(str, twice))}"
        )
