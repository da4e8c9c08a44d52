# SPDX-License-Identifier: Apache-2.0
"""Shares of a reduction, and reductions to one rank: on arrays and on torch tensors, where they do
what scripts written for Horovod rely on."""

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import horon  # noqa: E402
import horon.torch as hvd  # noqa: E402
from horon.torch import mpi_ops  # noqa: E402


def share(rows, rank, size):
    """Where a rank's rows lie."""
    first = rank * (rows // size) + min(rank, rows % size)
    return slice(first, first + rows // size + (rank < rows % size))


def pattern(shape, dtype, rank):
    """Values whose order of addition shows."""
    return (
        (numpy.arange(numpy.prod(shape), dtype="float64") / 7 - 3 * rank)
        .reshape(shape)
        .astype(dtype)
    )


# ---- Arrays ----


def rank_shares_of_arrays():
    horon.init()
    rank, size = horon.rank(), horon.size()
    for dtype in ("float32", "float64", "float16", "int32", "uint8", "int64"):
        for op in (horon.Sum, horon.Average, horon.Min, horon.Max, horon.Product):
            for shape in ((0,), (1,), (size + 1,), (7, 3), (3 * size, 2, 2), (40001,)):
                array = pattern(shape, dtype, rank)
                whole = horon.allreduce(array, op=op)
                mine = horon.reducescatter(array, op=op)
                wanted = whole[share(shape[0], rank, size)]
                assert mine.dtype == wanted.dtype and mine.shape == wanted.shape
                assert mine.tobytes() == wanted.tobytes(), (dtype, op, shape)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_shares_have_the_bits_of_an_allreduce(run_ranks, n):
    run_ranks(n, rank_shares_of_arrays)


def rank_splits():
    horon.init()
    rank, size = horon.rank(), horon.size()
    splits = [0] * (size - 1) + [9]
    array = pattern((9, 2), "float32", rank)
    whole = horon.allreduce(array, op=horon.Sum)
    mine = horon.reducescatter(array, op=horon.Sum, splits=splits)
    assert mine.tobytes() == (whole if rank == size - 1 else whole[:0]).tobytes()
    assert mine.shape == (splits[rank], 2)
    for wrong, text in (
        ([9] * (size + 1), "splits are given"),
        ([1] * (size - 1), "splits are given"),
        ([9] * (size - 1) + [8], "add up to"),
        ([9] * (size - 1) + [-1], "split -1"),
    ):
        with pytest.raises(ValueError, match=text):
            horon.reducescatter(array, name="wrong", splits=wrong)
        with pytest.raises(ValueError, match=text):
            horon.grouped_reducescatter([array], name="wrong", splits=wrong)
    handle = horon.reducescatter_async(array, splits=numpy.array(splits, "int32"))
    assert horon.synchronize(handle).shape == mine.shape
    for result in horon.grouped_reducescatter([array, array], op=horon.Sum, splits=splits):
        assert result.tobytes() == mine.tobytes()
    tensor = torch.from_numpy(array)
    (result,) = hvd.grouped_reducescatter_async([tensor], op=hvd.Sum, splits=splits).wait()
    assert result.numpy().tobytes() == mine.tobytes()
    x = torch.ones(9, requires_grad=True)
    (result,) = hvd.grouped_reducescatter([x], splits=splits)
    (result * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [size] * 9  # the last rank has all rows


@pytest.mark.parametrize("n", [1, 3])
def test_splits_say_how_many_rows_each_rank_gets(run_ranks, n):
    run_ranks(n, rank_splits)


def rank_reduces():
    horon.init()
    rank, size = horon.rank(), horon.size()
    for root in range(size):
        for count in (0, 1, 1000, 300001):
            array = pattern((count,), "float32", rank)
            whole = horon.allreduce(array)
            got = horon.reduce(array, root)
            assert (got is None) if rank != root else got.tobytes() == whole.tobytes()
            tensor = torch.from_numpy(array).requires_grad_()
            got = hvd.synchronize(hvd.reduce_async(tensor, root, op=hvd.Sum, prescale_factor=0.5))
            if rank == root:
                whole = horon.allreduce(array, op=horon.Sum, prescale_factor=0.5)
                assert got.numpy().tobytes() == whole.tobytes()
            else:
                whole = horon.allreduce(array, op=horon.Sum, prescale_factor=0.5)
                assert got is None
    with pytest.raises(ValueError, match=r"root -1 is no rank"):
        horon.reduce(array, -1)
    assert horon.reduce(2.5, 0, op=horon.Max) == (2.5 if rank == 0 else None)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_reduce_gives_the_root_the_bits_of_an_allreduce(run_ranks, n):
    run_ranks(n, rank_reduces)


def rank_reduces_groups():
    horon.init()
    rank, size = horon.rank(), horon.size()
    arrays = [pattern((count,), "float32", rank) for count in (0, 1, 1009)]
    wholes = [horon.allreduce(array, op=horon.Sum, prescale_factor=0.5) for array in arrays]
    for root in range(size):
        for reduce in (horon.grouped_reduce, hvd.grouped_reduce):
            tensors = arrays if reduce is horon.grouped_reduce else map(torch.from_numpy, arrays)
            got = reduce(tensors, root, op=horon.Sum, prescale_factor=0.5)
            if rank == root:
                got = [numpy.asarray(result).tobytes() for result in got]
                assert got == [whole.tobytes() for whole in wholes]
            else:
                assert got == [None] * 3
    assert horon.grouped_reduce_async([2.5, rank], 0, name="g", op=horon.Max).wait() == (
        [2.5, size - 1] if rank == 0 else [None, None]
    )
    assert horon.grouped_reduce([], 0) == hvd.grouped_reduce([], 0) == []
    if size > 1:
        with pytest.raises(horon.HoronInternalError, match="groups differ"):
            horon.grouped_reduce([1.0] * (2 + rank), 0, name="differ")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_groups_are_reduced_to_the_root(run_ranks, n):
    run_ranks(n, rank_reduces_groups)


def kinds_of(array):
    """The array in memory that can be used where it lies, and in such that cannot."""
    holes = numpy.zeros((len(array), 2), array.dtype)[:, 1]
    holes[:] = array
    yield from (array.copy(), holes)
    yield from (torch.from_numpy(array.copy()), torch.from_numpy(array.repeat(2))[::2])


def rank_reduces_in_place():
    """The root's own tensor has the result; the others' are as they were."""
    horon.init()
    rank, size = horon.rank(), horon.size()
    for root in range(size):
        for count in (0, 1, 1009, 40001):
            mine = pattern((count,), "float32", rank)
            whole = horon.allreduce(mine, op=horon.Sum)
            wanted = whole if rank == root else mine
            for tensor in kinds_of(mine):
                module = hvd if isinstance(tensor, torch.Tensor) else horon
                got = module.reduce_(tensor, root, op=horon.Sum)
                assert got is (tensor if rank == root else None)
                assert numpy.asarray(tensor).tobytes() == wanted.tobytes()
            arrays, tensors = list(kinds_of(mine))[:2], list(kinds_of(mine))[2:]
            got = horon.grouped_reduce_(arrays, root, op=horon.Sum)
            got += hvd.grouped_reduce_async_(tensors, root, op=horon.Sum).wait()
            for result, tensor in zip(got, arrays + tensors, strict=True):
                assert result is (tensor if rank == root else None)
                assert numpy.asarray(tensor).tobytes() == wanted.tobytes()
    for wrong in (lambda: horon.reduce_(1.0, 0), lambda: hvd.reduce_(torch.ones(1).expand(3), 0)):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    z = (y * y).sum()
    hvd.synchronize(hvd.reduce_async_(y, size - 1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("n, shm", [(1, 1), (2, 1), (3, 1), (3, 0)])
def test_reduce_in_place_writes_the_root_s_tensor(run_ranks, n, shm):
    run_ranks(n, rank_reduces_in_place, HORON_SHM=shm)


# ---- torch ----


def rank_torch_shares():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    types = [torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, torch.bfloat16]
    for dtype in types:
        for dimensions in (1, 2, 3):
            shape = (4 * size,) + (5,) * (dimensions - 1)
            tensor = torch.randint(-100, 100, shape, generator=torch.manual_seed(7)).to(dtype)
            result = hvd.reducescatter(tensor, op=hvd.Sum)
            assert result.dtype == dtype and result.shape == (4, *shape[1:])
            assert torch.equal(result, tensor[share(4 * size, rank, size)] * size)
    # the first ranks get one row more, and ranks for which none is left an empty tensor
    for rows in (0, 1, size - 1, 4 * size + 1, 4 * size + size - 1):
        tensor = torch.arange(rows * 3, dtype=torch.float32).reshape(rows, 3) * (rank + 1)
        result = hvd.reducescatter(tensor)
        wanted = hvd.allreduce(tensor)[share(rows, rank, size)]
        assert torch.equal(result, wanted) and result.shape == wanted.shape
    strided = torch.arange(24.0).reshape(4, 6).t()
    assert torch.equal(hvd.reducescatter(strided), strided[share(6, rank, size)])
    half = hvd.reducescatter(torch.ones(size), compression=hvd.Compression.fp16, op=hvd.Sum)
    assert half.dtype == torch.float32 and half.tolist() == [size]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_torch_shares_are_rows_of_the_reduction(run_ranks, n):
    run_ranks(n, rank_torch_shares)


def rank_scales():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    tensor = torch.arange(6.0 * size) + rank
    for op in (hvd.Sum, hvd.Average):
        scales = {"op": op, "prescale_factor": 0.5, "postscale_factor": 4.0}
        whole = hvd.allreduce(tensor, **scales)
        assert torch.equal(hvd.reducescatter(tensor, **scales), whole[share(6 * size, rank, size)])
        (one,) = hvd.grouped_reducescatter([tensor], **scales)
        assert torch.equal(one, whole[share(6 * size, rank, size)])


@pytest.mark.parametrize("n", [1, 3])
def test_torch_shares_are_scaled_as_an_allreduce(run_ranks, n):
    run_ranks(n, rank_scales)


def rank_asynchronous():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    tensors = [torch.full((3 * size + 1, i + 1), float(i + rank)) for i in range(20)]
    handles = [hvd.reducescatter_async(t, name=f"t{i}", op=hvd.Sum) for i, t in enumerate(tensors)]
    for i, handle in reversed(list(enumerate(handles))):
        result = hvd.synchronize(handle)
        assert hvd.poll(handle)
        assert result.shape == (4 if rank == 0 else 3, i + 1)
        assert torch.all(result == i * size + size * (size - 1) / 2)
    handle = hvd.grouped_reducescatter_async(tensors, name="group", op=hvd.Sum)
    results = hvd.synchronize(handle)
    assert len(results) == 20 and results[3].shape == (4 if rank == 0 else 3, 4)
    assert all(torch.all(r == i * size + size * (size - 1) / 2) for i, r in enumerate(results))
    assert hvd.grouped_reducescatter([]) == []


@pytest.mark.parametrize("n", [1, 2, 3])
def test_torch_many_shares_at_once_and_as_a_group(run_ranks, n):
    run_ranks(n, rank_asynchronous)


def rank_refused():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for wrong in (
        lambda: hvd.reducescatter(torch.tensor(1.0), name="scalar"),
        lambda: hvd.grouped_reducescatter([torch.tensor(1.0)], name="scalar"),
        lambda: hvd.grouped_reducescatter([torch.zeros(3, 1), torch.tensor(1.0)]),
    ):
        with pytest.raises(hvd.HorovodInternalError, match="a scalar has no rows"):
            wrong()
    for wrong in (
        lambda: hvd.reducescatter(torch.ones(size), op=hvd.Adasum),
        lambda: hvd.reducescatter_async(torch.ones(size), op=hvd.Min),
        lambda: hvd.grouped_reducescatter(torch.ones(size), op=hvd.Max),
    ):
        with pytest.raises(hvd.HorovodInternalError, match="does not exist") as caught:
            wrong()
        assert isinstance(caught.value, NotImplementedError)
        assert caught.value.status_name == "ERR_UNSUPPORTED"
    alone = hvd.add_process_set([1])
    if rank == 1:
        with pytest.raises(hvd.HoronInternalError, match="a scalar has no rows") as caught:
            hvd.reducescatter(torch.tensor(1.0), name="s", process_set=alone)
        name, host = "reducescatter.s", horon._world.context().hosts[1]
        assert caught.value.about[1:] == ("ARGUMENT", 1, None, host, name)
    for wrong in (
        lambda: torch.ones(4 + rank),
        lambda: torch.ones((4,) * (1 + rank % 2)),
        lambda: torch.ones(4, dtype=(torch.float32, torch.float64)[rank % 2]),
    ):
        with pytest.raises(hvd.HorovodInternalError, match="differ"):
            hvd.reducescatter(wrong(), name="mismatch")
    with pytest.raises(hvd.HorovodInternalError, match="differ"):
        hvd.reducescatter(torch.ones(4), name="op", op=(hvd.Sum, hvd.Average)[rank % 2])
    splits = [4, 0] if rank else [0, 4]
    with pytest.raises(hvd.HorovodInternalError, match="splits differ"):
        hvd.reducescatter(torch.ones(4), name="splits", splits=splits)
    with pytest.raises(ValueError, match="has no average"):
        hvd.reducescatter(torch.ones(4, dtype=torch.complex64))
    if rank == 0:
        handle = hvd.reducescatter_async(torch.ones(2), name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.reducescatter_async(torch.ones(2), name="twice")
    hvd.barrier()
    if rank == 1:
        handle = hvd.reducescatter_async(torch.ones(2), name="twice")
    assert hvd.synchronize(handle).tolist() == [1.0]


def test_torch_shares_that_cannot_be_are_refused(run_ranks):
    run_ranks(2, rank_refused)


def rank_gradients():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for rows in (2 * size, 2 * size + 1, 1):
        seeds = [torch.full((rows, 2), float(r + 1)) for r in range(size)]
        joined = torch.cat([s[share(rows, r, size)] for r, s in enumerate(seeds)])
        for op, factor in ((hvd.Average, 1), (hvd.Sum, size)):
            x = torch.ones(rows, 2, requires_grad=True)
            hvd.reducescatter(x, op=op).backward(seeds[rank][share(rows, rank, size)])
            assert torch.equal(x.grad, joined * factor)
            xs = [torch.ones(rows, 2, requires_grad=True) for _ in range(3)]
            parts = hvd.grouped_reducescatter(xs, op=op, prescale_factor=2.0)
            mine = seeds[rank][share(rows, rank, size)]
            sum(((i + 1) * part * mine).sum() for i, part in enumerate(parts)).backward()
            for i, x in enumerate(xs):
                assert torch.equal(x.grad, joined * (2 * factor * (i + 1)))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_torch_gradient_of_a_share_is_all_ranks_joined(run_ranks, n):
    run_ranks(n, rank_gradients)


def rank_names():
    hvd.init()
    size, x = hvd.size(), torch.ones(2 * hvd.size(), requires_grad=True)
    apply = mpi_ops.HorovodReducescatter.apply
    assert apply(x, "a", hvd.Sum, hvd.global_process_set, 1.0, 1.0).tolist() == [size] * 2
    apply = mpi_ops.HorovodGroupedReducescatter.apply
    (y,) = apply("b", hvd.Sum, hvd.global_process_set, 1.0, 1.0, x)
    y.sum().backward()
    assert x.grad.tolist() == [size] * 2 * size
    for name in ("reducescatter", "reducescatter_async", "grouped_reducescatter_async", "reduce"):
        assert getattr(mpi_ops, name) is getattr(hvd, name)


def test_torch_names_of_mpi_ops(run_ranks):
    run_ranks(2, rank_names)
