# SPDX-License-Identifier: Apache-2.0
"""Bytes, plain data and objects of any size between ranks.

What horon itself sends is plain data (_plain.py). Objects of the application are pickled by its own
ranks for each other, and a rank that unpickles runs what the sender likes: with the setting
OBJECTS=refuse no object is sent or unpickled.

A rank that cannot make bytes of its value, or has no room for another's, says why instead, so that
all ranks raise and none waits: the first byte tells a value from a cause.
"""

import io
import pickle
from array import array

from horon import _horon, _plain
from horon._names import operation_name, part_name
from horon._staging import refuse_joined
from horon._world import global_process_set, team_of
from horon.exceptions import HorovodInternalError, clean, describe, tell_about

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


def _rows(request):
    """Waits; -> what each rank gave"""
    request.wait()
    output, rows = request.output()
    view = memoryview(output)
    views = []
    for count in rows:
        views.append(view[:count])
        view = view[count:]
    return views


def _allgather_bytes(team, name, data):
    return _rows(team.submit(_horon.ALLGATHER, name, data, None))


def _text(view):
    return clean(bytes(view).decode(errors="replace"))


def begin_allgather_texts(team, name, text, begun):
    """Puts the request into `begun`; texts_of() it gives the ranks' texts."""
    data = text.encode(errors="replace")
    team.submit(
        _horon.ALLGATHER, name, data, None, 0, 0, 1.0, 1.0, 0, None, None, None, None, 0, begun
    )


def texts_of(request):
    return [_text(view) for view in _rows(request)]


_STATUSES = {MemoryError: ("ERR_MEMORY", "RESOURCE")}


def _about(team, error, name, rank, other_rank=None, status="ERR_INVALID", cause="ARGUMENT"):
    """-> the error, which tells of this rank of the job"""
    host = team.hosts[team.ranks.index(rank)]
    return tell_about(error, status, cause, rank, other_rank, host, name)


def _raise_causes(team, name, causes, kind, differing=(), root=None):
    """causes: by rank; "" is none. differing: the ranks of which they tell how the root differs."""
    failed = [rank for rank, cause in causes.items() if cause]
    if not failed:
        return
    told = "; ".join(f"rank {rank}: {clean(causes[rank])}" for rank in failed)
    error = kind(f"'{name}' failed: {told}")
    rank = failed[0]
    if rank in differing:
        raise _about(team, error, name, *sorted((rank, root)), "ERR_MISMATCH", "DESCRIPTION")
    raise _about(team, error, name, rank, None, *_STATUSES.get(kind, ()))


def agree(team, name, cause, kind):
    """Raises `kind` on every rank if one has a cause; "" is none."""
    views = _allgather_bytes(team, name, cause.encode(errors="replace"))
    causes = [_text(view) for view in views]
    _raise_causes(team, name, dict(zip(team.ranks, causes, strict=True)), kind)


def _room(size):
    return _horon.Array((size,), _horon.DTYPES["uint8"])


def _broadcast_bytes(team, name, data, root):
    """Gives every rank the root's bytes. Every rank raises MemoryError if one has no room."""
    is_root = team.rank == root
    size = array("q", [len(data)])
    size_name = part_name(name, "size")
    request = team.submit(_horon.BROADCAST, size_name, size, size, 0, root)
    request.wait()
    refuse_joined(team, "broadcast", [size_name], [request])
    room, lack = None, ""
    try:
        if not is_root:
            room = _room(size[0])
    except (MemoryError, ValueError):  # ValueError: more than the address space
        lack = f"no memory for {size[0]} bytes"
    agree(team, part_name(name, "room"), lack, MemoryError)
    buffer = data if is_root else room
    team.submit(_horon.BROADCAST, part_name(name, "data"), buffer, room, 0, root).wait()
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


def _check(team, codec, name, views, error):
    """Raises why ranks of `views`, {rank: what it sent}, have sent no value."""
    failed = [rank for rank, view in views.items() if view[:1] != _VALUE]
    if failed:
        causes = "; ".join(
            f"rank {rank} cannot {codec.send} its {codec.what}: {_text(views[rank][1:])}"
            for rank in failed
        )
        told = codec.dump_error(f"'{name}' failed: {causes}")
        raise _about(team, told, name, failed[0]) from error


def _load(team, codec, name, rank, view):
    try:
        return codec.load(view[1:])
    except Exception as error:
        told = codec.load_error(
            f"'{name}': the {codec.what} of rank {rank} cannot be {codec.read} here: "
            f"{cause_of(error)}"
        )
        raise _about(team, told, name, team.ranks[team.rank], rank) from error


