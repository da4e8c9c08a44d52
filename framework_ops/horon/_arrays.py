# SPDX-License-Identifier: Apache-2.0
"""Collectives on numpy arrays, buffers, DLPack tensors and plain numbers; numpy is not needed.

A result has the kind of its input: a numpy array for a numpy array (also for bfloat16 and fp8 of
ml_dtypes), a number for a number, and else a horon.Array, which any framework can look at through
the buffer protocol or DLPack.
"""

import sys
from array import array

from horon import _horon
from horon._names import group_name, member_names, operation_name
from horon._world import check_process_set, context, resolve_op

# ml_dtypes' names, and the integers of the same width that lend them the buffer protocol
_ML_DTYPES = {
    "bfloat16": ("bfloat16", "uint16"),
    "float8_e4m3fn": ("float8_e4m3", "uint8"),
    "float8_e5m2": ("float8_e5m2", "uint8"),
}


class _Number:
    """A Python number, or a member of an enum of numbers, as an array of one element."""

    def __init__(self, value):
        self.kind = next(kind for kind in (bool, int, float) if isinstance(value, kind))
        if self.kind is bool:
            self.buffer = _horon.Array((), _horon.DTYPES["bool"])
            memoryview(self.buffer).cast("B")[0] = value
        else:
            self.buffer = array("q" if self.kind is int else "d", [value])
        self.dtype = _horon.describe(self.buffer)[0]
        self.shape = ()

    def result(self, output):
        view = memoryview(output).cast("B").cast({bool: "?", int: "q", float: "d"}[self.kind])
        return view.tolist() if output.shape else view[0]


class _Numpy:
    """A numpy array; made contiguous if it is not."""

    def __init__(self, value):
        numpy = sys.modules["numpy"]
        self.original = value
        self.array_dtype = value.dtype
        self.buffer = numpy.ascontiguousarray(value).reshape(value.shape)
        dtype, lent = _ML_DTYPES.get(value.dtype.name, (None, None))
        if lent:
            self.buffer = self.buffer.view(lent)
        self.dtype, self.shape = _horon.describe(self.buffer)[:2]
        if dtype:
            self.dtype = _horon.DTYPES[dtype]

    def result(self, output):
        return sys.modules["numpy"].asarray(output).view(self.array_dtype)

    def write_back(self):
        if not sys.modules["numpy"].shares_memory(self.buffer, self.original):
            self.original[...] = self.buffer.view(self.array_dtype)


class _NumpyScalar(_Numpy):
    """What numpy gives for one element; some of these are Python's numbers, too."""

    def __init__(self, value):
        super().__init__(sys.modules["numpy"].asarray(value))

    def result(self, output):
        return super().result(output)[()]


class _Buffer:
    """Anything else with a buffer or __dlpack__."""

    def __init__(self, value):
        self.buffer = value
        self.dtype, self.shape = _horon.describe(value)[:2]

    def result(self, output):
        return output

    def write_back(self):
        pass


