# SPDX-License-Identifier: Apache-2.0
"""Collectives on torch tensors, by Horovod's names and meanings.

A contiguous tensor in host memory is used where it lies: the extension reads its address through
DLPack's exchange API, or is given data_ptr() by torch versions without it. Any other tensor
(strided, conjugated, on a device) is staged through a contiguous host copy, in and out.

A Handle owns what the operation touches until it has ended. Autograd: the gradient of a sum is the
sum of the gradients, of a gather the own slice of their sum, of a broadcast their sum at the root.
"""

import torch

from horon import _horon
from horon._arrays import barrier, poll, synchronize
from horon._world import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    auto_name,
    check_process_set,
    context,
    global_process_set,
    rank,
    resolve_op,
)
from horon.torch.compression import Compression

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

_TORCH_NAMES = {
    "float8_e4m3": "float8_e4m3fn",
}
_DTYPES = {}
for _name, _code in _horon.DTYPES.items():
    _dtype = getattr(torch, _TORCH_NAMES.get(_name, _name), None)
    if _dtype is not None:
        _DTYPES[_dtype] = _code

# Newer tensors tell their address through DLPack's exchange API, at a tenth of data_ptr()'s cost
_HAS_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

try:  # tells autograd that a tensor was changed behind its back; torch 2.1
    from torch.autograd.graph import increment_version as _increment_version
except ImportError:

    def _increment_version(tensor):
        pass


class Handle:
    """An operation that was begun: see poll() and synchronize()."""

    __slots__ = ("_finish", "_request", "_result")

    def __init__(self, request, result, finish=None):
        self._request = request
        self._result = result
        self._finish = finish

    def poll(self):
        """Whether it has ended, so that wait() would not wait."""
        return self._request.test()

    def wait(self, timeout=None):
        """Waits; returns the result, or raises why the operation failed."""
        self._request.wait(timeout)
        if self._finish is not None:
            self._result = self._finish(self._result)
            self._finish = None
        return self._result


class _Group:
    """Requests that are waited for as one."""

    __slots__ = ("_requests",)

    def __init__(self, requests):
        self._requests = requests

    def test(self):
        return all(request.test() for request in self._requests)

    def wait(self, timeout):
        _horon.wait_all(self._requests, timeout)


def _is_plain(tensor):
    """Whether its elements lie in host memory one after the other, as they read."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def _check(tensor):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch.Tensor is needed, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(f"a dense tensor is needed, not one of layout {tensor.layout}")
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"tensors of {tensor.dtype} cannot be sent")
    return tensor.detach() if tensor.requires_grad else tensor


def _stage(tensor):
    """A contiguous host copy of any dense tensor, or the tensor itself if it is one."""
    if _is_plain(tensor):
        return tensor
    return tensor.resolve_conj().resolve_neg().to("cpu").contiguous()


def _fresh(tensor):
    """Uninitialised memory for a result that is like the plain `tensor`."""
    return torch.empty_like(tensor)


def _home(result, tensor):
    """Moves a result in host memory to where `tensor` is."""
    return result if tensor.is_cpu else result.to(tensor.device)


def _arguments(verb, name, source, output, op=0, root=0, prescale=1.0, postscale=1.0):
    """What Context.submit() takes. source and output are plain; output None: horon's own memory."""
    if _HAS_EXCHANGE:
        return (verb, name, source, output, op, root, prescale, postscale)
    return (
        verb,
        name,
        source.data_ptr(),
        None if output is None else output.data_ptr(),
        op,
        root,
        prescale,
        postscale,
        0,
        _DTYPES[source.dtype],
        tuple(source.shape),
        (source, output),
    )


def _wire_name(verb, name):
    return f"{verb}.{name}" if name else auto_name(verb)


def _group_names(verb, name, n):
    base = f"{verb}.{name}" if name else auto_name(f"grouped_{verb}")
    return [f"{base}_{i + 1}of{n}" for i in range(n)]


def _begin_out(verb, name, tensor, *numbers):
    tensor = _check(tensor)
    source = _stage(tensor)
    output = _fresh(source)
    request = context().submit(*_arguments(verb, name, source, output, *numbers))
    if source is tensor:
        return Handle(request, output)
    return Handle(request, output, lambda result: _home(result, tensor))