def _broadcast(team, codec, value, root_rank, name):
    root = team.place(root_rank)
    is_root = team.rank == root
    data, error = _dump(codec, value) if is_root else (b"", None)
    view = _broadcast_bytes(team, name, data, root)
    _check(team, codec, name, {root_rank: view}, error)
    return value if is_root else _load(team, codec, name, root_rank, view)


def _allgather(team, codec, value, name):
    """-> {rank: its value}, of those that have not joined"""
    data, error = _dump(codec, value)
    request = team.submit(_horon.ALLGATHER, name, data, None)
    views = dict(zip(team.ranks, _rows(request), strict=True))
    # a rank that has joined gives no bytes, where a cause has some
    joined = [place for place, view in enumerate(views.values()) if not view]
    refuse_joined(team, "allgather", [name], [request], joined)
    if request.joined:
        views = {rank: view for rank, view in views.items() if view}
    _check(team, codec, name, views, error)
    return {rank: _load(team, codec, name, rank, view) for rank, view in views.items()}


def broadcast_plain(team, value, root_rank, name, to_plain=None, from_plain=None):
    """Gives every rank the root's plain data."""
    return _broadcast(team, _Plain(to_plain, from_plain), value, root_rank, name)


def allgather_plain(team, value, name):
    """-> {rank: its plain data}, of those that have not joined"""
    return _allgather(team, _Plain(), value, name)


def compare(team, value, root_rank, name, cause, difference):
    """-> the root's plain data

    Raises ValueError on every rank if one has a cause, or what difference(value, of_root) says of
    its data; "" is none. Ranks that have joined have neither.
    """
    if root_rank not in team.ranks:  # before a rank that has joined is blamed
        raise ValueError(f"root {root_rank} is no rank of 0..{team.size - 1}")
    ranks = allgather_plain(team, [value, cause], f"{name}.begin")
    if root_rank not in ranks:
        error = HorovodInternalError(f"'{name}' failed: its root, rank {root_rank}, has joined")
        raise _about(team, error, name, root_rank, None, "ERR_MISMATCH", "JOINED")
    of_root, _ = ranks[root_rank]
    causes = {rank: cause or difference(value, of_root) for rank, (value, cause) in ranks.items()}
    differing = [rank for rank, (_, cause) in ranks.items() if not cause]
    _raise_causes(team, name, causes, ValueError, differing, root_rank)
    return of_root


def broadcast_state(verbs, value, root_rank, name, codec, process_set):
    """Gives every rank the root's plain data, and tensors that travel beside it.

    codec: to_plain() and from_plain() of a tensor, see _plain.py; they put it, or room for it, into
    the list `tensors`.
    """
    team, cause = team_of(process_set), ""
    try:
        value = broadcast_plain(team, value, root_rank, name, codec.to_plain, codec.from_plain)
    except ValueError as error:  # this rank cannot make room for it
        cause = cause_of(error)
    agree(team, f"{name}.ready", cause, ValueError)
    named = [(f"{name}.{i}", tensor) for i, tensor in enumerate(codec.tensors)]
    verbs.broadcast_all(named, root_rank, process_set)
    return value


def _check_objects_allowed(team):
    if team.setting("OBJECTS") == "refuse":
        raise ValueError(
            "objects are neither sent nor unpickled here: the setting OBJECTS is refuse"
        )


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """Gives every rank the root's object. Returns it (on the root, `obj` itself). `root_rank` is a
    rank of the job.

    If the root cannot pickle it, every rank raises pickle.PicklingError, and if a rank has no
    memory for it, MemoryError; pickle.UnpicklingError comes from a rank that cannot make an object
    of it. HoronInternalError if a rank has joined, unless HORON_JOIN_VERBS says "all".
    """
    name = operation_name("broadcast_object", name, process_set)
    team = team_of(process_set)
    _check_objects_allowed(team)
    return _broadcast(team, _Pickled, obj, root_rank, name)


def allgather_object(obj, name=None, process_set=global_process_set):
    """Returns the list of all ranks' objects, in rank order.

    If a rank cannot pickle its own, every rank raises pickle.PicklingError; pickle.UnpicklingError
    comes from a rank that cannot make objects of them. HoronInternalError if a rank has joined,
    unless HORON_JOIN_VERBS says "all"; then its object is left out.
    """
    name = operation_name("allgather_object", name, process_set)
    team = team_of(process_set)
    _check_objects_allowed(team)
    return list(_allgather(team, _Pickled, obj, name).values())
