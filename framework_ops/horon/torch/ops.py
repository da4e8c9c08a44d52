# SPDX-License-Identifier: Apache-2.0
"""Collectives on torch tensors, by Horovod's names and meanings.

Autograd: the gradient of a sum is the sum of the gradients, of an average their average, of a
gather the own slice of their average, of a broadcast their average at the root, of rows given to
other ranks what these send back, of an averaged share of the rows all ranks' gradients, joined, and
of a summed one size times that. gather(), scatter(), reduce(), send() and recv() have none. So a
loss that looks at gathered tensors has the gradient of the mean of the ranks' losses, as with
Horovod.
"""

import torch
from torch.autograd import forward_ad

from horon import _horon, _verbs
from horon._names import group_name, member_names, operation_name, part_name
from horon._staging import Handle, poll, refuse_joined, synchronize
from horon._verbs import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    FUNCTIONS,
    REDUCESCATTER,
    ROWS,
    barrier,
    root_of,
    rows_that_go,
    shares_of,
    splits_of,
)
from horon._world import Average, Sum, global_process_set, resolve_op, team_of
from horon.exceptions import UnsupportedError
from horon.torch.compression import Compression, compressor
from horon.torch.staging import describe, no_view, verbs

__all__ = [*FUNCTIONS, "Handle", "barrier", "join", "poll", "sparse_allreduce_async", "synchronize"]

allreduce_async = verbs.allreduce_async
allreduce_async_ = verbs.allreduce_async_
allreduce_ = verbs.allreduce_
grouped_allreduce_async = verbs.grouped_allreduce_async
grouped_allreduce_async_ = verbs.grouped_allreduce_async_
grouped_allreduce_ = verbs.grouped_allreduce_
allgather_async = verbs.allgather_async
grouped_allgather_async = verbs.grouped_allgather_async
alltoall_async = verbs.alltoall_async
gather = verbs.gather
gather_async = verbs.gather_async
scatter = verbs.scatter
scatter_async = verbs.scatter_async
reduce = verbs.reduce
reduce_ = verbs.reduce_
reduce_async = verbs.reduce_async
reduce_async_ = verbs.reduce_async_
grouped_reduce = verbs.grouped_reduce
grouped_reduce_ = verbs.grouped_reduce_
grouped_reduce_async = verbs.grouped_reduce_async
grouped_reduce_async_ = verbs.grouped_reduce_async_
send = verbs.send
send_async = verbs.send_async
recv = verbs.recv
recv_async = verbs.recv_async
broadcast_async = verbs.broadcast_async
broadcast_async_ = verbs.broadcast_async_
broadcast_ = verbs.broadcast_
grouped_broadcast_async = verbs.grouped_broadcast_async
grouped_broadcast_async_ = verbs.grouped_broadcast_async_
grouped_broadcast_ = verbs.grouped_broadcast_


def _needs_gradient(tensor):
    """Also of one with a tangent (forward mode), which autograd's functions then refuse, and of any
    that torch.jit.trace() follows: it writes these functions down, and nothing else that runs here.
    """
    may_be = getattr(forward_ad, "_current_level", -1) >= 0 and isinstance(tensor, torch.Tensor)
    if may_be and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    if torch.jit.is_tracing():
        return isinstance(tensor, torch.Tensor)
    return getattr(tensor, "requires_grad", False) and torch.is_grad_enabled()


# Two numbers in a byte, which torch itself does not take apart
_PACKED = getattr(torch, "float4_e2m1fn_x2", None)


def _has_gradient(tensor):
    """Whether a gradient like this tensor means anything: by its type, which all ranks see alike,
    and not by what this rank needs, for which the others would wait."""
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype != _PACKED


def _out(*args):
    """-> what an operation gives; autograd is not told of it"""
    return verbs.begin(*args).wait()


def join(device=-1, process_set=global_process_set) -> int:
    """This rank has no more data: the others go on without it, and it returns once all have joined.

    Their allreduces get of it what changes nothing: zeros for a sum, the neutral element for Min,
    Max and Product (an Average is still divided by all ranks, unless HORON_JOIN_AVERAGE says
    "given"). Their allgather, broadcast, alltoall and reducescatter raise, as with Horovod, unless
    HORON_JOIN_VERBS says "all". device: as with Horovod, and not needed. With a process set this is
    about that alone. -> the rank of the job that joined last, the same on all ranks.
    """
    return _verbs.join(process_set)


