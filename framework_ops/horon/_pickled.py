# SPDX-License-Identifier: Apache-2.0
"""Objects of any size: pickled by the application's own ranks for each other.

The runtime never unpickles anything; what arrives here was sent by the same script on another
authenticated rank, through an ordinary broadcast or allgather of bytes.

A rank that cannot pickle its object sends why instead, so that all ranks raise and none waits. What
arrives is told by its first byte: 0x80 begins a pickle, and no text in UTF-8.
"""

import pickle
from array import array

from horon import _horon
from horon._world import auto_name, check_process_set, context

try:  # functions and classes of a script's __main__ pickle only this way
    import cloudpickle
except ImportError:
    cloudpickle = pickle


_CAUSE_CHARACTERS_MAX = 1000  # of what an object's own code says about why it cannot be pickled


def _dump(obj):
    """-> what to send for `obj`, and None or what went wrong with it."""
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"[:_CAUSE_CHARACTERS_MAX]
        return cause.encode(errors="replace"), error


def _is_pickle(view):
    return view[0] == 0x80


def _check(name, views, error):
    """Raises what the ranks of `views`, {rank: what it sent}, could not pickle."""
    causes = [
        f"rank {rank} cannot pickle its object: {bytes(view).decode(errors='replace')}"
        for rank, view in views.items()
        if not _is_pickle(view)
    ]
    if causes:
        raise pickle.PicklingError(f"'{name}' failed: {'; '.join(causes)}") from error


def _load(name, rank, view):
    try:
        return pickle.loads(view)
    except Exception as error:
        raise pickle.UnpicklingError(
            f"'{name}': the object of rank {rank} cannot be unpickled here: "
            f"{type(error).__name__}: {error}"
        ) from error


def _broadcast_bytes(ctx, name, buffer, root_rank):
    ctx.submit(_horon.BROADCAST, name, buffer, buffer, 0, root_rank).wait()


def broadcast_object(obj, root_rank=0, name=None, process_set=None):
    """Gives every rank the root's object. Returns it (on the root, `obj` itself).

    If the root cannot pickle it, every rank raises pickle.PicklingError; pickle.UnpicklingError
    comes from a rank that cannot make an object of it.
    """
    name = f"broadcast_object.{name}" if name else auto_name("broadcast_object")
    check_process_set(process_set)
    ctx = context()
    is_root = ctx.rank == root_rank
    data, error = _dump(obj) if is_root else (b"", None)
    size = array("q", [len(data)])
    _broadcast_bytes(ctx, name + ".size", size, root_rank)
    data = bytearray(data) if is_root else _horon.Array((size[0],), _horon.DTYPES["uint8"])
    _broadcast_bytes(ctx, name + ".data", data, root_rank)
    view = memoryview(data)
    _check(name, {root_rank: view}, error)
    return obj if is_root else _load(name, root_rank, view)


def allgather_texts(text, name):
    """-> the ranks' texts"""
    request = context().submit(_horon.ALLGATHER, name, text.encode(errors="replace"), None)
    request.wait()
    output, rows = request.output()
    view = memoryview(output)
    texts = []
    for count in rows:
        texts.append(bytes(view[:count]).decode(errors="replace"))
        view = view[count:]
    return texts


def allgather_object(obj, name=None, process_set=None):
    """Returns the list of all ranks' objects, in rank order.

    If a rank cannot pickle its own, every rank raises pickle.PicklingError; pickle.UnpicklingError
    comes from a rank that cannot make objects of them.
    """
    name = f"allgather_object.{name}" if name else auto_name("allgather_object")
    check_process_set(process_set)
    ctx = context()
    data, error = _dump(obj)
    request = ctx.submit(_horon.ALLGATHER, name, data, None)
    request.wait()
    output, rows = request.output()
    view = memoryview(output)
    views = {}
    for rank, count in enumerate(rows):
        views[rank] = view[:count]
        view = view[count:]
    _check(name, views, error)
    return [_load(name, rank, view) for rank, view in views.items()]
