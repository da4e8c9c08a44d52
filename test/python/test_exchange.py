# SPDX-License-Identifier: Apache-2.0
"""alltoall, gather and scatter of numpy arrays, buffers and numbers."""

import array

import horon
import pytest

numpy = pytest.importorskip("numpy")


def start():
    horon.init()
    return horon.size(), horon.rank()


def rank_alltoall():
    size, rank = start()
    for dtype in ("uint8", "int32", "float64", "complex128", "bool"):
        splits = [(rank + i) % 3 for i in range(size)]
        mine = numpy.repeat(numpy.arange(size), splits).astype(dtype)[:, None] + numpy.zeros(
            (1, 3), dtype
        )
        got, received = horon.alltoall(mine, splits)
        want = [(r + rank) % 3 for r in range(size)]
        assert received == want and got.dtype == dtype and got.shape == (sum(want), 3)
        assert (got == numpy.array(rank).astype(dtype)).all()
    even = horon.alltoall(numpy.arange(2 * size))
    assert even.tolist() == [2 * rank, 2 * rank + 1] * size
    got, received = horon.alltoall(numpy.arange(size), numpy.ones(size, "int32"))
    assert received.dtype == "int32" and received.tolist() == [1] * size
    assert bytes(horon.alltoall(bytes(range(size)))) == bytes([rank] * size)
    handle = horon.alltoall_async(array.array("q", range(size)))
    got, received = handle.wait()
    assert memoryview(got).tolist() == [rank] * size and received == [1] * size


@pytest.mark.parametrize("n", [1, 2, 3])
def test_alltoall_exchanges_rows(run_ranks, n):
    run_ranks(n, rank_alltoall)


def rank_gather():
    size, rank = start()
    for root in range(size):
        got = horon.gather(numpy.full((rank, 2), rank), root)
        if rank != root:
            assert got is None
        else:
            assert got.tolist() == [[r, r] for r in range(size) for _ in range(r)]
        got = horon.gather(float(rank), root)
        assert got == ([float(r) for r in range(size)] if rank == root else None)


def rank_scatter():
    size, rank = start()
    for root in range(size):
        rows = (
            numpy.arange(3 * (size + 1)).reshape(-1, 3)
            if rank == root
            else numpy.empty((0, 3), int)
        )
        got = horon.scatter(rows, root)
        want = numpy.arange(3 * (size + 1)).reshape(-1, 3)
        first = rank + min(rank, 1)
        assert got.tolist() == want[first : first + 1 + (rank < 1)].tolist()
        splits = [0] * (size - 1) + [size + 1]
        got = horon.scatter(rows, root, splits)
        assert got.tolist() == (want.tolist() if rank == size - 1 else [])


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("verb", ["gather", "scatter"])
def test_root_gets_or_gives_the_rows(run_ranks, verb, n):
    run_ranks(n, {"gather": rank_gather, "scatter": rank_scatter}[verb])


def rank_refused():
    """A call that is refused counts, so the next ones of all ranks meet."""
    size, rank = start()
    for call in (
        lambda: horon.alltoall(numpy.arange(size + 1)),
        lambda: horon.alltoall(numpy.arange(size), [1] * (size + 1)),
        lambda: horon.alltoall(numpy.arange(size), [2] * size),
        lambda: horon.alltoall(1.0),
        lambda: horon.scatter(1.0, 0),
        lambda: horon.gather(1.0, size),
    ):
        if rank == 0:
            with pytest.raises((ValueError, TypeError)):
                call()
    if rank == 0:
        assert horon.alltoall(numpy.arange(size), name="then").tolist() == [rank] * size
    else:
        horon.alltoall(numpy.arange(size), name="then")


def test_exchanges_refuse_what_cannot_be(run_ranks):
    run_ranks(2, rank_refused)