# ---- Compressed groups ----


def _reduce_group(function, verb, compression, tensors, team, name, op, numbers):
    """What a verb gives; function: of autograd, if it has to know."""
    compress = compressor(compression).compress
    pairs = [compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    names = member_names(name, len(pairs))
    if any(_needs_gradient(tensor) for tensor in compressed):
        results = function.apply(team, names, op, numbers, *compressed)
    else:
        results = verbs.stage_group(team, verb, names, compressed, op, 0, *numbers).begin().wait()
    return [
        compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)
    ]


# ---- allreduce ----


def _check_has_gradient(op):
    if op not in (Sum, Average):
        raise NotImplementedError(f"an allreduce with {op.name} has no gradient")


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, team, name, op, *scales):
        ctx.arguments = (team, name, op, *scales)
        return _out(team, ALLREDUCE, name, tensor, op, 0, *scales)

    @staticmethod
    def backward(ctx, gradient):
        team, name, op, *scales = ctx.arguments
        _check_has_gradient(op)
        result = _Allreduce.apply(gradient, team, part_name(name, "grad"), op, *scales)
        return result, None, None, None, None, None


def allreduce(
    tensor,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Combines the ranks' tensors; every rank gets the result, the average unless `op` says else.

    Dtype and shape agree on all ranks for one name. Each input is multiplied by prescale_factor
    before, the result by postscale_factor after. Differentiable for Sum and Average.
    """
    name, team = operation_name("allreduce", name, process_set), team_of(process_set)
    op, scales = resolve_op(op, average), (prescale_factor, postscale_factor)
    compressed, ctx = compressor(compression).compress(tensor)
    if _needs_gradient(compressed):
        result = _Allreduce.apply(compressed, team, name, op, *scales)
    else:
        result = _out(team, ALLREDUCE, name, compressed, op, 0, *scales)
    return compression.decompress(result, ctx)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, team, names, op, scales, *tensors):
        ctx.arguments = (team, names, op, scales)
        group = verbs.stage_group(team, ALLREDUCE, names, tensors, op, 0, *scales)
        return tuple(group.begin().wait())

    @staticmethod
    def backward(ctx, *gradients):
        team, names, op, scales = ctx.arguments
        _check_has_gradient(op)
        names = [part_name(name, "grad") for name in names]
        results = _GroupedAllreduce.apply(team, names, op, scales, *gradients)
        return None, None, None, None, *results


def grouped_allreduce(
    tensors,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """As allreduce() for a list of tensors that are combined together."""
    name, team = group_name("allreduce", name, process_set), team_of(process_set)
    numbers = (resolve_op(op, average), (prescale_factor, postscale_factor))
    return _reduce_group(_GroupedAllreduce, ALLREDUCE, compression, tensors, team, name, *numbers)


# ---- allgather ----


def _average(team, tensor, name):
    """What horon moves but does not add, as what it adds: complex numbers as twice as many real
    ones, floats of a byte as wide ones."""
    if tensor.element_size() == 1:
        return _out(team, ALLREDUCE, name, tensor.float(), Average).to(tensor.dtype)
    if not tensor.is_complex():
        return _out(team, ALLREDUCE, name, tensor, Average)
    parts = torch.view_as_real(tensor.resolve_conj().resolve_neg())
    return no_view(torch.view_as_complex(_out(team, ALLREDUCE, name, parts, Average)))


def _of_all(rows, came, due):
    """The rows that came of each rank; zeros for those that one which has joined did not give."""
    if list(came) == list(due):
        return rows
    parts = zip(rows.split(list(came)), due, strict=True)
    return torch.cat(
        [part if len(part) == n else part.new_zeros(n, *part.shape[1:]) for part, n in parts]
    )


class _Allgather(torch.autograd.Function):
    """All ranks' rows, divided by `divisor`: 1, or what makes it the gradient of _AverageOfRows.

    due: how many come of each rank, if they have to be there for one that has joined, too.
    """

    @staticmethod
    def forward(ctx, tensor, team, name, divisor, due=None):
        handle = verbs.begin(team, ALLGATHER, name, tensor)
        result = handle.wait()
        (rows,) = handle.rows()
        if due is not None:
            result, rows = _of_all(result, rows, due), due
        ctx.arguments = (team, part_name(name, "grad"), rows)
        ctx.shape = tensor.shape
        return result if divisor == 1 else result / divisor

    @staticmethod
    def backward(ctx, gradient):
        rows = _AverageOfRows.apply(gradient, *ctx.arguments)
        return rows.reshape(ctx.shape), None, None, None, None


class _AverageOfRows(torch.autograd.Function):
    """This rank's rows of the average over ranks: the gradient of _Allgather."""

    @staticmethod
    def forward(ctx, tensor, team, name, rows):
        ctx.arguments = (team, part_name(name, "grad"), team.size)
        start = sum(rows[: team.rank])
        return no_view(_average(team, tensor, name)[start : start + rows[team.rank]])

    @staticmethod
    def backward(ctx, gradient):
        return _Allgather.apply(gradient, *ctx.arguments), None, None, None


def allgather(tensor, name=None, process_set=global_process_set):
    """Joins the ranks' tensors along the first dimension, in which they may differ, in rank order.

    A scalar gives one row. Differentiable.
    """
    name, team = operation_name("allgather", name, process_set), team_of(process_set)
    if _needs_gradient(tensor):
        return _Allgather.apply(tensor, team, name, 1)
    return _out(team, ALLGATHER, name, tensor)


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, team, names, *tensors):
        handle = verbs.stage_group(team, ALLGATHER, names, tensors).begin()
        results = handle.wait()
        ctx.arguments = (team, names, handle.rows(), [tensor.shape for tensor in tensors])
        return tuple(results)

    @staticmethod
    def backward(ctx, *gradients):
        team, *lists = ctx.arguments
        slices = [
            _AverageOfRows.apply(gradient, team, part_name(name, "grad"), rows).reshape(shape)
            if _has_gradient(gradient)
            else None
            for gradient, name, rows, shape in zip(gradients, *lists, strict=True)
        ]
        return None, None, *slices


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """As allgather() for a list of tensors that are joined together."""
    name, team = group_name("allgather", name, process_set), team_of(process_set)
    tensors = list(tensors)
    names = member_names(name, len(tensors))
    if any(_needs_gradient(tensor) for tensor in tensors):
        return list(_GroupedAllgather.apply(team, names, *tensors))
    return verbs.stage_group(team, ALLGATHER, names, tensors).begin().wait()


