# SPDX-License-Identifier: Apache-2.0
"""numpy arrays, buffers, DLPack and numbers through horon."""

import array
import ctypes
import enum
import gc
import sys

import horon
import pytest
from horon import _horon

numpy = pytest.importorskip("numpy")

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
FLOATS = ("float16", "float32", "float64")
MOVED = ("complex64", "complex128")
COUNTS = (0, 1, 13, 4099)


def value(dtype, count, rank):
    """Small integers, so that sums and products are exact in every type; each rank has its own."""
    numbers = (numpy.arange(count) + 2 * rank) % 5 + 1
    return (numbers % 2 if dtype == "bool" else numbers).astype(dtype)


BITWISE = {
    horon.BitAnd: numpy.bitwise_and,
    horon.BitOr: numpy.bitwise_or,
    horon.BitXor: numpy.bitwise_xor,
}


def has(dtype, op):
    if op in BITWISE:
        return dtype not in FLOATS
    return op != horon.Adasum and not (dtype == "bool" and op == horon.Average)


def expected(dtype, count, size, op):
    stack = numpy.stack([value(dtype, count, rank) for rank in range(size)])
    if op in BITWISE:
        return BITWISE[op].reduce(stack, 0)
    if op == horon.Sum:
        return stack.any(0) if dtype == "bool" else stack.sum(0).astype(dtype)
    if op == horon.Product:
        return stack.all(0) if dtype == "bool" else stack.prod(0).astype(dtype)
    if op == horon.Average:
        mean = stack.astype("float64").sum(0) / size
        return mean.astype(dtype)
    return stack.min(0) if op == horon.Min else stack.max(0)


def rank_allreduce_types():
    horon.init()
    size, rank = horon.size(), horon.rank()
    for count in COUNTS:
        for dtype in (*INTEGERS, *FLOATS, "bool"):
            for op in horon.ReduceOp:
                if not has(dtype, op):
                    continue
                name = f"{dtype}.{count}.{op.name}"
                mine = value(dtype, count, rank)
                result = horon.allreduce(mine, name=name, op=op)
                assert result.dtype == mine.dtype, name
                want = expected(dtype, count, size, op)
                tolerance = 2e-3 if dtype == "float16" else 1e-6
                assert numpy.allclose(
                    result.astype("float64"), want.astype("float64"), rtol=tolerance, atol=0
                ), (name, result, want)
                assert (mine == value(dtype, count, rank)).all(), f"{name}: the input has changed"
                assert horon.allreduce_(mine, name=name, op=op) is mine
                assert (mine == result).all(), name


@pytest.mark.parametrize("n", [1, 2, 3])
def test_allreduce_every_type_and_op_is_right(run_ranks, n):
    run_ranks(n, rank_allreduce_types)


def rank_bitwise():
    horon.init()
    size, rank = horon.size(), horon.rank()
    rows = numpy.arange(-7 * size, 7 * size).reshape(-1, 2) * (2**40 + 3)
    every = numpy.stack([rows ^ (5 << other) for other in range(size)])
    mine = slice(7 * rank, 7 * rank + 7)
    for op, combine in BITWISE.items():
        want = combine.reduce(every, 0)
        assert (horon.allreduce(every[rank], op=op) == want).all()
        assert all((out == want).all() for out in horon.grouped_allreduce([every[rank]] * 3, op=op))
        assert (horon.reducescatter(every[rank], op=op) == want[mine]).all()
        reduced = horon.reduce(every[rank], size - 1, op=op)
        assert reduced is None if rank < size - 1 else (reduced == want).all()
        assert horon.allreduce(6 + rank, op=op) == combine.reduce(range(6, 6 + size))
        for dtype in FLOATS:
            with pytest.raises(ValueError, match=f"{dtype} has no bit_"):
                horon.allreduce(numpy.ones(3, dtype), op=op)
    assert (horon.allreduce(numpy.array([rank == 0]), op=horon.BitXor) == [True]).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_bits_are_combined_as_numpy_does(run_ranks, n):
    run_ranks(n, rank_bitwise)


def rank_bits_of_those_left():
    horon.init()
    if horon.rank() != 1:
        mine = numpy.array([12, 10], "int32") << horon.rank()
        others = numpy.stack([mine >> horon.rank() << r for r in range(horon.size()) if r != 1])
        for op, combine in BITWISE.items():
            assert (horon.allreduce(mine, name=op.name, op=op) == combine.reduce(others, 0)).all()
        with pytest.raises(horon.HoronInternalError, match="nothing is neutral to a bit_and"):
            horon.allreduce(mine, name="scaled", op=horon.BitAnd, prescale_factor=2)
    horon.join()


