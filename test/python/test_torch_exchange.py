# SPDX-License-Identifier: Apache-2.0
"""hvd.alltoall() as scripts written for Horovod rely on it, a test a behaviour; gather and scatter
of torch tensors."""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from horon.torch import mpi_ops  # noqa: E402

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
]


def start():
    hvd.init()
    return hvd.size(), hvd.rank()


def rows_for(rank, dim=1):
    """Rank r gives i + 1 rows of (its number * 10 + i) to rank i: -> tensor, splits"""
    splits = [i + 1 for i in range(hvd.size())]
    rows = [rank * 10 + i for i in range(hvd.size()) for _ in range(i + 1)]
    return torch.tensor(rows).reshape(-1, *[1] * (dim - 1)).repeat(1, *[2] * (dim - 1)), splits


def rank_uneven():
    size, rank = start()
    for dtype in DTYPES:
        for dim in (1, 2, 3):
            tensor, splits = rows_for(rank, dim)
            got, received = hvd.alltoall(tensor.to(dtype), torch.tensor(splits, dtype=torch.int32))
            column = [r * 10 + rank for r in range(size) for _ in range(rank + 1)]
            assert got.dtype == dtype and got.shape == (len(column), *[2] * (dim - 1))
            want = torch.tensor(column).to(dtype)
            assert torch.equal(got.reshape(len(column), -1)[:, 0], want)
            assert torch.equal(got.reshape(len(column), -1)[:, -1], want)
            assert received.dtype == torch.int32 and received.tolist() == [rank + 1] * size


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_alltoall_gives_rows_by_splits(run_ranks, n):
    run_ranks(n, rank_uneven)


def rank_even():
    size, rank = start()
    got = hvd.alltoall(torch.arange(2 * size) + 100 * rank)
    assert got.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    assert isinstance(got, torch.Tensor)


@pytest.mark.parametrize("n", [1, 3])
def test_alltoall_without_splits_divides_evenly(run_ranks, n):
    run_ranks(n, rank_even)


def rank_async():
    size, rank = start()
    tensor, splits = rows_for(rank)
    handle = hvd.alltoall_async(tensor, splits, name="a")
    other = hvd.alltoall_async(torch.arange(size))
    got, received = hvd.synchronize(handle)
    assert got.tolist() == [r * 10 + rank for r in range(size) for _ in range(rank + 1)]
    assert received.tolist() == [rank + 1] * size
    got, received = hvd.synchronize(other)
    assert got.tolist() == [rank] * size and received.tolist() == [1] * size
    got, received = hvd.alltoall(tensor.double()[:0], [0] * size)
    assert got.shape == (0,) and got.dtype == torch.float64 and received.tolist() == [0] * size


def test_alltoall_async_gives_the_rows_that_came(run_ranks):
    run_ranks(2, rank_async)


def rank_nothing():
    """One gives nothing, one gets nothing."""
    size, rank = start()
    splits = [0] * size if rank == 1 else [1] * size
    got, received = hvd.alltoall(torch.full((sum(splits), 2), rank), splits)
    assert got[:, 0].tolist() == [r for r in range(size) if r != 1]
    assert received.tolist() == [int(r != 1) for r in range(size)]
    splits = [int(i != 1) for i in range(size)]
    got, received = hvd.alltoall(torch.full((sum(splits), 2), rank), splits)
    assert got.shape == ((0, 2) if rank == 1 else (size, 2))
    assert received.tolist() == [int(rank != 1)] * size


def test_alltoall_of_one_that_gives_or_gets_nothing(run_ranks):
    run_ranks(3, rank_nothing)


