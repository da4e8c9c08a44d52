# SPDX-License-Identifier: Apache-2.0
"""Collectives on torch tensors, by Horovod's names and meanings.

Autograd: the gradient of a sum is the sum of the gradients, of a gather the own slice of their sum,
of a broadcast their sum at the root.
"""

import torch

from horon import _horon
from horon._arrays import barrier, poll, synchronize
from horon._names import group_name, member_names, operation_name, part_name
from horon._world import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    check_process_set,
    context,
    global_process_set,
    rank,
    resolve_op,
)
from horon.torch.compression import Compression
from horon.torch.staging import (
    Handle,
    RequestGroup,
    arguments,
    begin_in,
    begin_out,
    check,
    describe,
    fresh,
    home,
    increment_version,
    stage,
    submit_group,
)

__all__ = [
    "Average",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
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
    "poll",
    "sparse_allreduce_async",
    "synchronize",
]

# ---- allreduce ----


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, op, prescale, postscale):
        ctx.arguments = (name, op, prescale, postscale)
        return begin_out(_horon.ALLREDUCE, name, tensor, op, 0, prescale, postscale).wait()

    @staticmethod
    def backward(ctx, gradient):
        name, op, prescale, postscale = ctx.arguments
        if op not in (Sum, Average):
            raise NotImplementedError(f"an allreduce with {op.name} has no gradient")
        result = _Allreduce.apply(gradient, part_name(name, "grad"), op, prescale, postscale)
        return result, None, None, None, None


def _needs_gradient(tensor):
    return getattr(tensor, "requires_grad", False) and torch.is_grad_enabled()


