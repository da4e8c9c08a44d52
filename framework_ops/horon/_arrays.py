# SPDX-License-Identifier: Apache-2.0
"""The verbs on numpy arrays, buffers, DLPack tensors and plain numbers; numpy is not needed.

A result has the kind of its input: a numpy array for a numpy array (also for bfloat16 and fp8 of
ml_dtypes), a number for a number, and else a horon.Array, which any framework can look at through
the buffer protocol or DLPack.
"""

import sys
from array import array

from horon import _horon
from horon._staging import Staged, check_sign
from horon._verbs import FUNCTIONS, Verbs

__all__ = list(FUNCTIONS)

# ml_dtypes' names, and the integers of the same width that lend them the buffer protocol
_ML_DTYPES = {
    "bfloat16": ("bfloat16", "uint16"),
    "float8_e4m3fn": ("float8_e4m3", "uint8"),
    "float8_e5m2": ("float8_e5m2", "uint8"),
}


class _Buffer(Staged):
    """Anything with a buffer or __dlpack__."""

    def __init__(self, value):
        check_sign(value)
        self.source = value
        self.dtype, self.shape = _horon.describe(value)[:2]
        self.keep = None

    def dimensions(self):
        return self.shape

    def make_room(self):
        self.make_room_for(self.shape)

    def make_room_for(self, shape):
        self.target = _horon.Array(shape, self.dtype)

    def result(self):
        return self.gathered(self.target)

    def gathered(self, array):
        return array

    def write_back(self):
        return self.source


class _Number(_Buffer):
    """A Python number, or a member of an enum of numbers, as an array of one element."""

    def __init__(self, value):
        self.kind = next(kind for kind in (bool, int, float) if isinstance(value, kind))
        if self.kind is bool:
            source = _horon.Array((), _horon.DTYPES["bool"])
            memoryview(source).cast("B")[0] = value
        else:
            source = array("q" if self.kind is int else "d", [value])
        super().__init__(source)
        self.shape = ()

    def gathered(self, array):
        view = memoryview(array).cast("B").cast({bool: "?", int: "q", float: "d"}[self.kind])
        return view.tolist() if array.shape else view[0]


class _Numpy(_Buffer):
    """A numpy array; made contiguous if it is not."""

    def __init__(self, value):
        numpy = sys.modules["numpy"]
        self.original = value
        source = numpy.ascontiguousarray(value).reshape(value.shape)
        dtype, lent = _ML_DTYPES.get(value.dtype.name, (None, None))
        super().__init__(source.view(lent) if lent else source)
        if dtype:
            self.dtype = _horon.DTYPES[dtype]

    def gathered(self, array):
        return sys.modules["numpy"].asarray(array).view(self.original.dtype)

    def write_back(self):
        if not sys.modules["numpy"].shares_memory(self.source, self.original):
            self.original[...] = self.source.view(self.original.dtype)
        return self.original


class _NumpyScalar(_Numpy):
    """What numpy gives for one element; some of these are Python's numbers, too."""

    def __init__(self, value):
        super().__init__(sys.modules["numpy"].asarray(value))

    def gathered(self, array):
        return super().gathered(array)[()]


def _kind_of(value):
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return _NumpyScalar
    if numpy is not None and isinstance(value, numpy.ndarray):
        if type(value) is not numpy.ndarray and isinstance(value, numpy.ma.MaskedArray):
            raise TypeError("the mask of an array does not travel: filled() gives one without")
        return _Numpy
    return _Number if isinstance(value, (bool, int, float)) else _Buffer


def _check_in_place(value, kind):
    if kind in (_Number, _NumpyScalar):
        raise TypeError("a number cannot be changed in place")
    if kind is _Numpy and not value.flags.writeable:
        raise ValueError("the array is read-only")


def _stage(value, verb, in_place):
    kind = _kind_of(value)
    if in_place:
        _check_in_place(value, kind)
    staged = kind(value)
    if verb.gathers and not verb.divides and not staged.shape:
        staged.shape = (1,)
    return staged


def _stage_summand(value, in_place):
    kind = _kind_of(value)
    if in_place:
        _check_in_place(value, kind)
    if not issubclass(kind, _Numpy):
        raise NotImplementedError(
            f"there is no ADASUM of {type(value).__name__}: numpy arrays have it, and horon.torch"
        )
    array = sys.modules["numpy"].asarray(value)
    if array.dtype.kind != "f" and array.dtype.name not in _ML_DTYPES:
        raise ValueError(f"Adasum takes floating-point arrays, not {array.dtype}")
    shape = (1, *array.shape) if array.ndim < _horon.NDIM_MAX else (1, -1)

    def finish(rows, combine):
        """16 bits are computed with in 32, and rounded once."""
        wide = rows if rows.dtype == "float64" else rows.astype("float32")
        total = combine([row.reshape(-1) for row in wide], double=lambda a: a.astype("float64"))
        result = total.astype(rows.dtype).reshape(array.shape)
        if in_place:
            value[...] = result
            return value
        return result[()] if kind is _NumpyScalar else result

    return array.reshape(shape), finish


def _integers(rows, splits):
    """An array of numpy's if the splits are one, else a list. 64 bits only if 32 hold them not."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(splits, numpy.ndarray):
        return list(rows)
    return numpy.array(rows, dtype="int32" if max(rows) < 2**31 else "int64")


_verbs = Verbs(_stage, _integers, _stage_summand)

allreduce = _verbs.allreduce
allreduce_ = _verbs.allreduce_
allreduce_async = _verbs.allreduce_async
allreduce_async_ = _verbs.allreduce_async_
grouped_allreduce = _verbs.grouped_allreduce
grouped_allreduce_ = _verbs.grouped_allreduce_
grouped_allreduce_async = _verbs.grouped_allreduce_async
grouped_allreduce_async_ = _verbs.grouped_allreduce_async_
allgather = _verbs.allgather
allgather_async = _verbs.allgather_async
grouped_allgather = _verbs.grouped_allgather
grouped_allgather_async = _verbs.grouped_allgather_async
alltoall = _verbs.alltoall
alltoall_async = _verbs.alltoall_async
gather = _verbs.gather
gather_async = _verbs.gather_async
scatter = _verbs.scatter
scatter_async = _verbs.scatter_async
reducescatter = _verbs.reducescatter
reducescatter_async = _verbs.reducescatter_async
grouped_reducescatter = _verbs.grouped_reducescatter
grouped_reducescatter_async = _verbs.grouped_reducescatter_async
reduce = _verbs.reduce
reduce_ = _verbs.reduce_
reduce_async = _verbs.reduce_async
reduce_async_ = _verbs.reduce_async_
grouped_reduce = _verbs.grouped_reduce
grouped_reduce_ = _verbs.grouped_reduce_
grouped_reduce_async = _verbs.grouped_reduce_async
grouped_reduce_async_ = _verbs.grouped_reduce_async_
send = _verbs.send
send_async = _verbs.send_async
recv = _verbs.recv
recv_async = _verbs.recv_async
broadcast = _verbs.broadcast
broadcast_ = _verbs.broadcast_
broadcast_async = _verbs.broadcast_async
broadcast_async_ = _verbs.broadcast_async_
grouped_broadcast = _verbs.grouped_broadcast
grouped_broadcast_ = _verbs.grouped_broadcast_
grouped_broadcast_async = _verbs.grouped_broadcast_async
grouped_broadcast_async_ = _verbs.grouped_broadcast_async_