def rank_kinds_of_splits():
    """Horovod makes 32-bit integers of all that is no tensor, and takes none for an even share."""
    size, rank = start()
    numpy = pytest.importorskip("numpy")
    rows = torch.arange(size * (size + 1) // 2)
    wanted = [i + 1 for i in range(size)]
    want = [sum(wanted[:rank]) + i for i in range(wanted[rank])] * size
    for splits in (
        wanted,
        tuple(wanted),
        range(1, size + 1),
        [float(split) for split in wanted],
        [torch.tensor(split) for split in wanted],
        list(numpy.array(wanted)),
        *(numpy.array(wanted, dtype) for dtype in ("int64", "int32", "uint8", "float64")),
    ):
        got, received = hvd.alltoall(rows, splits)
        assert got.tolist() == want and received.tolist() == [rank + 1] * size, splits
    for none in (torch.tensor([], dtype=torch.int32), numpy.array([]), []):
        for x in (torch.arange(2.0 * size), torch.arange(2.0 * size, requires_grad=True)):
            got, received = hvd.alltoall(x, none)
            assert got.tolist() == [2.0 * rank, 2.0 * rank + 1] * size
            assert received.tolist() == [2] * size


@pytest.mark.parametrize("n", [1, 3])
def test_alltoall_takes_any_kind_of_whole_splits(run_ranks, n):
    run_ranks(n, rank_kinds_of_splits)


def rank_errors():
    size, rank = start()
    rows = torch.ones(size + 1, 2)
    for splits, text in (
        (None, "cannot be split evenly"),
        ([size] * size, "add up"),
        (torch.ones(size), "32-bit integer"),
        (torch.ones(size, dtype=torch.int64), "32-bit integer"),
        (torch.ones(size, 1, dtype=torch.int32), "1D splits"),
        ([1], "1 splits are given"),
        ([-1] * size, "negative"),
        ([0.5, 1.5], "split 0.5 is no number of rows"),
        ([float("nan"), 1], "split nan is no number of rows"),
        ([float("inf"), 1], "split inf is no number of rows"),
        ([2**63, 1], "is no number of rows"),
        (["1", 1], "split '1' is no number of rows"),
        (torch.tensor([]), "32-bit integer"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.alltoall(rows, splits)
    with pytest.raises(ValueError, match="a scalar has no rows"):
        hvd.alltoall(torch.tensor(1.0))
    with pytest.raises(ValueError, match="dense"):
        hvd.alltoall(torch.eye(2).to_sparse())
    assert hvd.alltoall(torch.arange(size)).tolist() == [rank] * size


def test_alltoall_refuses_wrong_splits(run_ranks):
    run_ranks(2, rank_errors)


def rank_disagree():
    size, rank = start()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.alltoall(torch.ones(size, 2 + rank), name="columns")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.alltoall(torch.ones((size, 2)[: 1 + rank]), name="dimensions")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.alltoall(torch.ones(size, dtype=(torch.int32, torch.float32)[rank]), name="dtype")


def test_alltoall_of_tensors_that_differ_fails(run_ranks):
    run_ranks(2, rank_disagree)


def rank_gradients():
    size, rank = start()
    for dtype in (torch.float32, torch.float64):
        tensor, splits = rows_for(rank, 2)
        tensor = tensor.to(dtype).requires_grad_()
        got, received = hvd.alltoall(tensor, torch.tensor(splits, dtype=torch.int32), name="g")
        assert not received.requires_grad
        (got * (rank + 1)).sum().backward()
        want = [i + 1 for i in range(size) for _ in range(i + 1)]
        assert tensor.grad[:, 0].tolist() == want
    even = torch.ones(size, requires_grad=True)
    (hvd.alltoall(even) * (rank + 1)).sum().backward()
    assert even.grad.tolist() == [i + 1.0 for i in range(size)]
    more = torch.ones(size + 2, requires_grad=True)
    (hvd.alltoall(more, [1] * size)[0] * (rank + 1)).sum().backward()
    assert more.grad.tolist() == [*(i + 1.0 for i in range(size)), 0, 0]  # these went nowhere
    # derivatives of derivatives
    seed = torch.full((size,), rank + 1.0, requires_grad=True)
    got = hvd.alltoall(even, name="twice")
    (first,) = torch.autograd.grad(got, even, seed, create_graph=True)
    (second,) = torch.autograd.grad(first, seed, torch.full((size,), rank + 10.0))
    assert second.tolist() == [i + 10.0 for i in range(size)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_alltoall_gives_gradients_back(run_ranks, n):
    run_ranks(n, rank_gradients)


def rank_autograd_function():
    size, rank = start()
    apply = mpi_ops.HorovodAlltoall.apply
    got, received = apply(torch.arange(size), [1] * size, "f")
    assert got.tolist() == [rank] * size and received.tolist() == [1] * size


def test_mpi_ops_has_alltoall(run_ranks):
    run_ranks(2, rank_autograd_function)


def rank_rooted():
    size, rank = start()
    for root in range(size):
        got = hvd.gather(torch.full((rank, 2), rank), root)
        want = torch.cat([torch.full((r, 2), r) for r in range(size)])
        assert torch.equal(got, want) if rank == root else got is None
        assert (hvd.gather(torch.tensor(rank), root) is None) == (rank != root)
        rows = torch.arange(2 * size + 1).reshape(-1, 1) + root
        mine = [1] * (size - 1) + [size + 2]
        got = hvd.scatter(rows if rank == root else rows[:0], root)
        first = 2 * rank + min(rank, 1)
        assert torch.equal(got, rows[first : first + 2 + (rank < 1)])
        got = hvd.scatter(rows if rank == root else rows[:0], root, mine if rank == root else None)
        assert torch.equal(got, rows[rank : rank + mine[rank]])


@pytest.mark.parametrize("n", [1, 2, 4])
def test_gather_and_scatter_are_the_roots(run_ranks, n):
    run_ranks(n, rank_rooted)