# ---- alltoall ----


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, team, name, splits):
        result, received = verbs.exchange(team, name, tensor, splits).wait()
        ctx.arguments = (team, part_name(name, "grad"), received.tolist())
        ctx.given = shares_of(team, len(tensor), splits_of(team, ALLTOALL, name, splits))
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx, gradient, _):
        result, received = _Alltoall.apply(gradient, *ctx.arguments)
        return _of_all(result, received.tolist(), ctx.given), None, None, None


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Gives each rank some of the tensor's rows, and joins what all give to this one.

    The first rows go to rank 0, and so on: splits[i] of them to rank i, which may differ from rank
    to rank; as many to each without it. Returns the tensor; if splits are given, also the rows that
    came of each rank. Differentiable.
    """
    name, team = operation_name("alltoall", name, process_set), team_of(process_set)
    if _needs_gradient(tensor):
        tensor = rows_that_go(tensor, splits_of(team, ALLTOALL, name, splits))
        result, received = _Alltoall.apply(tensor, team, name, splits)
    else:
        result, received = verbs.exchange(team, name, tensor, splits).wait()
    return result if splits is None else (result, received)


# ---- reducescatter ----


def _check_is_added(op):
    """horon.reducescatter() has the others, too; scripts rely on their refusal here."""
    if op not in (Sum, Average):
        text = f"a reducescatter of torch tensors with {op.name} does not exist"
        raise UnsupportedError(text, _horon.STATUSES["ERR_UNSUPPORTED"], "ARGUMENT")
    return op


def reducescatter_async(
    tensor,
    name=None,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
    splits=None,
):
    name, team = operation_name("reducescatter", name, process_set), team_of(process_set)
    op, splits = _check_is_added(resolve_op(op, None)), splits_of(team, REDUCESCATTER, name, splits)
    numbers = (op, 0, prescale_factor, postscale_factor, splits)
    return verbs.begin(team, REDUCESCATTER, name, tensor, *numbers)


reducescatter_async.__doc__ = verbs.reducescatter_async.__doc__


def grouped_reducescatter_async(
    tensors,
    name=None,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
    splits=None,
):
    name, team = group_name("reducescatter", name, process_set), team_of(process_set)
    op, splits = _check_is_added(resolve_op(op, None)), splits_of(team, REDUCESCATTER, name, splits)
    numbers = (op, 0, prescale_factor, postscale_factor, splits)
    return verbs.begin_group(team, REDUCESCATTER, name, tensors, *numbers)


grouped_reducescatter_async.__doc__ = verbs.grouped_reducescatter_async.__doc__


def _factor_of_gradient(team, op, prescale, postscale):
    return prescale * postscale * (team.size if op == Sum else 1)


def _gather_gradient(gradient, team, name, factor, shares):
    gradient = gradient if factor == 1 else gradient * factor
    return _Allgather.apply(gradient, team, part_name(name, "grad"), 1, shares)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, team, name, op, *numbers):
        *scales, splits = numbers
        result = _out(team, REDUCESCATTER, name, tensor, op, 0, *numbers)
        shares = shares_of(team, len(tensor), splits)
        ctx.arguments = (team, name, _factor_of_gradient(team, op, *scales), shares)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return _gather_gradient(gradient, *ctx.arguments), None, None, None, None, None, None


def reducescatter(
    tensor,
    name=None,
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
    splits=None,
):
    """Combines the ranks' tensors; every rank gets its share of the rows of the result.

    The first rows go to rank 0, and so on: as many to each as come out even, the first ranks get
    one more of the rest; or as many as `splits`, the same on all ranks, says for each. Sum or
    Average; differentiable.
    """
    name, team = operation_name("reducescatter", name, process_set), team_of(process_set)
    op = _check_is_added(resolve_op(op, None))
    numbers = (prescale_factor, postscale_factor, splits_of(team, REDUCESCATTER, name, splits))
    compressed, ctx = compressor(compression).compress(tensor)
    if _needs_gradient(compressed):
        result = _Reducescatter.apply(compressed, team, name, op, *numbers)
    else:
        result = _out(team, REDUCESCATTER, name, compressed, op, 0, *numbers)
    return compression.decompress(result, ctx)


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, team, names, op, numbers, *tensors):
        *scales, splits = numbers
        group = verbs.stage_group(team, REDUCESCATTER, names, tensors, op, 0, *numbers)
        results = group.begin().wait()
        shares = [shares_of(team, len(tensor), splits) for tensor in tensors]
        ctx.arguments = (team, _factor_of_gradient(team, op, *scales), names, shares)
        return tuple(results)

    @staticmethod
    def backward(ctx, *gradients):
        team, factor, *lists = ctx.arguments
        gathered = [
            _gather_gradient(gradient, team, name, factor, shares)
            if _has_gradient(gradient)
            else None
            for gradient, name, shares in zip(gradients, *lists, strict=True)
        ]
        return None, None, None, None, *gathered


def grouped_reducescatter(
    tensors,
    name=None,
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
    splits=None,
):
    """As reducescatter() for a list of tensors that are combined together; `splits` is of each."""
    name, team = group_name("reducescatter", name, process_set), team_of(process_set)
    op, splits = _check_is_added(resolve_op(op, None)), splits_of(team, REDUCESCATTER, name, splits)
    numbers = (prescale_factor, postscale_factor, splits)
    function, verb = _GroupedReducescatter, REDUCESCATTER
    return _reduce_group(function, verb, compression, tensors, team, name, op, numbers)


# ---- broadcast ----


class _Broadcast(torch.autograd.Function):
    """The root's tensor, divided by `divisor`: 1, or what makes it _AverageAtRoot's gradient."""

    @staticmethod
    def forward(ctx, tensor, team, root_rank, name, divisor):
        ctx.arguments = (team, root_rank, part_name(name, "grad"))
        result = _out(team, BROADCAST, name, tensor, 0, root_rank)
        return result if divisor == 1 else result / divisor

    @staticmethod
    def backward(ctx, gradient):
        return _AverageAtRoot.apply(gradient, *ctx.arguments), None, None, None, None


class _AverageAtRoot(torch.autograd.Function):
    """The average on one rank, zeros on the others: the gradient of _Broadcast."""

    @staticmethod
    def forward(ctx, tensor, team, root_rank, name):
        ctx.arguments = (team, root_rank, part_name(name, "grad"), team.size)
        average = _average(team, tensor, name)
        return average if team.rank == root_rank else torch.zeros_like(average)

    @staticmethod
    def backward(ctx, gradient):
        return _Broadcast.apply(gradient, *ctx.arguments), None, None, None


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """Every rank gets the root's tensor. Differentiable."""
    name, team = operation_name("broadcast", name, process_set), team_of(process_set)
    root = root_of(team, BROADCAST, name, root_rank)
    if _needs_gradient(tensor):
        return _Broadcast.apply(tensor, team, root, name, 1)
    return _out(team, BROADCAST, name, tensor, 0, root)