@pytest.mark.parametrize("n", [2, 3])
def test_bits_of_a_rank_that_has_joined_count_for_nothing(run_ranks, n):
    run_ranks(n, rank_bits_of_those_left)


def rank_move_types():
    horon.init()
    size, rank = horon.size(), horon.rank()
    for dtype in (*INTEGERS, *FLOATS, *MOVED, "bool"):
        for rows in (0, 1, 7):
            mine = value(dtype, (rows + rank) * 3, rank).reshape(rows + rank, 3)
            got = horon.allgather(mine, name=f"gather.{dtype}.{rows}")
            want = numpy.concatenate(
                [value(dtype, (rows + r) * 3, r).reshape(rows + r, 3) for r in range(size)]
            )
            assert got.dtype == mine.dtype and (got == want).all(), (dtype, rows)
        for root in range(size):
            mine = value(dtype, 11, rank)
            got = horon.broadcast(mine, root, name=f"bcast.{dtype}")
            assert got.dtype == mine.dtype and (got == value(dtype, 11, root)).all(), dtype
            assert (mine == value(dtype, 11, rank)).all()
            horon.broadcast_(mine, root, name=f"bcast.{dtype}")
            assert (mine == value(dtype, 11, root)).all(), dtype


@pytest.mark.parametrize("n", [1, 3])
def test_allgather_and_broadcast_move_every_type(run_ranks, n):
    run_ranks(n, rank_move_types)


def test_every_type_over_tcp(run_ranks):
    run_ranks(3, rank_allreduce_types, HORON_SHM=0)
    run_ranks(3, rank_move_types, HORON_SHM=0)


def rank_other_forms():
    horon.init()
    size, rank = horon.size(), horon.rank()
    total = sum(range(size))
    # numbers
    assert horon.allreduce(rank, op=horon.Sum) == total
    assert horon.allreduce(float(rank)) == total / size
    assert horon.allreduce(rank == 0, op=horon.Max) is True
    assert horon.allgather(rank) == list(range(size))
    assert horon.broadcast(rank + 5, size - 1) == size + 4
    # 0-d, non-contiguous, reversed
    assert horon.allreduce(numpy.float32(rank), op=horon.Sum) == total
    grid = numpy.arange(12.0).reshape(3, 4) + rank
    assert (
        horon.allreduce(grid.T, op=horon.Sum) == size * numpy.arange(12.0).reshape(3, 4).T + total
    ).all()
    horon.allreduce_(grid[:, 1], op=horon.Sum)
    assert (grid[:, 1] == size * numpy.array([1.0, 5.0, 9.0]) + total).all()
    assert (grid[:, 0] == numpy.array([0.0, 4.0, 8.0]) + rank).all()
    horon.broadcast_(grid[::-1], 0)
    # buffers
    plain = array.array("i", [rank, 1])
    horon.allreduce_(plain, op=horon.Sum)
    assert list(plain) == [total, size]
    assert bytes(horon.allgather(bytes([65 + rank]))) == bytes(65 + r for r in range(size))
    result = horon.allreduce(memoryview(array.array("d", [1.5])), op=horon.Sum)
    assert memoryview(result).tolist() == [1.5 * size]
    assert (numpy.from_dlpack(result) == 1.5 * size).all()
    # scale factors
    assert horon.allreduce(1.0, op=horon.Sum, prescale_factor=0.5, postscale_factor=4.0) == 2 * size
    # groups and handles
    results = horon.grouped_allreduce([numpy.ones(3), numpy.full(5, rank)], op=horon.Sum)
    assert (results[0] == size).all() and (results[1] == total).all()
    mine = [numpy.full(3, rank), numpy.arange(rank, rank + 5, dtype="uint8"), rank]
    cast = horon.grouped_broadcast(mine, size - 1)
    assert [array.tolist() for array in cast[:2]] == [[size - 1] * 3, [*range(size - 1, size + 4)]]
    assert cast[2] == size - 1 and mine[0].tolist() == [rank] * 3
    handle = horon.grouped_broadcast_async_(mine[:2], 0, name="cast")
    assert all(a is b for a, b in zip(handle.wait(), mine[:2], strict=True))
    assert horon.grouped_broadcast_([mine[0]], size - 1)[0] is mine[0]
    assert [array.tolist() for array in mine[:2]] == [[0] * 3, [0, 1, 2, 3, 4]]
    gathered = horon.grouped_allgather([numpy.full(rank, rank), numpy.array([rank])])
    assert len(gathered[0]) == total and list(gathered[1]) == list(range(size))
    handles = [
        horon.allreduce_async(numpy.full(n, rank), op=horon.Sum, name=f"h{n}") for n in range(20)
    ]
    order = handles if rank % 2 else handles[::-1]
    assert all((horon.synchronize(h) == total).all() for h in order)
    assert all(horon.poll(h) for h in handles)
    horon.barrier()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_numbers_strides_buffers_groups(run_ranks, n):
    run_ranks(n, rank_other_forms)