def _look_at(value):
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return _NumpyScalar(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _Numpy(value)
    if isinstance(value, (bool, int, float)):
        return _Number(value)
    return _Buffer(value)


def _look_at_output(value):
    source = _look_at(value)
    if isinstance(source, (_Number, _NumpyScalar)):
        raise TypeError("a number cannot be changed in place")
    if isinstance(source, _Numpy) and not value.flags.writeable:
        raise ValueError("the array is read-only")
    return source


class Handle:
    """An operation, or a group of them, that was begun: see poll() and synchronize()."""

    __slots__ = ("_finish", "_requests", "_result")

    def __init__(self, requests, finish):
        self._requests = requests
        self._finish = finish
        self._result = None

    def poll(self):
        return all(request.test() for request in self._requests)

    def wait(self, timeout=None):
        _horon.wait_all(self._requests, timeout)
        if self._finish is not None:
            self._result = self._finish()
            self._finish = None
        return self._result


def _check_handle(handle):
    if not hasattr(handle, "poll"):
        raise TypeError(
            f"a handle is needed, as allreduce_async() and the like return, "
            f"not {type(handle).__name__}"
        )


def poll(handle) -> bool:
    """Whether the operation has ended, so that synchronize() would not wait."""
    _check_handle(handle)
    return handle.poll()


def synchronize(handle, timeout=None):
    """Waits for the operation; returns its result, or raises why it failed."""
    _check_handle(handle)
    return handle.wait(timeout)


def _allreduce_arguments(source, output, name, op, scales):
    return (_horon.ALLREDUCE, name, source.buffer, output, op, 0, *scales, 0, source.dtype)


def _fresh(source):
    return _horon.Array(source.shape, source.dtype)


def allreduce_async(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=None,
):
    name = operation_name("allreduce", name)
    check_process_set(process_set)
    source = _look_at(tensor)
    output = _fresh(source)
    request = context().submit(
        *_allreduce_arguments(
            source,
            output,
            name,
            resolve_op(op, average),
            (prescale_factor, postscale_factor),
        )
    )
    return Handle([request], lambda: source.result(output))


def allreduce(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=None,
):
    """Combines the ranks' tensors: every rank gets the average, or what `op` says."""
    return allreduce_async(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def allreduce_async_(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=None,
):
    name = operation_name("allreduce", name)
    check_process_set(process_set)
    source = _look_at_output(tensor)
    request = context().submit(
        *_allreduce_arguments(
            source,
            source.buffer,
            name,
            resolve_op(op, average),
            (prescale_factor, postscale_factor),
        )
    )

    def finish():
        source.write_back()
        return tensor

    return Handle([request], finish)


def allreduce_(
    tensor,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=None,
):
    """As allreduce(), in place."""
    return allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_allreduce_async(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=None,
):
    name = group_name("allreduce", name)
    check_process_set(process_set)
    op = resolve_op(op, average)
    sources = [_look_at(tensor) for tensor in tensors]
    outputs = [_fresh(source) for source in sources]
    names = member_names(name, len(sources))
    requests = context().submit_group(
        [
            _allreduce_arguments(source, output, n, op, (prescale_factor, postscale_factor))
            for source, output, n in zip(sources, outputs, names, strict=True)
        ]
    )
    return Handle(
        requests,
        lambda: [source.result(output) for source, output in zip(sources, outputs, strict=True)],
    )


def grouped_allreduce(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=None,
):
    """As allreduce() for a list of tensors that are combined together."""
    return grouped_allreduce_async(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_allreduce_async_(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=None,
):
    name = group_name("allreduce", name)
    check_process_set(process_set)
    op = resolve_op(op, average)
    tensors = list(tensors)
    sources = [_look_at_output(tensor) for tensor in tensors]
    names = member_names(name, len(sources))
    requests = context().submit_group(
        [
            _allreduce_arguments(source, source.buffer, n, op, (prescale_factor, postscale_factor))
            for source, n in zip(sources, names, strict=True)
        ]
    )

    def finish():
        for source in sources:
            source.write_back()
        return tensors

    return Handle(requests, finish)


def grouped_allreduce_(
    tensors,
    average=None,
    name=None,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=None,
):
    """As grouped_allreduce(), in place."""
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def _allgather_arguments(source, name):
    # a scalar gives one row
    shape = source.shape or (1,)
    return (_horon.ALLGATHER, name, source.buffer, None, 0, 0, 1.0, 1.0, 0, source.dtype, shape)


def allgather_async(tensor, name=None, process_set=None):
    name = operation_name("allgather", name)
    check_process_set(process_set)
    source = _look_at(tensor)
    request = context().submit(*_allgather_arguments(source, name))
    return Handle([request], lambda: source.result(request.output()[0]))


def allgather(tensor, name=None, process_set=None):
    """Joins the ranks' tensors along the first dimension, in which they may differ."""
    return allgather_async(tensor, name, process_set).wait()


def grouped_allgather_async(tensors, name=None, process_set=None):
    name = group_name("allgather", name)
    check_process_set(process_set)
    sources = [_look_at(tensor) for tensor in tensors]
    names = member_names(name, len(sources))
    requests = context().submit_group(
        [_allgather_arguments(source, n) for source, n in zip(sources, names, strict=True)]
    )
    return Handle(
        requests,
        lambda: [
            source.result(request.output()[0])
            for source, request in zip(sources, requests, strict=True)
        ],
    )


def grouped_allgather(tensors, name=None, process_set=None):
    """As allgather() for a list of tensors that are joined together."""
    return grouped_allgather_async(tensors, name, process_set).wait()


def broadcast_async(tensor, root_rank, name=None, process_set=None):
    name = operation_name("broadcast", name)
    check_process_set(process_set)
    source = _look_at(tensor)
    output = _fresh(source)
    request = context().submit(
        _horon.BROADCAST,
        name,
        source.buffer,
        output,
        0,
        root_rank,
        1.0,
        1.0,
        0,
        source.dtype,
    )
    return Handle([request], lambda: source.result(output))


def broadcast(tensor, root_rank, name=None, process_set=None):
    """Every rank gets the root's tensor."""
    return broadcast_async(tensor, root_rank, name, process_set).wait()


def broadcast_async_(tensor, root_rank, name=None, process_set=None):
    name = operation_name("broadcast", name)
    check_process_set(process_set)
    source = _look_at_output(tensor)
    request = context().submit(
        _horon.BROADCAST,
        name,
        source.buffer,
        source.buffer,
        0,
        root_rank,
        1.0,
        1.0,
        0,
        source.dtype,
    )

    def finish():
        source.write_back()
        return tensor

    return Handle([request], finish)


def broadcast_(tensor, root_rank, name=None, process_set=None):
    """As broadcast(), in place."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def barrier(process_set=None):
    """Returns once every rank has called it."""
    check_process_set(process_set)
    context().submit(_horon.BARRIER, None, None, None).wait()