class _GroupedBroadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, team, root_rank, names, *tensors):
        ctx.arguments = (team, root_rank, names)
        return tuple(
            verbs.stage_group(team, BROADCAST, names, tensors, 0, root_rank).begin().wait()
        )

    @staticmethod
    def backward(ctx, *gradients):
        team, root_rank, names = ctx.arguments
        averages = [
            _AverageAtRoot.apply(gradient, team, root_rank, part_name(name, "grad"))
            if _has_gradient(gradient)
            else None
            for gradient, name in zip(gradients, names, strict=True)
        ]
        return None, None, None, *averages


def grouped_broadcast(tensors, root_rank, name=None, process_set=global_process_set):
    """As broadcast() for a list of tensors that are sent together."""
    name, team = group_name("broadcast", name, process_set), team_of(process_set)
    tensors, root = list(tensors), root_of(team, BROADCAST, name, root_rank)
    names = member_names(name, len(tensors))
    if any(_needs_gradient(tensor) for tensor in tensors):
        return list(_GroupedBroadcast.apply(team, root, names, *tensors))
    return verbs.stage_group(team, BROADCAST, names, tensors, 0, root).begin().wait()


# ---- sparse ----


def _split(shape):
    """Runs of no more dimensions than horon tells apart beside the rows."""
    return [shape[i : i + _horon.NDIM_MAX - 1] for i in range(0, len(shape), _horon.NDIM_MAX - 1)]