def rank_many_dimensions():
    """No caller meets horon's own limit on dimensions."""
    horon.init()
    size = horon.size()
    shapes = [(2,) * n for n in (0, 7, 8, 9, 13)] + [(1,) * 32, (3, *(1,) * 8, 0), (0, *(2,) * 9)]
    for shape in shapes:
        mine = numpy.arange(int(numpy.prod(shape)), dtype="f4").reshape(shape)
        got = horon.allreduce(mine, name="sum", op=horon.Sum)
        assert got.shape == shape and (got == size * mine).all(), shape
        got = horon.broadcast(mine, size - 1, name="cast")
        assert got.shape == shape and (got == mine).all(), shape
        (got,) = horon.grouped_allreduce([mine], name="group", op=horon.Sum)
        assert got.shape == shape and (got == size * mine).all(), shape
        joined = numpy.concatenate([numpy.atleast_1d(mine)] * size)
        for got in (horon.allgather(mine), *horon.grouped_allgather([mine])):
            assert got.shape == joined.shape and (got == joined).all(), shape
        if numpy.prod(shape) == 0:
            continue
        got = horon.allreduce(memoryview(mine), name="view", op=horon.Sum)
        assert got.shape == shape and memoryview(got).shape == shape
        again = horon.allreduce(got)
        assert again.shape == shape and (numpy.from_dlpack(again) == size * mine).all(), shape
        copy = mine.copy()
        assert horon.allreduce_(copy, name="place", op=horon.Sum).shape == shape
        assert (copy == size * mine).all(), shape


@pytest.mark.parametrize("n", [1, 2])
def test_results_have_the_shape_of_the_input_in_any_dimension(run_ranks, n):
    run_ranks(n, rank_many_dimensions)


def rank_objects():
    horon.init()
    size, rank = horon.size(), horon.rank()
    mine = {"rank": rank, "data": [rank] * 1000 * (rank + 1)}
    assert horon.allgather_object(mine) == [
        {"rank": r, "data": [r] * 1000 * (r + 1)} for r in range(size)
    ]
    for root in range(size):
        got = horon.broadcast_object(mine if rank == root else None, root)
        assert got["rank"] == root
    big = horon.broadcast_object(b"x" * (1 << 25) if rank == 0 else None)
    assert len(big) == 1 << 25 and big[-1:] == b"x"
    assert horon.allgather_object(None) == [None] * size


@pytest.mark.parametrize("n", [1, 2])
def test_objects_of_any_size(run_ranks, n):
    run_ranks(n, rank_objects)


def rank_large_halves():
    horon.init()
    for number in (20000, -65504):
        halves = numpy.full(4099, number, "float16")
        assert (horon.allreduce(halves, name=f"halves.{number}", op=horon.Average) == number).all()


def test_float16_average_overflows_only_where_it_does_not_fit(run_ranks):
    run_ranks(4, rank_large_halves)
    run_ranks(4, rank_large_halves, HORON_SHM=0)  # each rank is a host of its own


def rank_dtype_by_hand():
    """Types that the buffer protocol has no letter for."""
    horon.init()
    context = horon._world.context()
    bfloat16 = _horon.DTYPES["bfloat16"]
    ones = array.array("H", [0x3F80] * 5)  # 1.0
    output = horon.Array((5,), bfloat16)
    context.submit(
        _horon.ALLREDUCE, "bf16", ones, output, horon.Sum, 0, 1.0, 1.0, 0, bfloat16
    ).wait()
    two = {1: 0x3F80, 2: 0x4000}[horon.size()]
    assert memoryview(output).tolist() == [two] * 5


@pytest.mark.parametrize("n", [1, 2])
def test_bfloat16_buffer_is_reduced(run_ranks, n):
    run_ranks(n, rank_dtype_by_hand)


class OldDLPack:
    """A producer that knows no max_version and hands out unversioned capsules."""

    def __init__(self, owner):
        self.owner = owner

    def __dlpack__(self, stream=None):
        return self.owner.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


