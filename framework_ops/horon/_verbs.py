# SPDX-License-Identifier: Apache-2.0
"""The verbs, on the tensors of any framework: what each is called, takes and gives.

A framework says how its tensors are staged, and has all of them: numpy does in _arrays.py, and
horon.torch adds autograd. A verb is a row here, and the functions by which users call it.
"""

from functools import update_wrapper, wraps
from types import FunctionType
from typing import NamedTuple

from horon import _horon
from horon._names import group_name, member_names, operation_name
from horon._staging import Handle
from horon._world import global_process_set, resolve_op, team_of


class Verb(NamedTuple):
    code: int  # the extension's
    name: str  # what names of operations begin with
    done: str  # what its tensors are
    reduces: bool = False  # its elements are numbers
    gathers: bool = False  # the output is horon's own, and has the ranks' rows; a scalar is a row


# What users call; every framework's adapter has all of them.
FUNCTIONS = (
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
)

ALLREDUCE = Verb(_horon.ALLREDUCE, "allreduce", "reduced", reduces=True)
ALLGATHER = Verb(_horon.ALLGATHER, "allgather", "gathered", gathers=True)
BROADCAST = Verb(_horon.BROADCAST, "broadcast", "broadcast")


def _derived(begin, name, call):
    """`call` as a function with the arguments of `begin`."""
    call = wraps(begin)(call)
    call.__name__ = name
    call.__qualname__ = begin.__qualname__.replace(begin.__name__, name)
    return call


def _waiting(begin):
    """The function that waits for what `begin` begins."""

    def call(*args, **kwargs):
        return begin(*args, **kwargs).wait()

    return _derived(begin, begin.__name__.replace("_async", ""), call)


class _InPlace:
    """A method under a name of its own, bound to the verbs in place: no frame is between."""

    def __init__(self, begin):
        name = f"{begin.__name__}_"
        self.function = FunctionType(
            begin.__code__, begin.__globals__, name, begin.__defaults__, begin.__closure__
        )
        self.function = update_wrapper(self.function, begin)
        self.function.__name__ = name
        self.function.__qualname__ = begin.__qualname__.replace(begin.__name__, name)
        self.function.__doc__ = f"In place. {begin.__doc__}"

    def __get__(self, verbs, cls):
        return self.function.__get__(verbs.in_place, cls)


class Verbs:
    """The verbs on one framework's tensors: stage_tensor(tensor, verb, in_place) -> Staged.

    `in_place` are the same verbs, whose results go where the tensors are.
    """

    def __init__(self, stage_tensor, is_in_place=False):
        self.stage_tensor = stage_tensor
        self.is_in_place = is_in_place
        self.in_place = self if is_in_place else type(self)(stage_tensor, True)

    # ---- Any verb ----

    def _operation(self, verb, name, tensor, op=0, root=0, prescale=1.0, postscale=1.0):
        """-> a staged tensor, and what Context.submit() takes"""
        staged = self.stage_tensor(tensor, verb, self.is_in_place)
        staged.in_place = self.is_in_place
        if staged.in_place:
            staged.target = staged.source
        elif verb.gathers:
            staged.target = None
        else:
            staged.make_room()
        numbers = (op, root, prescale, postscale, 0)
        place = (staged.dtype, staged.shape, staged.keep)
        return staged, (verb.code, name, staged.source, staged.target, *numbers, *place)

    def stage(self, team, verb, name, tensor, *numbers):
        """-> the Handle of one operation that has not begun; numbers: as _operation() takes them"""
        staged, operation = self._operation(verb, name, tensor, *numbers)
        return Handle(team, operation, lambda requests: staged.finish(requests[0]))

    def stage_group(self, team, verb, names, tensors, *numbers):
        """-> the Handle of operations that become ready together; its result is a list"""
        pairs = [
            self._operation(verb, name, tensor, *numbers)
            for name, tensor in zip(names, tensors, strict=True)
        ]

        def finish(requests):
            return [
                staged.finish(request) for (staged, _), request in zip(pairs, requests, strict=True)
            ]

        return Handle(team, [operation for _, operation in pairs], finish)

    def begin(self, *args):
        """As stage(), begun."""
        return self.stage(*args).begin()

    def begin_group(self, team, verb, name, tensors, *numbers):
        tensors = list(tensors)
        names = member_names(name, len(tensors))
        return self.stage_group(team, verb, names, tensors, *numbers).begin()

    # ---- Each verb ----

    def allreduce_async(
        self,
        tensor,
        average=None,
        name=None,
        op=None,
        prescale_factor=1.0,
        postscale_factor=1.0,
        process_set=global_process_set,
    ):
        """Combines the ranks' tensors: every rank gets the average, or what `op` says.

        Dtype and shape agree on all ranks for one name. Each input is multiplied by
        prescale_factor before, the result by postscale_factor after.
        """
        name, team = operation_name("allreduce", name), team_of(process_set)
        op = resolve_op(op, average)
        return self.begin(team, ALLREDUCE, name, tensor, op, 0, prescale_factor, postscale_factor)

    def grouped_allreduce_async(
        self,
        tensors,
        average=None,
        name=None,
        op=None,
        prescale_factor=1.0,
        postscale_factor=1.0,
        process_set=global_process_set,
    ):
        """As allreduce, for a list of tensors that are combined together."""
        name, team = group_name("allreduce", name), team_of(process_set)
        numbers = (resolve_op(op, average), 0, prescale_factor, postscale_factor)
        return self.begin_group(team, ALLREDUCE, name, tensors, *numbers)

    def allgather_async(self, tensor, name=None, process_set=global_process_set):
        """Joins the ranks' tensors, in rank order, along the first dimension, in which they may
        differ. A scalar gives one row."""
        name, team = operation_name("allgather", name), team_of(process_set)
        return self.begin(team, ALLGATHER, name, tensor)

    def grouped_allgather_async(self, tensors, name=None, process_set=global_process_set):
        """As allgather, for a list of tensors that are joined together."""
        name, team = group_name("allgather", name), team_of(process_set)
        return self.begin_group(team, ALLGATHER, name, tensors)

    def broadcast_async(self, tensor, root_rank, name=None, process_set=global_process_set):
        """Every rank gets the root's tensor."""
        name, team = operation_name("broadcast", name), team_of(process_set)
        return self.begin(team, BROADCAST, name, tensor, 0, root_rank)

    allreduce = _waiting(allreduce_async)
    grouped_allreduce = _waiting(grouped_allreduce_async)
    allgather = _waiting(allgather_async)
    grouped_allgather = _waiting(grouped_allgather_async)
    broadcast = _waiting(broadcast_async)

    allreduce_async_ = _InPlace(allreduce_async)
    allreduce_ = _InPlace(allreduce)
    grouped_allreduce_async_ = _InPlace(grouped_allreduce_async)
    grouped_allreduce_ = _InPlace(grouped_allreduce)
    broadcast_async_ = _InPlace(broadcast_async)
    broadcast_ = _InPlace(broadcast)


def barrier(process_set=global_process_set):
    """Returns once every rank has called it."""
    team_of(process_set).submit(_horon.BARRIER, None, None, None).wait()