def sparse_allreduce_async(tensor, name=None, op=None, process_set=global_process_set):
    """Adds the ranks' sparse COO tensors (Sum or Average): entries are gathered and coalesced.

    Returns a handle whose result is a new sparse tensor.
    """
    name, team = operation_name("sparse_allreduce", name, process_set), team_of(process_set)
    return stage_sparse(team, tensor, name, resolve_op(op, None)).begin()


def stage_sparse(team, tensor, name, op, first_name=None):
    """What sparse_allreduce_async() begins; first_name: where the ranks meet first."""
    if op not in (Sum, Average):
        raise ValueError(f"a sparse allreduce with {op.name} does not exist")
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise ValueError(
            f"sparse_allreduce_async() needs a sparse COO tensor, not {describe(tensor)}; "
            "allreduce_async() is for dense ones"
        )
    tensor = tensor.detach().coalesce()
    # horon compares dimensions but the first: tensors of no rows make it compare the sparse ones
    host = {"dtype": torch.uint8, "device": "cpu"}
    shapes = [torch.empty((0, *sizes), **host) for sizes in _split(tensor.shape)]
    names = [part_name(name, f"shape{i or ''}") for i in range(len(shapes))]
    names += [part_name(name, "indices"), part_name(name, "values")]
    if first_name is not None:
        names[0] = first_name
    tensors = [*shapes, tensor.indices().t().contiguous(), tensor.values()]

    def combine(gathered):
        *_, indices, values = gathered
        narrow = values.dtype if values.dtype in (torch.float16, torch.bfloat16) else None
        if narrow:  # added in 32 bits and rounded once: a sum may not fit whose average does
            values = values.float()
        total = torch.sparse_coo_tensor(
            indices.t(), values, tensor.shape, device=tensor.device, check_invariants=False
        ).coalesce()
        total = total / team.size if op == Average else total
        return total.to(narrow) if narrow else total

    handle = verbs.stage_group(team, ROWS, names, tensors)
    handle.check(lambda requests: refuse_joined(team, "sparse_allreduce", names, requests))
    return handle.then(combine)