def rank_dlpack():
    horon.init()
    owner = horon.Array((3,), _horon.DTYPES["float32"])
    memoryview(owner)[:] = array.array("f", [1, 2, 3])
    before = sys.getrefcount(owner)
    old = OldDLPack(owner)
    assert memoryview(horon.allreduce(old)).tolist() == [1, 2, 3]
    horon.allreduce_(old, op=horon.Sum)
    assert memoryview(owner).tolist() == [horon.size() * v for v in (1, 2, 3)]
    frozen = numpy.arange(3.0)
    frozen.flags.writeable = False
    assert (horon.allreduce(frozen) == frozen).all()
    with pytest.raises(ValueError, match="read-only"):
        horon.allreduce_(frozen)
    del old
    gc.collect()
    assert sys.getrefcount(owner) == before


def test_dlpack_old_and_read_only(run_ranks):
    run_ranks(2, rank_dlpack)


def rank_wrong_arguments():
    horon.init()
    context = horon._world.context()
    with pytest.raises(TypeError):
        horon.allreduce("text is no buffer")
    with pytest.raises(TypeError):
        horon.allreduce_(1.0)
    with pytest.raises(ValueError):
        horon.allreduce(numpy.array(["a"]))
    with pytest.raises(ValueError):
        horon.allreduce(numpy.ones(2), average=True, op=horon.Sum)
    with pytest.raises(ValueError):
        horon.allreduce(numpy.ones(2), process_set=5)
    with pytest.raises(ValueError):
        horon.allreduce(numpy.ones(2, "bool"))  # no average of bools
    with pytest.raises(ValueError):
        horon.allreduce(numpy.ones(2, "complex64"), op=horon.Sum)
    with pytest.raises(ValueError):
        horon.broadcast(numpy.ones(2), horon.size())
    with pytest.raises(ValueError, match="the name must have"):
        context.submit(_horon.ALLREDUCE, "n" * 600, numpy.ones(2), numpy.ones(2))
    for call in (horon.allreduce, horon.allreduce_, horon.allgather, horon.broadcast_object):
        with pytest.raises(ValueError, match=r"name '\w+\.a\\x00b.*' holds a NUL character"):
            call(numpy.ones(2), name="a\0b")
        with pytest.raises(ValueError, match=r"name '\w+\.a\\udcff.*' holds a lone surrogate"):
            call(numpy.ones(2), name="a\udcff")
    with pytest.raises(ValueError, match="NUL"):
        horon.grouped_allreduce([1.0, 2.0], name="a\0b")
    for call in (horon.poll, horon.synchronize):
        with pytest.raises(TypeError, match=r"handle is needed.*not ndarray"):
            call(numpy.ones(2))
    with pytest.raises(ValueError, match="holds a NUL character"):
        context.operation(_horon.ALLREDUCE, "a\0b")
    with pytest.raises(ValueError):
        context.submit(_horon.ALLREDUCE, "x", numpy.ones(2), numpy.ones(3))
    with pytest.raises(ValueError):
        context.submit(_horon.ALLREDUCE, "x", 4096, 4096)
    with pytest.raises(TypeError):
        context.submit(_horon.ALLREDUCE, "x")
    with pytest.raises(ValueError, match="or a communicator of mpi4py"):
        horon.init(comm=object())
    with pytest.raises(ValueError, match="comm is a list of ranks"):
        horon.init(comm=[0.5])
    assert horon.allreduce(1.0, op=horon.Sum) == horon.size()


@pytest.mark.parametrize("n", [1, 2])
def test_wrong_arguments_raise_and_leave_the_job_working(run_ranks, n):
    run_ranks(n, rank_wrong_arguments)


def rank_before_init():
    with pytest.raises(ValueError, match="init"):
        horon.rank()
    with pytest.raises(ValueError, match="init"):
        horon.allreduce(1.0)
    assert not horon.is_initialized()
    horon.init()
    horon.init()
    assert horon.is_initialized()
    assert 0 <= horon.local_rank() < horon.local_size() <= horon.size()
    assert 0 <= horon.cross_rank() < horon.cross_size()
    assert horon.is_homogeneous()
    assert not horon.rocm_built() and isinstance(horon.nccl_built(), int)
    assert horon.mpi_built() and not horon.mpi_enabled()
    with pytest.raises(ValueError, match="MPI"):
        horon.mpi_threads_supported()
    assert horon.__version__.count(".") == 2
    horon.shutdown()
    horon.shutdown()
    with pytest.raises(ValueError, match="init"):
        horon.size()
    return True


@pytest.mark.parametrize("n", [1, 2])
def test_questions_and_the_order_of_calls(run_ranks, n):
    assert all(run_ranks(n, rank_before_init))