def _begin_in(verb, name, tensor, *numbers):
    if _HAS_EXCHANGE and type(tensor) in _PLAIN_TYPES and not (tensor.is_neg() or tensor.is_conj()):
        request = context().submit_plain(verb, name, tensor, tensor, *numbers)
        if request is not None:
            _increment_version(tensor)
            return Handle(request, tensor)
    plain = _check(tensor)
    staged = _stage(plain)
    request = context().submit(*_arguments(verb, name, staged, staged, *numbers))
    _increment_version(tensor)
    if staged is plain:
        return Handle(request, tensor)

    def write_back(result):
        plain.copy_(staged)
        return result

    return Handle(request, tensor, write_back)


# ---- allreduce ----


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, op, prescale, postscale):
        ctx.arguments = (name, op, prescale, postscale)
        return _begin_out(_horon.ALLREDUCE, name, tensor, op, 0, prescale, postscale).wait()

    @staticmethod
    def backward(ctx, gradient):
        name, op, prescale, postscale = ctx.arguments
        if op not in (Sum, Average):
            raise NotImplementedError(f"an allreduce with {op.name} has no gradient")
        result = _Allreduce.apply(gradient, name + ".grad", op, prescale, postscale)
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
    check_process_set(process_set)
    return _begin_out(
        _horon.ALLREDUCE,
        _wire_name("allreduce", name),
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
    check_process_set(process_set)
    op = resolve_op(op, average)
    compressed, ctx = compression.compress(tensor)
    name = _wire_name("allreduce", name)
    if _needs_gradient(compressed):
        result = _Allreduce.apply(compressed, name, op, prescale_factor, postscale_factor)
    else:
        result = _begin_out(
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
    check_process_set(process_set)
    return _begin_in(
        _horon.ALLREDUCE,
        _wire_name("allreduce", name),
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


def _submit_group(verb, names, tensors, outputs, *numbers):
    return context().submit_group(
        [
            _arguments(verb, name, tensor, output, *numbers)
            for name, tensor, output in zip(names, tensors, outputs, strict=True)
        ]
    )


def _begin_group_out(names, tensors, op, prescale, postscale):
    tensors = [_check(tensor) for tensor in tensors]
    sources = [_stage(tensor) for tensor in tensors]
    outputs = [_fresh(source) for source in sources]

    def finish(results):
        return [_home(result, tensor) for result, tensor in zip(results, tensors, strict=True)]

    requests = _submit_group(_horon.ALLREDUCE, names, sources, outputs, op, 0, prescale, postscale)
    return Handle(_Group(requests), outputs, finish)


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
        names = [name + ".grad" for name in names]
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
    check_process_set(process_set)
    tensors = list(tensors)
    return _begin_group_out(
        _group_names("allreduce", name, len(tensors)),
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
    check_process_set(process_set)
    op = resolve_op(op, average)
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    names = _group_names("allreduce", name, len(pairs))
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
    check_process_set(process_set)
    tensors = list(tensors)
    plain = [_check(tensor) for tensor in tensors]
    staged = [_stage(tensor) for tensor in plain]

    def write_back(_):
        for tensor, copy in zip(plain, staged, strict=True):
            if copy is not tensor:
                tensor.copy_(copy)
        return tensors

    names = _group_names("allreduce", name, len(tensors))
    requests = _submit_group(
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
        _increment_version(tensor)
    return Handle(_Group(requests), tensors, write_back)


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
    tensor = _gather_source(_check(tensor))
    source = _stage(tensor)
    request = context().submit(*_arguments(_horon.ALLGATHER, name, source, None))

    def finish(_):
        result, rows = _gathered(request, source)
        return _home(result, tensor), rows

    return Handle(request, None, finish)


def _reduced_slice(gradient, name, rows):
    """This rank's rows of the sum of the ranks' gradients."""
    total = _begin_out(_horon.ALLREDUCE, name, gradient, Sum).wait()
    start = sum(rows[: rank()])
    return total[start : start + rows[rank()]]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name):
        result, rows = _begin_gather(name, tensor).wait()
        ctx.arguments = (name, rows, tensor.shape)
        return result

    @staticmethod
    def backward(ctx, gradient):
        name, rows, shape = ctx.arguments
        return _reduced_slice(gradient, name + ".grad", rows).reshape(shape), None


def _without_rows(handle):
    finish = handle._finish
    handle._finish = lambda result: finish(result)[0]
    return handle


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Begins an allgather; synchronize() gives the result, which autograd does not know."""
    check_process_set(process_set)
    return _without_rows(_begin_gather(_wire_name("allgather", name), tensor))


def allgather(tensor, name=None, process_set=global_process_set):
    """Joins the ranks' tensors along the first dimension, in which they may differ, in rank order.

    A scalar gives one row. Differentiable.
    """
    check_process_set(process_set)
    name = _wire_name("allgather", name)
    if _needs_gradient(tensor):
        return _Allgather.apply(tensor, name)
    return _without_rows(_begin_gather(name, tensor)).wait()


def _begin_group_gather(names, tensors):
    tensors = [_gather_source(_check(tensor)) for tensor in tensors]
    sources = [_stage(tensor) for tensor in tensors]
    requests = _submit_group(_horon.ALLGATHER, names, sources, [None] * len(sources))

    def finish(_):
        results = []
        for request, source, tensor in zip(requests, sources, tensors, strict=True):
            result, rows = _gathered(request, source)
            results.append((_home(result, tensor), rows))
        return results

    return Handle(_Group(requests), None, finish)


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, names, *tensors):
        pairs = _begin_group_gather(names, tensors).wait()
        ctx.arguments = (names, [rows for _, rows in pairs], [tensor.shape for tensor in tensors])
        return tuple(result for result, _ in pairs)

    @staticmethod
    def backward(ctx, *gradients):
        slices = [
            _reduced_slice(gradient, name + ".grad", rows).reshape(shape)
            for gradient, name, rows, shape in zip(gradients, *ctx.arguments, strict=True)
        ]
        return None, *slices


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """As allgather_async() for a list of tensors that are joined together."""
    check_process_set(process_set)
    tensors = list(tensors)
    handle = _begin_group_gather(_group_names("allgather", name, len(tensors)), tensors)
    finish = handle._finish
    handle._finish = lambda result: [tensor for tensor, _ in finish(result)]
    return handle


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """As allgather() for a list of tensors that are joined together."""
    tensors = list(tensors)
    if any(_needs_gradient(tensor) for tensor in tensors):
        check_process_set(process_set)
        names = _group_names("allgather", name, len(tensors))
        return list(_GroupedAllgather.apply(names, *tensors))
    return grouped_allgather_async(tensors, name, process_set).wait()


# ---- broadcast ----


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name):
        ctx.arguments = (root_rank, name)
        return _begin_out(_horon.BROADCAST, name, tensor, 0, root_rank).wait()

    @staticmethod
    def backward(ctx, gradient):
        root_rank, name = ctx.arguments
        total = _begin_out(_horon.ALLREDUCE, name + ".grad", gradient, Sum).wait()
        return total if rank() == root_rank else torch.zeros_like(total), None, None


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Begins a broadcast; synchronize() gives the result, which autograd does not know."""
    check_process_set(process_set)
    return _begin_out(_horon.BROADCAST, _wire_name("broadcast", name), tensor, 0, root_rank)


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """Every rank gets the root's tensor. Differentiable."""
    check_process_set(process_set)
    name = _wire_name("broadcast", name)
    if _needs_gradient(tensor):
        return _Broadcast.apply(tensor, root_rank, name)
    return _begin_out(_horon.BROADCAST, name, tensor, 0, root_rank).wait()


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast_async(), in place."""
    check_process_set(process_set)
    return _begin_in(_horon.BROADCAST, _wire_name("broadcast", name), tensor, 0, root_rank)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast(), in place and without autograd."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


# ---- sparse ----


def sparse_allreduce_async(tensor, name=None, op=None, process_set=global_process_set):
    """Adds the ranks' sparse COO tensors (Sum or Average): entries are gathered and coalesced.

    Returns a handle whose result is a new sparse tensor.
    """
    check_process_set(process_set)
    op = resolve_op(op, None)
    if op not in (Sum, Average):
        raise ValueError(f"a sparse allreduce with {op.name} does not exist")
    tensor = tensor.detach().coalesce()
    name = _wire_name("sparse_allreduce", name)
    indices = tensor.indices().t().contiguous()
    values = tensor.values()
    handle = _begin_group_gather([name + ".indices", name + ".values"], [indices, values])
    finish = handle._finish

    def combine(result):
        (all_indices, _), (all_values, _) = finish(result)
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape).coalesce()
        return total / context().size if op == Average else total

    handle._finish = combine
    return handle
