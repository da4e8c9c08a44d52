# SPDX-License-Identifier: Apache-2.0
"""Bytes, plain data and objects of any size between ranks.

What horon itself sends is plain data (_plain.py). Objects of the application are pickled by its own
ranks for each other, and whoever unpickles runs what the sender likes: with the setting
OBJECTS=refuse no object is sent or unpickled.

A rank that cannot make bytes of its value, or has no room for another's, says why instead, so that
all ranks raise and none waits: the first byte tells a value from a cause.
"""

import io
import pickle
from array import array

from horon import _horon, _plain
from horon._names import operation_name, part_name
from horon._world import check_process_set, context
from horon.exceptions import describe

try:  # functions and classes of a script's __main__ pickle only this way
    import cloudpickle
except ImportError:
    cloudpickle = pickle

_VALUE = b"="
_CAUSE = b"!"
CAUSE_CHARACTERS_MAX = 1000  # of what one rank tells the others about its failure


def cause_of(error) -> str:
    return describe(error)[:CAUSE_CHARACTERS_MAX]


# ---- Bytes ----


def _allgather_bytes(name, data):
    """-> what each rank gave"""
    request = context().submit(_horon.ALLGATHER, name, data, None)
    request.wait()
    output, rows = request.output()
    view = memoryview(output)
    views = []
    for count in rows:
        views.append(view[:count])
        view = view[count:]
    return views


def _text(view):
    return bytes(view).decode(errors="replace")


def allgather_texts(text, name):
    """-> the ranks' texts"""
    views = _allgather_bytes(name, text.encode(errors="replace"))
    return [_text(view) for view in views]


def agree(name, cause, kind):
    """Raises `kind` on every rank if one has a cause; "" is none."""
    causes = enumerate(allgather_texts(cause, name))
    failed = [f"rank {rank}: {text}" for rank, text in causes if text]
    if failed:
        raise kind(f"'{name}' failed: {'; '.join(failed)}")


def _room(size):
    return _horon.Array((size,), _horon.DTYPES["uint8"])


def _broadcast_bytes(name, data, root_rank):
    """Gives every rank the root's bytes. Every rank raises MemoryError if one has no room."""
    ctx = context()
    is_root = ctx.rank == root_rank
    size = array("q", [len(data)])
    ctx.submit(_horon.BROADCAST, part_name(name, "size"), size, size, 0, root_rank).wait()
    room, lack = None, ""
    try:
        if not is_root:
            room = _room(size[0])
    except (MemoryError, ValueError):  # ValueError: more than the address space
        lack = f"no memory for {size[0]} bytes"
    agree(part_name(name, "room"), lack, MemoryError)
    buffer = data if is_root else room
    ctx.submit(_horon.BROADCAST, part_name(name, "data"), buffer, room, 0, root_rank).wait()
    return memoryview(buffer)


# ---- Values ----


class _Pickled:
    """Objects, as the application's classes say."""

    dump = staticmethod(cloudpickle.dump)
    load = staticmethod(pickle.loads)
    dump_error, load_error = pickle.PicklingError, pickle.UnpicklingError
    what, send, read = "object", "pickle", "unpickled"


class _Plain:
    """Plain data, with what `to_plain` and `from_plain` add: see _plain.encode() and decode()."""

    dump_error, load_error = TypeError, ValueError
    what, send, read = "data", "send", "read"

    def __init__(self, to_plain=None, from_plain=None):
        self.to_plain = to_plain
        self.from_plain = from_plain

    def dump(self, value, file):
        file.write(_plain.encode(value, self.to_plain))

    def load(self, data):
        return _plain.decode(data, self.from_plain)


def _dump(codec, value):
    """-> what to send for `value`, and None or what went wrong with it."""
    file = io.BytesIO()
    file.write(_VALUE)
    try:
        codec.dump(value, file)
    except Exception as error:
        return _CAUSE + cause_of(error).encode(errors="replace"), error
    return file.getbuffer(), None


def _check(codec, name, views, error):
    """Raises why ranks of `views`, {rank: what it sent}, have sent no value."""
    causes = [
        f"rank {rank} cannot {codec.send} its {codec.what}: {_text(view[1:])}"
        for rank, view in views.items()
        if view[:1] != _VALUE
    ]
    if causes:
        raise codec.dump_error(f"'{name}' failed: {'; '.join(causes)}") from error


def _load(codec, name, rank, view):
    try:
        return codec.load(view[1:])
    except Exception as error:
        raise codec.load_error(
            f"'{name}': the {codec.what} of rank {rank} cannot be {codec.read} here: "
            f"{cause_of(error)}"
        ) from error


def _broadcast(codec, value, root_rank, name):
    is_root = context().rank == root_rank
    data, error = _dump(codec, value) if is_root else (b"", None)
    view = _broadcast_bytes(name, data, root_rank)
    _check(codec, name, {root_rank: view}, error)
    return value if is_root else _load(codec, name, root_rank, view)


def _allgather(codec, value, name):
    data, error = _dump(codec, value)
    views = dict(enumerate(_allgather_bytes(name, data)))
    _check(codec, name, views, error)
    return [_load(codec, name, rank, view) for rank, view in views.items()]


def broadcast_plain(value, root_rank, name, to_plain=None, from_plain=None):
    """Gives every rank the root's plain data."""
    return _broadcast(_Plain(to_plain, from_plain), value, root_rank, name)


def allgather_plain(value, name):
    """-> all ranks' plain data"""
    return _allgather(_Plain(), value, name)


def _check_objects_allowed():
    if context().setting("OBJECTS") == "refuse":
        raise ValueError(
            "objects are neither sent nor unpickled here: the setting OBJECTS is refuse"
        )


def broadcast_object(obj, root_rank=0, name=None, process_set=None):
    """Gives every rank the root's object. Returns it (on the root, `obj` itself).

    If the root cannot pickle it, every rank raises pickle.PicklingError, and if a rank has no
    memory for it, MemoryError; pickle.UnpicklingError comes from a rank that cannot make an object
    of it.
    """
    name = operation_name("broadcast_object", name)
    check_process_set(process_set)
    _check_objects_allowed()
    return _broadcast(_Pickled, obj, root_rank, name)


def allgather_object(obj, name=None, process_set=None):
    """Returns the list of all ranks' objects, in rank order.

    If a rank cannot pickle its own, every rank raises pickle.PicklingError; pickle.UnpicklingError
    comes from a rank that cannot make objects of them.
    """
    name = operation_name("allgather_object", name)
    check_process_set(process_set)
    _check_objects_allowed()
    return _allgather(_Pickled, obj, name)