def rank_address():
    """Bare addresses, as a caller with its own memory passes them."""
    horon.init()
    memory = (ctypes.c_double * 4)(1, 2, 3, 4)
    address = ctypes.addressof(memory)
    horon._world.context().submit(
        _horon.ALLREDUCE,
        "raw",
        address,
        address,
        horon.Sum,
        0,
        1.0,
        1.0,
        0,
        _horon.DTYPES["float64"],
        (2, 2),
        memory,
    ).wait()
    assert list(memory) == [horon.size() * v for v in (1, 2, 3, 4)]


def test_bare_addresses(run_ranks):
    run_ranks(2, rank_address)


class _Level(enum.IntEnum):
    LOW = 2


class _Ratio(float):
    pass


def rank_scalars():
    """Also those that are two kinds of number at once."""
    horon.init()
    size = horon.size()
    for value in (numpy.float32(2), numpy.float64(2), numpy.int8(2), numpy.uint64(2)):
        result = horon.allreduce(value, op=horon.Sum)
        assert type(result) is type(value) and result == 2 * size
        assert horon.allgather(value).tolist() == [2] * size
        assert type(horon.broadcast(value, 0)) is type(value)
    assert horon.allreduce(numpy.bool_(True), op=horon.Sum) is numpy.bool_(True)
    for value, kind in ((_Level.LOW, int), (_Ratio(2), float), (True, bool)):
        result = horon.allreduce(value, op=horon.Max)
        assert type(result) is kind and result == value
    with pytest.raises(TypeError, match="a number cannot be changed in place"):
        horon.allreduce_(numpy.float64(2))


def test_scalars_of_numpy_and_enums(run_ranks):
    run_ranks(2, rank_scalars)


def rank_long_names():
    """Names that the wire has no room for, which agree in all that it has room for."""
    horon.init()
    rank = horon.rank()
    for character in ("n", "\u20ac"):
        names = [character * 600 + end for end in ("a", "b")]
        handles = [
            horon.allreduce_async(float(i), name=names[i], op=horon.Sum) for i in (rank, 1 - rank)
        ]
        assert [handle.wait() for handle in handles] == [2.0 * rank, 2.0 * (1 - rank)]
        assert horon.broadcast_object(rank, 1, name=names[0]) == 1
        assert horon.allgather_object(rank, name=names[1]) == [0, 1]
        total = horon.grouped_allreduce([1.0, 2.0], name=names[0], op=horon.Sum)
        assert total == [2.0, 4.0]


def test_names_of_any_length(run_ranks):
    run_ranks(2, rank_long_names)


def test_an_array_of_an_unknown_type_is_refused():
    for dtype, error in ((-1, ValueError), (99, ValueError), (2**40, ValueError), ("b", TypeError)):
        with pytest.raises(error):
            horon.Array((1,), dtype)


def test_an_array_is_not_lent_in_fortrans_order():
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    release = ctypes.pythonapi.PyBuffer_Release
    release.argtypes = [ctypes.c_void_p]
    view = ctypes.create_string_buffer(128)  # a Py_buffer has 80 bytes
    strides, c_order, fortran, any_order = 0x18, 0x20, 0x40, 0x80
    for order in (c_order, fortran, any_order):
        for shape in ((2, 3), (1, 3), (0, 3), (6,), ()):
            lent = horon.Array(shape, _horon.DTYPES["float32"])
            if order == fortran and shape == (2, 3):
                with pytest.raises(BufferError, match="lies in C's order"):
                    get(lent, view, strides | order)
            else:
                assert get(lent, view, strides | order) == 0
                release(view)


def capsule_of(**asked):
    return repr(_horon.Array((2,), _horon.DTYPES["float32"]).__dlpack__(**asked))


def test_an_array_answers_what_dlpack_asks():
    for major in (-5, -1, 0):
        assert '"dltensor"' in capsule_of(max_version=(major, 0))
    assert '"dltensor_versioned"' in capsule_of(max_version=(1, 0), dl_device=(1, 0))
    with pytest.raises(TypeError):
        capsule_of(max_version=("1", 0))
    with pytest.raises(BufferError, match="host memory"):
        capsule_of(dl_device=(2, 0))


def rank_masks():
    horon.init()
    masked = numpy.ma.array([1.0, 2.0], mask=[False, True])
    for call in (horon.allreduce, horon.allreduce_, horon.allgather):
        with pytest.raises(TypeError, match=r"mask .* filled\(\)"):
            call(masked)
    with pytest.raises(TypeError, match=r"mask .* filled\(\)"):
        horon.allreduce(masked, op=horon.Adasum)
    assert horon.allreduce(masked.filled(0.0)).tolist() == [1.0, 0.0]


def test_masked_arrays_are_refused(run_ranks):
    run_ranks(1, rank_masks)