def allreduce_async(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """Begins an allreduce; synchronize() gives the result, which autograd does not know."""
    name = operation_name("allreduce", name)
    check_process_set(process_set)
    return begin_out(
        _horon.ALLREDUCE,
        name,
        tensor,
        resolve_op(op, average),
        0,
        prescale_factor,
        postscale_factor,
    )


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
    name = operation_name("allreduce", name)
    check_process_set(process_set)
    op = resolve_op(op, average)
    compressed, ctx = compression.compress(tensor)
    if _needs_gradient(compressed):
        result = _Allreduce.apply(compressed, name, op, prescale_factor, postscale_factor)
    else:
        result = begin_out(
            _horon.ALLREDUCE, name, compressed, op, 0, prescale_factor, postscale_factor
        ).wait()
    return compression.decompress(result, ctx)


def allreduce_async_(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """As allreduce_async(), in place."""
    name = operation_name("allreduce", name)
    check_process_set(process_set)
    return begin_in(
        _horon.ALLREDUCE,
        name,
        tensor,
        resolve_op(op, average),
        0,
        prescale_factor,
        postscale_factor,
    )


def allreduce_(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """As allreduce(), in place and without autograd."""
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def _begin_group_out(names, tensors, op, prescale, postscale):
    tensors = [check(tensor) for tensor in tensors]
    sources = [stage(tensor) for tensor in tensors]
    outputs = [fresh(source) for source in sources]

    def finish(results):
        return [home(result, tensor) for result, tensor in zip(results, tensors, strict=True)]

    requests = submit_group(_horon.ALLREDUCE, names, sources, outputs, op, 0, prescale, postscale)
    return Handle(RequestGroup(requests), outputs, finish)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, names, op, prescale, postscale, *tensors):
        ctx.arguments = (names, op, prescale, postscale)
        return tuple(_begin_group_out(names, tensors, op, prescale, postscale).wait())

    @staticmethod
    def backward(ctx, *gradients):
        names, op, prescale, postscale = ctx.arguments
        if op not in (Sum, Average):
            raise NotImplementedError(f"an allreduce with {op.name} has no gradient")
        names = [part_name(name, "grad") for name in names]
        results = _GroupedAllreduce.apply(names, op, prescale, postscale, *gradients)
        return None, None, None, None, *results


def grouped_allreduce_async(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """As allreduce_async() for a list of tensors that are combined together."""
    name = group_name("allreduce", name)
    check_process_set(process_set)
    tensors = list(tensors)
    return _begin_group_out(
        member_names(name, len(tensors)),
        tensors,
        resolve_op(op, average),
        prescale_factor,
        postscale_factor,
    )


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
    name = group_name("allreduce", name)
    check_process_set(process_set)
    op = resolve_op(op, average)
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    names = member_names(name, len(pairs))
    if any(_needs_gradient(tensor) for tensor in compressed):
        results = _GroupedAllreduce.apply(names, op, prescale_factor, postscale_factor, *compressed)
    else:
        results = _begin_group_out(names, compressed, op, prescale_factor, postscale_factor).wait()
    return [
        compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)
    ]


def grouped_allreduce_async_(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """As grouped_allreduce_async(), in place."""
    name = group_name("allreduce", name)
    check_process_set(process_set)
    tensors = list(tensors)
    plain = [check(tensor) for tensor in tensors]
    staged = [stage(tensor) for tensor in plain]

    def write_back(_):
        for tensor, copy in zip(plain, staged, strict=True):
            if copy is not tensor:
                tensor.copy_(copy)
        return tensors

    names = member_names(name, len(tensors))
    requests = submit_group(
        _horon.ALLREDUCE,
        names,
        staged,
        staged,
        resolve_op(op, average),
        0,
        prescale_factor,
        postscale_factor,
    )
    for tensor in tensors:
        increment_version(tensor)
    return Handle(RequestGroup(requests), tensors, write_back)


def grouped_allreduce_(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """As grouped_allreduce(), in place and without autograd."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


# ---- allgather ----


def _sum(tensor, name):
    """Complex numbers, which horon moves but does not add, as twice as many real ones."""
    if not tensor.is_complex():
        return begin_out(_horon.ALLREDUCE, name, tensor, Sum).wait()
    parts = torch.view_as_real(tensor.resolve_conj().resolve_neg())
    return torch.view_as_complex(begin_out(_horon.ALLREDUCE, name, parts, Sum).wait())


def _gather_source(tensor):
    """A scalar gives one row."""
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def _gathered(request, source):
    """The output of an allgather as a tensor over horon's memory, and the rows of each rank."""
    output, rows = request.output()
    shape = (sum(rows), *source.shape[1:])
    if output.nbytes == 0:
        return torch.empty(shape, dtype=source.dtype), rows
    return torch.frombuffer(output, dtype=source.dtype).reshape(shape), rows


def _begin_gather(name, tensor):
    tensor = _gather_source(check(tensor, _horon.ALLGATHER))
    source = stage(tensor)
    request = context().submit(*arguments(_horon.ALLGATHER, name, source, None))

    def finish(_):
        result, rows = _gathered(request, source)
        return home(result, tensor), rows

    return Handle(request, None, finish)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name):
        result, ctx.rows = _begin_gather(name, tensor).wait()
        ctx.name, ctx.shape = name, tensor.shape
        return result

    @staticmethod
    def backward(ctx, gradient):
        mine = _SumOfRows.apply(gradient, part_name(ctx.name, "grad"), ctx.rows)
        return mine.reshape(ctx.shape), None


class _SumOfRows(torch.autograd.Function):
    """This rank's rows of the sum over ranks: the gradient of _Allgather, which is its own."""

    @staticmethod
    def forward(ctx, tensor, name, rows):
        ctx.name = name
        start = sum(rows[: rank()])
        return _sum(tensor, name)[start : start + rows[rank()]]

    @staticmethod
    def backward(ctx, gradient):
        return _Allgather.apply(gradient, part_name(ctx.name, "grad")), None, None


def _without_rows(handle):
    finish = handle._finish
    handle._finish = lambda result: finish(result)[0]
    return handle


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Begins an allgather; synchronize() gives the result, which autograd does not know."""
    name = operation_name("allgather", name)
    check_process_set(process_set)
    return _without_rows(_begin_gather(name, tensor))


def allgather(tensor, name=None, process_set=global_process_set):
    """Joins the ranks' tensors along the first dimension, in which they may differ, in rank order.

    A scalar gives one row. Differentiable.
    """
    name = operation_name("allgather", name)
    check_process_set(process_set)
    if _needs_gradient(tensor):
        return _Allgather.apply(tensor, name)
    return _without_rows(_begin_gather(name, tensor)).wait()


def _begin_group_gather(names, tensors):
    tensors = [_gather_source(check(tensor, _horon.ALLGATHER)) for tensor in tensors]
    sources = [stage(tensor) for tensor in tensors]
    requests = submit_group(_horon.ALLGATHER, names, sources, [None] * len(sources))

    def finish(_):
        results = []
        for request, source, tensor in zip(requests, sources, tensors, strict=True):
            result, rows = _gathered(request, source)
            results.append((home(result, tensor), rows))
        return results

    return Handle(RequestGroup(requests), None, finish)


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, names, *tensors):
        pairs = _begin_group_gather(names, tensors).wait()
        ctx.arguments = (names, [rows for _, rows in pairs], [tensor.shape for tensor in tensors])
        return tuple(result for result, _ in pairs)

    @staticmethod
    def backward(ctx, *gradients):
        slices = [
            _SumOfRows.apply(gradient, part_name(name, "grad"), rows).reshape(shape)
            for gradient, name, rows, shape in zip(gradients, *ctx.arguments, strict=True)
        ]
        return None, *slices


def _without_group_rows(handle):
    finish = handle._finish
    handle._finish = lambda result: [tensor for tensor, _ in finish(result)]
    return handle


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """As allgather_async() for a list of tensors that are joined together."""
    name = group_name("allgather", name)
    check_process_set(process_set)
    tensors = list(tensors)
    return _without_group_rows(_begin_group_gather(member_names(name, len(tensors)), tensors))


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """As allgather() for a list of tensors that are joined together."""
    name = group_name("allgather", name)
    check_process_set(process_set)
    tensors = list(tensors)
    names = member_names(name, len(tensors))
    if any(_needs_gradient(tensor) for tensor in tensors):
        return list(_GroupedAllgather.apply(names, *tensors))
    return _without_group_rows(_begin_group_gather(names, tensors)).wait()


# ---- broadcast ----


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name):
        ctx.arguments = (root_rank, name)
        return begin_out(_horon.BROADCAST, name, tensor, 0, root_rank).wait()

    @staticmethod
    def backward(ctx, gradient):
        root_rank, name = ctx.arguments
        return _SumAtRoot.apply(gradient, root_rank, part_name(name, "grad")), None, None


class _SumAtRoot(torch.autograd.Function):
    """The sum on one rank, zeros on the others: the gradient of _Broadcast, which is its own."""

    @staticmethod
    def forward(ctx, tensor, root_rank, name):
        ctx.arguments = (root_rank, name)
        total = _sum(tensor, name)
        return total if rank() == root_rank else torch.zeros_like(total)

    @staticmethod
    def backward(ctx, gradient):
        root_rank, name = ctx.arguments
        return _Broadcast.apply(gradient, root_rank, part_name(name, "grad")), None, None


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Begins a broadcast; synchronize() gives the result, which autograd does not know."""
    name = operation_name("broadcast", name)
    check_process_set(process_set)
    return begin_out(_horon.BROADCAST, name, tensor, 0, root_rank)


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """Every rank gets the root's tensor. Differentiable."""
    name = operation_name("broadcast", name)
    check_process_set(process_set)
    if _needs_gradient(tensor):
        return _Broadcast.apply(tensor, root_rank, name)
    return begin_out(_horon.BROADCAST, name, tensor, 0, root_rank).wait()


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast_async(), in place."""
    name = operation_name("broadcast", name)
    check_process_set(process_set)
    return begin_in(_horon.BROADCAST, name, tensor, 0, root_rank)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast(), in place and without autograd."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


# ---- sparse ----


def _split(shape):
    """Runs of no more dimensions than horon tells apart beside the rows."""
    return [shape[i : i + _horon.NDIM_MAX - 1] for i in range(0, len(shape), _horon.NDIM_MAX - 1)]


def sparse_allreduce_async(tensor, name=None, op=None, process_set=global_process_set):
    """Adds the ranks' sparse COO tensors (Sum or Average): entries are gathered and coalesced.

    Returns a handle whose result is a new sparse tensor.
    """
    name = operation_name("sparse_allreduce", name)
    check_process_set(process_set)
    return begin_sparse(tensor, name, resolve_op(op, None))


def begin_sparse(tensor, name, op, first_name=None):
    """What sparse_allreduce_async() does; first_name: where the ranks meet first."""
    if op not in (Sum, Average):
        raise ValueError(f"a sparse allreduce with {op.name} does not exist")
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise ValueError(
            f"sparse_allreduce_async() needs a sparse COO tensor, not {describe(tensor)}; "
            "allreduce_async() is for dense ones"
        )
    tensor = tensor.detach().coalesce()
    # horon compares dimensions but the first: tensors of no rows make it compare the sparse ones
    shapes = [torch.empty((0, *sizes), dtype=torch.uint8) for sizes in _split(tensor.shape)]
    names = [part_name(name, f"shape{i or ''}") for i in range(len(shapes))]
    names += [part_name(name, "indices"), part_name(name, "values")]
    if first_name is not None:
        names[0] = first_name
    tensors = [*shapes, tensor.indices().t().contiguous(), tensor.values()]
    handle = _begin_group_gather(names, tensors)
    finish = handle._finish

    def combine(result):
        (all_indices, _), (all_values, _) = finish(result)[-2:]
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape).coalesce()
        return total / context().size if op == Average else total

    handle._finish = combine
    return handle
