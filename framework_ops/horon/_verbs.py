# SPDX-License-Identifier: Apache-2.0
"""The verbs, on the tensors of any framework: what each is called, takes and gives.

A framework says how its tensors are staged, and has all of them: numpy does in _arrays.py, and
horon.torch adds autograd. A verb is a row here, and the functions by which users call it.
"""

from functools import partial, update_wrapper, wraps
from types import FunctionType
from typing import NamedTuple

from horon import _adasum, _horon, _names
from horon._names import group_name, member_names, operation_name
from horon._staging import NOTHING, Handle, refuse_joined
from horon._world import (
    Adasum,
    Average,
    ProcessSet,
    global_process_set,
    place_of_this_rank,
    resolve_op,
    team_of,
)
from horon.exceptions import HoronInternalError


class Verb(NamedTuple):
    code: int  # the extension's
    name: str  # what names of operations begin with
    done: str  # what its tensors are
    reduces: bool = False  # its elements are numbers
    gathers: bool = False  # the output is horon's own, and has the ranks' rows; a scalar is a row
    to_root: bool = False  # only the root gets anything
    divides: bool = False  # it takes splits; a scalar has no rows for them
    shares: bool = False  # every rank gets its share of the rows
    like_input: bool = False  # every rank's output has the shape of its input
    needs_all: bool = False  # with Horovod it cannot be once a rank has joined


ALLREDUCE = Verb(_horon.ALLREDUCE, "allreduce", "reduced", reduces=True, like_input=True)
ALLGATHER = Verb(_horon.ALLGATHER, "allgather", "gathered", gathers=True, needs_all=True)
ROWS = ALLGATHER._replace(needs_all=False)  # goes on without the rows of ranks that have joined
BROADCAST = Verb(_horon.BROADCAST, "broadcast", "broadcast", like_input=True, needs_all=True)
ALLTOALL = Verb(
    _horon.ALLTOALL, "alltoall", "exchanged", gathers=True, divides=True, needs_all=True
)
GATHER = Verb(_horon.GATHER, "gather", "gathered", gathers=True, to_root=True)
SCATTER = Verb(_horon.SCATTER, "scatter", "scattered", gathers=True, divides=True)
REDUCESCATTER = Verb(
    _horon.REDUCESCATTER, "reducescatter", "reduced", reduces=True, shares=True, needs_all=True
)
REDUCE = Verb(_horon.REDUCE, "reduce", "reduced", reduces=True, to_root=True)
SEND = Verb(_horon.SEND, "send", "sent", to_root=True)
RECV = Verb(_horon.RECV, "recv", "received", like_input=True)
BARRIER = Verb(_horon.BARRIER, "barrier", "met")


_ROWS_MAX = 2**63 - 1


def refused(verb, name, error):
    """-> the ValueError or TypeError as the library tells what it refuses; a message has no name"""
    kind = ValueError if isinstance(error, ValueError) else TypeError
    what = f"{verb.name} '{name}'" if name else verb.name
    return kind(f"{what} was refused: {error}")


def _rows_of(split):
    """-> how many rows a split says; it may be a number of any kind, and none is rounded"""
    try:
        rows = int(split)
    except (OverflowError, ValueError):  # infinite, or not a number
        rows = None
    if rows is None or rows != split or rows > _ROWS_MAX:
        raise ValueError(f"split {split!r} is no number of rows")
    if rows < 0:
        raise ValueError(f"split {rows} is negative")
    return rows


def splits_of(team, verb, name, splits):
    """-> integers, one a rank, or None; what they add up to is checked with the tensor

    As with Horovod, the tensors of a framework have 32 bits, what else there is is converted, and
    an alltoall's that are empty mean the same as None.
    """
    try:
        return None if splits is None else _check_splits(team, verb, splits)
    except ValueError as error:
        raise refused(verb, name, error) from None


def _check_splits(team, verb, splits):
    if len(getattr(splits, "shape", (0,))) != 1:
        raise ValueError("a 1D splits tensor is needed")
    dtype = getattr(splits, "dtype", None)  # of numpy's arrays a type of numpy's own
    of_numpy = dtype is None or type(dtype).__module__.partition(".")[0] == "numpy"
    if not of_numpy and "int32" not in str(dtype):
        raise ValueError("splits have to contain 32-bit integer elements")
    splits = splits.tolist() if hasattr(splits, "tolist") else splits
    splits = [_rows_of(split) for split in splits]
    if verb is ALLTOALL and not splits:
        return None
    if len(splits) != team.size:
        raise ValueError(f"{len(splits)} splits are given for {team.size} ranks")
    return splits


