# SPDX-License-Identifier: Apache-2.0
"""Staged tensors and handles: how a tensor of any framework gets into horon and a result back.

A framework derives its tensors from Staged. A Handle is made of staged tensors before anything
begins; so the code that begins it knows at any time what has begun, even if a signal's handler
raises in the middle.
"""

from abc import ABC

from horon import _horon
from horon.exceptions import HorovodInternalError

NOTHING = object()  # the target of a rank that gets nothing


def check_sign(value):
    """A torch tensor may read with the other sign than it lies with, which DLPack cannot say; of
    conj() torch says it itself."""
    is_neg = getattr(value, "is_neg", None)
    if is_neg is not None and is_neg():
        raise ValueError("the tensor has its negative bit set: resolve_neg() gives one without")


class Staged:
    """One tensor on its way.

    source: what the extension reads: an object with a buffer or DLPack, or an address.
    target: what it writes: the source, in place; None: memory of horon's own; or NOTHING.
    dtype, shape, keep: as Context.submit() takes them; what the source tells itself may be None.
    """

    __slots__ = ("dtype", "in_place", "keep", "shape", "source", "target")

    def dimensions(self):
        """-> the shape of what the source tells itself"""
        raise NotImplementedError

    def make_room(self):
        """Sets `target` to new memory for as much as the source has."""
        raise NotImplementedError

    def make_room_for(self, shape):
        """Sets `target` to new memory for another shape, that tells its size."""
        raise NotImplementedError

    def result(self):
        """-> what the caller gets of the target"""
        raise NotImplementedError

    def gathered(self, array):
        """-> what the caller gets of horon's own memory, an Array"""
        raise NotImplementedError

    def write_back(self):
        """-> the tensor that the caller gave, with the source's content in it"""
        raise NotImplementedError

    def finish(self, request):
        if self.target is NOTHING:
            return None
        if self.in_place:
            return self.write_back()
        return self.gathered(request.output()[0]) if self.target is None else self.result()


class Handle(ABC):  # noqa: B024  # so that a PlainHandle counts as one
    """An operation, or a group of them: see poll() and synchronize()."""

    __slots__ = ("_check", "_finish", "_operations", "_requests", "_result", "_team")

    def __init__(self, team, operations, finish, requests=None, result=None):
        """operations: the arguments of Context.submit() but the last, or for a group a list of
        such tuples. finish(requests) -> the result, once all have ended; called again, as an
        interruption may have it, it does no harm."""
        self._team = team
        self._operations = operations
        self._check = None
        self._finish = finish
        self._requests = requests
        self._result = result

    def begin(self, begun=None):
        """Raises with nothing begun. `begun`: a list that holds the requests from then on."""
        requests = self._requests = [] if begun is None else begun
        if type(self._operations) is list:
            self._team.submit_group([(*operation, requests) for operation in self._operations])
        else:
            self._team.submit(*self._operations, requests)
        self._operations = None
        return self

    def poll(self):
        """Whether it has ended, so that wait() would not wait."""
        return all(request.test() for request in self._requests)

    def wait(self, timeout=None):
        """Waits; returns the result, or raises why the operation failed."""
        _horon.wait_all(self._requests, timeout)
        self.raise_refused()
        finish = self._finish  # another thread may be here, too
        if finish is not None:
            self._result = finish(self._requests)
            self._finish = None
        return self._result

    def __call__(self):
        """As wait(): with Horovod the handle of a sparse allreduce is a function."""
        return self.wait()

    def rows(self):
        """What each rank gave to the allgathers, which have ended: a tuple for each of them."""
        return [request.output()[1] for request in self._requests]

    def check(self, function):
        """function(requests) is called before the result is made, once all have ended well."""
        self._check = function
        return self

    def raise_refused(self):
        """Once all have ended well: raises what check() was given to find, if it does."""
        if self._check is not None:
            self._check(self._requests)

    def then(self, function):
        """The result goes through the function."""
        finish = self._finish
        self._finish = lambda requests: function(finish(requests))
        return self

    def then_with_rows(self, function):
        """The result of allgathers goes through the function, and beside it what rows() tells."""
        return self.then(lambda result: function(result, self.rows()))


# An operation that needs nothing more once it has ended.
Handle.register(_horon.PlainHandle)


def refuse_joined(team, what, names, requests, places=()):
    """Raises if a rank had joined when these were carried out, for what cannot be then.

    names: of the requests. places: in the team, of ranks that are known to have joined.
    """
    joined = max((request.joined for request in requests), default=0)
    if not joined or team.setting("JOIN_VERBS") == "all":
        return
    if joined == team.size - 1:
        places = [place for place in range(team.size) if place != team.rank]
    name = next(name for name, one in zip(names, requests, strict=True) if one.joined == joined)
    raise HorovodInternalError(
        f"{what} is not supported with join, as with Horovod, and {joined} of the ranks have "
        "joined; HORON_JOIN_VERBS=all lets it go on without their rows",
        _horon.STATUSES["ERR_MISMATCH"],
        "JOINED",
        team.ranks[places[0]] if places else None,
        host=team.hosts[places[0]] if places else "",
        name=name,
    )


def _no_handle(value, kind=TypeError):
    return kind(
        f"a handle is needed, as allreduce_async() and the like return, not {type(value).__name__}"
    )


def poll(handle) -> bool:
    """Whether the operation has ended, so that synchronize() would not wait."""
    if not hasattr(handle, "poll"):
        raise _no_handle(handle, ValueError if isinstance(handle, int) else TypeError)
    return handle.poll()


def synchronize(handle, timeout=None):
    """Waits for the operation; returns its result, or raises why it failed.

    As with Horovod, whose handles are numbers, one that is nobody's gives None, and None does.
    """
    if hasattr(handle, "poll"):
        return handle.wait(timeout)
    if handle is None or isinstance(handle, int):
        return None
    raise _no_handle(handle)