def root_of(team, verb, name, rank):
    """-> the place in the team of a rank of the job; whether the job has it, the library checks"""
    try:
        return team.place(rank)
    except ValueError as error:
        raise refused(verb, name, error) from None


def rows_that_go(tensor, splits):
    """-> the rows of a tensor that splits_of() an alltoall gives away: as with Horovod there may be
    more"""
    shape = getattr(tensor, "shape", ())
    return tensor[: sum(splits)] if splits and shape and sum(splits) < shape[0] else tensor


def shares_of(team, rows, splits):
    """-> how many of the rows each rank gets: as `splits` says, or as many as come out even"""
    if splits is not None:
        return splits
    return [rows // team.size + (rank < rows % team.size) for rank in range(team.size)]


def _shape_of_share(team, name, dimensions, splits):
    if not dimensions:
        rank, host = place_of_this_rank()
        raise HoronInternalError(
            f"reducescatter '{name}' was refused: a scalar has no rows that ranks could share",
            _horon.STATUSES["ERR_INVALID"],
            "ARGUMENT",
            rank,
            host=host,
            name=name,
        )
    rows, *others = dimensions
    return (shares_of(team, rows, splits)[team.rank], *others)


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


def _marks_of_scales(name, op, root=0, prescale=1.0, postscale=1.0, splits=None):
    """-> what a group is called that has scales, one more member: ranks that have others, or none,
    make another group, which fails on all"""
    scales = f"prescale={prescale!r}, postscale={postscale!r}"
    return [] if prescale == postscale == 1 else [_names.part_name(name, scales)]


class Verbs:
    """The verbs on one framework's tensors: stage_tensor(tensor, verb, in_place) -> Staged.

    integers(rows, splits) -> numbers of rows, as what the caller gave as splits has them.
    stage_summand(tensor, in_place) -> what is gathered of a tensor for Adasum, a row; and
    finish(rows, combine) -> the result of all ranks' rows, which combine(flat rows, double) makes:
    see _adasum.combine(). `in_place` are the same verbs, whose results go where the tensors are,
    and `apart` those whose results go elsewhere.
    """

    joins_as_horovod = False  # what `needs_all` raises once a rank has joined

    def __init__(self, stage_tensor, integers, stage_summand=None, apart=None):
        self.stage_tensor = stage_tensor
        self.integers = integers
        self.stage_summand = stage_summand
        self.is_in_place = apart is not None
        self.apart = apart or self
        self.in_place = self if apart else type(self)(stage_tensor, integers, stage_summand, self)

    # ---- Any verb ----

    def _operation(
        self,
        team,
        verb,
        name,
        tensor,
        op=0,
        root=0,
        prescale=1.0,
        postscale=1.0,
        splits=None,
        tag=0,
    ):
        """-> a staged tensor, and what Context.submit() takes"""
        try:
            staged = self.stage_tensor(tensor, verb, self.is_in_place)
        except (TypeError, ValueError) as error:
            raise refused(verb, name, error) from None
        staged.in_place = self.is_in_place
        if verb.to_root and root != team.rank:
            staged.target = NOTHING
        elif staged.in_place:
            staged.target = staged.source
        elif verb.gathers:
            staged.target = None
        elif verb.shares:
            staged.make_room_for(_shape_of_share(team, name, staged.dimensions(), splits))
        else:
            staged.make_room()
        target = None if staged.target is NOTHING else staged.target
        numbers = (op, root, prescale, postscale, 0)
        place = (staged.dtype, staged.shape, staged.keep, splits, tag)
        return staged, (verb.code, name, staged.source, target, *numbers, *place)

    def stage(self, team, verb, name, tensor, *numbers):
        """-> the Handle of one operation that has not begun; numbers: as _operation() takes them"""
        if self._is_adasum(verb, *numbers):
            handle = self._stage_summands(team, [name], [tensor], *numbers)
            return handle.then(lambda results: results[0])
        staged, operation = self._operation(team, verb, name, tensor, *numbers)
        handle = Handle(team, operation, lambda requests: staged.finish(requests[0]))
        return self.watched(handle, team, verb, (name,))

    def stage_group(self, team, verb, names, tensors, *numbers):
        """-> the Handle of operations that become ready together; its result is a list"""
        if self._is_adasum(verb, *numbers):
            return self._stage_summands(team, names, tensors, *numbers)
        pairs = [
            self._operation(team, verb, name, tensor, *numbers)
            for name, tensor in zip(names, tensors, strict=True)
        ]

        def finish(requests):
            return [
                staged.finish(request) for (staged, _), request in zip(pairs, requests, strict=True)
            ]

        handle = Handle(team, [operation for _, operation in pairs], finish)
        return self.watched(handle, team, verb, names)

    def _is_adasum(self, verb, op=0, *_):
        return op is Adasum and verb is ALLREDUCE and self.stage_summand is not None

    def _summand(self, name, tensor, op, root=0, prescale=1.0, postscale=1.0, splits=None):
        """-> what is gathered of the tensor, and what makes the result of all ranks' rows"""
        try:
            row, finish = self.stage_summand(tensor, self.is_in_place)
        except (TypeError, ValueError) as error:
            raise refused(ALLREDUCE, name, error) from None
        combine = partial(_adasum.combine, prescale=prescale, postscale=postscale)
        return row, lambda rows, given: finish(rows, partial(combine, given=given))

    def _stage_summands(self, team, names, tensors, *numbers):
        pairs = [
            self._summand(name, tensor, *numbers)
            for name, tensor in zip(names, tensors, strict=True)
        ]

        def finish(gathered, given):
            return [
                finish(rows, of_rank)
                for (_, finish), rows, of_rank in zip(pairs, gathered, given, strict=True)
            ]

        rows = [row for row, _ in pairs]
        marks = _marks_of_scales(names[0], *numbers) if rows else []
        names = [*names, *marks]
        rows += [rows[0][:0] for _ in marks]
        handle = self.apart.stage_group(team, ROWS, names, rows)
        return handle.then_with_rows(
            lambda gathered, given: finish(gathered[: len(pairs)], given[: len(pairs)])
        )

    def watched(self, handle, team, verb, names):
        """-> the handle; its operation raises if a rank had joined, where Horovod's does"""
        if verb.needs_all and self.joins_as_horovod:
            handle.check(lambda requests: refuse_joined(team, verb.name, names, requests))
        return handle

    def begin(self, *args):
        """As stage(), begun."""
        return self.stage(*args).begin()

    def begin_group(self, team, verb, name, tensors, *numbers):
        tensors = list(tensors)
        names = member_names(name, len(tensors))
        return self.stage_group(team, verb, names, tensors, *numbers).begin()

    def exchange(self, team, name, tensor, splits):
        """What alltoall_async() begins."""
        given = splits_of(team, ALLTOALL, name, splits)
        tensor = rows_that_go(tensor, given)
        numbers = (0, 0, 1.0, 1.0, given)
        staged, operation = self._operation(team, ALLTOALL, name, tensor, *numbers)

        def finish(requests):
            result = staged.finish(requests[0])
            return result, self.integers(requests[0].output()[1], splits)

        return self.watched(Handle(team, operation, finish), team, ALLTOALL, (name,)).begin()

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
        name, team = operation_name("allreduce", name, process_set), team_of(process_set)
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
        name, team = group_name("allreduce", name, process_set), team_of(process_set)
        numbers = (resolve_op(op, average), 0, prescale_factor, postscale_factor)
        return self.begin_group(team, ALLREDUCE, name, tensors, *numbers)

    def allgather_async(self, tensor, name=None, process_set=global_process_set):
        """Joins the ranks' tensors, in rank order, along the first dimension, in which they may
        differ. A scalar gives one row."""
        name, team = operation_name("allgather", name, process_set), team_of(process_set)
        return self.begin(team, ALLGATHER, name, tensor)

    def grouped_allgather_async(self, tensors, name=None, process_set=global_process_set):
        """As allgather, for a list of tensors that are joined together."""
        name, team = group_name("allgather", name, process_set), team_of(process_set)
        return self.begin_group(team, ALLGATHER, name, tensors)

    def broadcast_async(self, tensor, root_rank, name=None, process_set=global_process_set):
        """Every rank gets the root's tensor. `root_rank` is a rank of the job."""
        name, team = operation_name("broadcast", name, process_set), team_of(process_set)
        return self.begin(
            team, BROADCAST, name, tensor, 0, root_of(team, BROADCAST, name, root_rank)
        )

    def grouped_broadcast_async(
        self, tensors, root_rank, name=None, process_set=global_process_set
    ):
        """As broadcast, for a list of tensors that are sent together."""
        name, team = group_name("broadcast", name, process_set), team_of(process_set)
        return self.begin_group(
            team, BROADCAST, name, tensors, 0, root_of(team, BROADCAST, name, root_rank)
        )

    def broadcast_all(self, named, root_rank, process_set):
        """Gives every rank the root's tensors, in place, and waits; named: [(name, tensor), ...]"""
        begin = self.in_place.broadcast_async
        handles = [begin(tensor, root_rank, name, process_set) for name, tensor in named]
        for handle in handles:
            handle.wait()

    def alltoall_async(self, tensor, splits=None, name=None, process_set=global_process_set):
        """Gives each rank some of the tensor's rows, and joins what all give to this one.

        The first rows go to rank 0, and so on: splits[i] of them to rank i, which may differ from
        rank to rank; as many to each without it. The result is the tensor, and the rows that came
        of each rank.
        """
        name, team = operation_name("alltoall", name, process_set), team_of(process_set)
        return self.exchange(team, name, tensor, splits)

    def gather_async(self, tensor, root_rank, name=None, process_set=global_process_set):
        """As allgather, but only the root gets the joined tensor; the others get None."""
        name, team = operation_name("gather", name, process_set), team_of(process_set)
        return self.begin(team, GATHER, name, tensor, 0, root_of(team, GATHER, name, root_rank))

    def scatter_async(
        self, tensor, root_rank, splits=None, name=None, process_set=global_process_set
    ):
        """Every rank gets its rows of the root's tensor.

        The first rows go to rank 0, and so on: splits[i] of them to rank i; without it as many to
        each as come out even, and the first ranks get one more of the rest. Of the tensor of any
        other rank only dtype and shape count, but not its rows.
        """
        name, team = operation_name("scatter", name, process_set), team_of(process_set)
        splits = splits_of(team, SCATTER, name, splits)
        root = root_of(team, SCATTER, name, root_rank)
        return self.begin(team, SCATTER, name, tensor, 0, root, 1.0, 1.0, splits)

    def alltoall(self, tensor, splits=None, name=None, process_set=global_process_set):
        """As alltoall_async(), and waits; the rows that came are told only if splits are given."""
        result, received = self.alltoall_async(tensor, splits, name, process_set).wait()
        return result if splits is None else (result, received)

    gather = _waiting(gather_async)
    scatter = _waiting(scatter_async)

    def reducescatter_async(
        self,
        tensor,
        name=None,
        op=Average,
        process_set=global_process_set,
        prescale_factor=1.0,
        postscale_factor=1.0,
        splits=None,
    ):
        """Combines the ranks' tensors as allreduce does; every rank gets its share of the rows.

        The first rows go to rank 0, and so on: as many to each as come out even, the first ranks
        get one more of the rest; or as many as `splits`, the same on all ranks, says for each.
        """
        name, team = operation_name("reducescatter", name, process_set), team_of(process_set)
        splits = splits_of(team, REDUCESCATTER, name, splits)
        numbers = (resolve_op(op, None), 0, prescale_factor, postscale_factor, splits)
        return self.begin(team, REDUCESCATTER, name, tensor, *numbers)

    def grouped_reducescatter_async(
        self,
        tensors,
        name=None,
        op=Average,
        process_set=global_process_set,
        prescale_factor=1.0,
        postscale_factor=1.0,
        splits=None,
    ):
        """As reducescatter, for a list of tensors that are combined together; `splits` is of each
        of them."""
        name, team = group_name("reducescatter", name, process_set), team_of(process_set)
        splits = splits_of(team, REDUCESCATTER, name, splits)
        numbers = (resolve_op(op, None), 0, prescale_factor, postscale_factor, splits)
        return self.begin_group(team, REDUCESCATTER, name, tensors, *numbers)

    def reduce_async(
        self,
        tensor,
        root_rank,
        name=None,
        op=Average,
        process_set=global_process_set,
        prescale_factor=1.0,
        postscale_factor=1.0,
    ):
        """As allreduce, but only the root, a rank of the job, gets the result; others get None, and
        their tensors stay as they are."""
        name, team = operation_name("reduce", name, process_set), team_of(process_set)
        root = root_of(team, REDUCE, name, root_rank)
        numbers = (resolve_op(op, None), root, prescale_factor, postscale_factor)
        return self.begin(team, REDUCE, name, tensor, *numbers)

    def grouped_reduce_async(
        self,
        tensors,
        root_rank,
        name=None,
        op=Average,
        process_set=global_process_set,
        prescale_factor=1.0,
        postscale_factor=1.0,
    ):
        """As reduce, for a list of tensors that are combined together; others than the root get a
        list of None."""
        name, team = group_name("reduce", name, process_set), team_of(process_set)
        root = root_of(team, REDUCE, name, root_rank)
        numbers = (resolve_op(op, None), root, prescale_factor, postscale_factor)
        return self.begin_group(team, REDUCE, name, tensors, *numbers)

    def send_async(self, tensor, rank, tag=0, process_set=global_process_set):
        """Sends the tensor to a rank of the job, which receives it with the same tag.

        The n-th that is sent to a rank with a tag is the n-th that this one receives with it,
        whatever else goes between them. It has ended when the tensor may be changed.
        """
        team = team_of(process_set)
        return self._message(team, SEND, tensor, rank, tag)

    def recv_async(self, tensor, rank, tag=0, process_set=global_process_set):
        """Receives what a rank of the job sends with this tag, in place: the result is the tensor.

        Sender and receiver agree on dtype and number of elements.
        """
        team = team_of(process_set)
        return self.in_place._message(team, RECV, tensor, rank, tag)

    def _message(self, team, verb, tensor, rank, tag):
        """-> the Handle of a message with a rank of the job, begun"""
        peer = root_of(team, verb, None, rank)
        if peer == team.rank:
            error = ValueError(f"rank {rank} is this one, and no message goes to itself")
            raise refused(verb, None, error)
        numbers = (0, peer, 1.0, 1.0, None, tag)
        staged, operation = self._operation(team, verb, None, tensor, *numbers)
        return Handle(team, operation, lambda requests: staged.finish(requests[0])).begin()

    send = _waiting(send_async)
    recv = _waiting(recv_async)
    allreduce = _waiting(allreduce_async)
    reducescatter = _waiting(reducescatter_async)
    grouped_reducescatter = _waiting(grouped_reducescatter_async)
    reduce = _waiting(reduce_async)
    grouped_reduce = _waiting(grouped_reduce_async)
    grouped_allreduce = _waiting(grouped_allreduce_async)
    allgather = _waiting(allgather_async)
    grouped_allgather = _waiting(grouped_allgather_async)
    broadcast = _waiting(broadcast_async)
    grouped_broadcast = _waiting(grouped_broadcast_async)

    allreduce_async_ = _InPlace(allreduce_async)
    allreduce_ = _InPlace(allreduce)
    grouped_allreduce_async_ = _InPlace(grouped_allreduce_async)
    grouped_allreduce_ = _InPlace(grouped_allreduce)
    reduce_async_ = _InPlace(reduce_async)
    reduce_ = _InPlace(reduce)
    grouped_reduce_async_ = _InPlace(grouped_reduce_async)
    grouped_reduce_ = _InPlace(grouped_reduce)
    broadcast_async_ = _InPlace(broadcast_async)
    broadcast_ = _InPlace(broadcast)
    grouped_broadcast_async_ = _InPlace(grouped_broadcast_async)
    grouped_broadcast_ = _InPlace(grouped_broadcast)


# What users call, of which every framework's adapter has all: what ends in _async, and its forms.
FUNCTIONS = tuple(
    sorted(
        name
        for name in vars(Verbs)
        if name.removesuffix("_").removesuffix("_async") + "_async" in vars(Verbs)
    )
)


def barrier(process_set=global_process_set):
    """Returns once every rank has called it."""
    team_of(process_set).submit(BARRIER.code, None, None, None).wait()


def join(process_set=global_process_set) -> int:
    """This rank has no more data: the others go on without it, and it returns once all have joined.

    Meanwhile it gives neutral elements to reductions, and no rows to other verbs, under any name
    that the others use. Their broadcast_object() and allgather_object() raise, unless
    HORON_JOIN_VERBS says "all". -> the rank of the job that joined last, the same on all ranks.

    If it is interrupted, it may be called again, and waits for the join that has begun.
    """
    joined = process_set if isinstance(process_set, ProcessSet) else global_process_set
    team, begun = team_of(process_set), joined._joins
    request = begun[0] if begun else team.join(begun)
    try:
        request.wait()
    except HoronInternalError:
        begun.clear()
        raise
    _names.restart(joined.process_set_id)  # those without a name were not as many on all ranks
    last = joined.ranks[request.join_last]
    joined._joins = []  # no call, after which a signal's handler could raise
    return last
