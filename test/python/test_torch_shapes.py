# SPDX-License-Identifier: Apache-2.0
"""Each verb on tensors of one to three dimensions and of the types that Horovod's tests take: of
the whole job, and of process sets that divide it. docs/horovod-tests.md says which of Horovod's
tests asserts what is asserted here."""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402

REDUCED = (torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
MOVED = (torch.uint8, torch.int8, torch.int16, *REDUCED)
INNER = ((), (5,), (5, 3))
JOBS = pytest.mark.parametrize("n, halves", [(2, False), (3, True)])


def begin(halves):
    """-> the process set of this rank: all ranks, or those with even or those with odd numbers"""
    hvd.init()
    if not halves:
        return hvd.global_process_set
    sets = [hvd.add_process_set(range(first, hvd.size(), 2)) for first in (0, 1)]
    return sets[hvd.rank() % 2]


def numbers(seed, dtype, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-100, 101, shape, generator=generator).to(dtype)


def each(dtypes):
    return ((dtype, inner) for dtype in dtypes for inner in INNER)


# ---- Results ----


def reductions(tensors, dtype):
    """Exact for two ranks at most; an integer average is cut towards zero."""
    every = torch.stack(tensors).to(torch.float64)
    return {
        hvd.Sum: every.sum(0).to(dtype),
        hvd.Average: every.mean(0).to(dtype),
        hvd.Min: every.amin(0).to(dtype),
        hvd.Max: every.amax(0).to(dtype),
        hvd.Product: every.prod(0).to(dtype),
    }


def rank_reduces(halves):
    team = begin(halves)
    for dtype, inner in each(REDUCED):
        every = [numbers(r, dtype, 17, *inner) for r in team.ranks]
        mine = every[team.rank()]
        for op, want in reductions(every, dtype).items():
            how, what = {"op": op, "process_set": team}, (dtype, inner, op)
            assert hvd.allreduce(mine, **how).equal(want), what
            group = [mine, mine.flip(0), mine[:3]]
            wants = [want, want.flip(0), want[:3]]
            for got, one in zip(hvd.grouped_allreduce(group, **how), wants, strict=True):
                assert got.dtype == dtype and got.equal(one), what
            if op in (hvd.Sum, hvd.Average):
                wants = [one.tensor_split(team.size())[team.rank()] for one in wants]
                assert hvd.reducescatter(mine, **how).equal(wants[0]), what
                for got, one in zip(hvd.grouped_reducescatter(group, **how), wants, strict=True):
                    assert got.dtype == dtype and got.equal(one), what
            assert mine.equal(every[team.rank()]), what  # none has written its input
            copy = mine.clone()
            assert hvd.allreduce_(copy, **how) is copy and copy.equal(want), what
            group = [mine.clone(), mine.flip(0)]
            assert hvd.grouped_allreduce_(group, **how)[1] is group[1]
            assert group[0].equal(want) and group[1].equal(want.flip(0)), what


@JOBS
def test_reductions_of_all_shapes_are_right(run_ranks, n, halves):
    run_ranks(n, rank_reduces, halves)


def rank_scales():
    """Integers are scaled in 64 bits and cut towards zero, halves in 32 bits: before the sum each
    rank's numbers, after it the sum."""
    team = begin(False)
    size, rank = team.size(), team.rank()
    for number, (dtype, inner) in enumerate(each(REDUCED)):
        tensor = numbers(3, dtype, 4 * size, *inner)
        wide = {
            torch.float16: torch.float32,
            torch.int32: torch.float64,
            torch.int64: torch.float64,
        }
        wide = wide.get(dtype, dtype)
        factor = 0.1915194503788923 + 0.05 * number
        exact = torch.tensor(factor, dtype=torch.float64).to(wide)
        for scale, want in (
            ("prescale_factor", (tensor.to(wide) * exact).to(dtype) * size),
            ("postscale_factor", (tensor.to(wide) * size * exact).to(dtype)),
        ):
            how, what = {"op": hvd.Sum, scale: factor}, (dtype, inner, scale)
            assert hvd.allreduce(tensor, **how).equal(want), what
            share = want[4 * rank : 4 * (rank + 1)]
            assert hvd.reducescatter(tensor, **how).equal(share), what
            for got in hvd.grouped_reducescatter([tensor, tensor], **how):
                assert got.equal(share), what


def test_scaled_reductions_of_all_shapes_are_right(run_ranks):
    run_ranks(2, rank_scales)


def rank_moves(halves):
    team = begin(halves)
    size, place = team.size(), team.rank()
    for dtype, inner in each(MOVED):
        what = (dtype, inner)
        for rows in (17, None):  # of each rank, or as many as its number says
            every = [numbers(r, dtype, rows or 3 + r, *inner) for r in team.ranks]
            mine, want = every[place], torch.cat(every)
            assert hvd.allgather(mine, process_set=team).equal(want), what
            for got in hvd.grouped_allgather([mine, mine], process_set=team):
                assert got.dtype == dtype and got.equal(want), what
        every = [numbers(r, dtype, 17, *inner) for r in team.ranks]
        for root, want in zip(team.ranks, every, strict=True):
            mine = every[place].clone()
            assert hvd.broadcast(mine, root, process_set=team).equal(want), what
            assert mine.equal(every[place]), what
            assert hvd.broadcast_(mine, root, process_set=team) is mine and mine.equal(want), what
        # the first rank of the process set gives one row to each, the next two, and so on
        blocks = [
            [numbers(9 * r + i, dtype, r + 1, *inner) for i in range(size)] for r in range(size)
        ]
        mine, want = torch.cat(blocks[place]), torch.cat([block[place] for block in blocks])
        splits = torch.tensor([place + 1] * size, dtype=torch.int32)
        got, received = hvd.alltoall(mine, splits, process_set=team)
        assert got.dtype == dtype and got.equal(want), what
        assert received.tolist() == [r + 1 for r in range(size)], what
        assert hvd.alltoall(mine, process_set=team).equal(want), what


@JOBS
def test_moves_of_all_shapes_are_right(run_ranks, n, halves):
    run_ranks(n, rank_moves, halves)


# ---- Gradients ----


def gradients(verb, dtype, *shape):
    """-> the gradients of two tensors whose results' elements have the gradient 1 each. Of a group
    backward() is called for one member after the other, as in Horovod's tests."""
    leaves = [torch.ones(shape, dtype=dtype, requires_grad=True) for _ in range(2)]
    for result in verb(leaves):
        result.backward(torch.ones_like(result))
    return [leaf.grad for leaf in leaves]


def rank_gradients(halves):
    team = begin(halves)
    size, place = team.size(), team.rank()
    in_set = {"process_set": team}

    def single(function, *args, **options):
        return lambda xs: [function(x, *args, **options, **in_set) for x in xs]

    def group(function, *args, **options):
        return lambda xs: function(xs, *args, **options, **in_set)

    splits = torch.tensor([place + 1] * size, dtype=torch.int32)
    rows = size * (place + 1)
    cases = [
        (single(hvd.allgather), 3 + place, 1),
        (group(hvd.grouped_allgather), 3 + place, 1),
        (lambda xs: [hvd.alltoall(x, splits, **in_set)[0] for x in xs], rows, 1),
        (single(hvd.alltoall), rows, 1),
        *((single(hvd.broadcast, root), 17, root == hvd.rank()) for root in team.ranks),
    ]
    for op, want in ((hvd.Sum, size), (hvd.Average, 1)):
        cases += [
            (single(hvd.allreduce, op=op), 17, want),
            (group(hvd.grouped_allreduce, op=op), 17, want),
            (single(hvd.reducescatter, op=op), 4 * size, want),
            (group(hvd.grouped_reducescatter, op=op), 4 * size, want),
        ]
    for dtype, inner in each((torch.float16, torch.float32, torch.float64)):
        for number, (verb, rows, want) in enumerate(cases):
            for grad in gradients(verb, dtype, rows, *inner):
                assert grad.dtype == dtype and (grad == want).all(), (number, dtype, inner)


@JOBS
def test_gradients_of_all_shapes_are_right(run_ranks, n, halves):
    run_ranks(n, rank_gradients, halves)


def rank_gathered_gradients(halves):
    """The rows of a rank have its number as gradient, on all ranks: it gets that back."""
    team = begin(halves)
    for dtype, inner in each((torch.float32, torch.float64)):
        seed = torch.cat([torch.full((3 + r, *inner), r, dtype=dtype) for r in team.ranks])
        leaves = [
            torch.ones((3 + hvd.rank(), *inner), dtype=dtype, requires_grad=True) for _ in range(3)
        ]
        hvd.allgather(leaves[0], process_set=team).backward(seed)
        for result in hvd.grouped_allgather(leaves[1:], process_set=team):
            result.backward(seed)
        for leaf in leaves:
            assert (leaf.grad == hvd.rank()).all(), (dtype, inner)


@JOBS
def test_gradients_of_gathered_rows_are_their_ranks(run_ranks, n, halves):
    run_ranks(n, rank_gathered_gradients, halves)


# ---- In flight ----


def rank_is_asynchronous():
    """Rank 1 begins when rank 0 has seen that none of its operations has ended."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    if rank == 1:
        hvd.barrier()
    begun = []
    for dtype, inner in each(REDUCED):
        every = [numbers(r, dtype, 4 * size, *inner) for r in range(size)]
        total = reductions(every, dtype)[hvd.Sum]
        begun += [
            (hvd.allreduce_async(every[rank], op=hvd.Sum), total),
            (hvd.allgather_async(every[rank]), torch.cat(every)),
            (hvd.broadcast_async(every[rank], 1), every[1]),
            (hvd.reducescatter_async(every[rank], op=hvd.Sum), total[4 * rank : 4 * (rank + 1)]),
        ]
    if rank == 0:
        assert not any(hvd.poll(handle) for handle, _ in begun)
        hvd.barrier()
    for handle, want in begun:
        assert hvd.synchronize(handle).equal(want) and hvd.poll(handle)


def test_operations_are_asynchronous_and_barriers_pass_them(run_ranks):
    run_ranks(2, rank_is_asynchronous)


def rank_uses_a_name_twice():
    """Each rank in turn begins first, and again under the same name before the others come."""
    hvd.init()
    rank, tensor = hvd.rank(), torch.ones((17,) * 3)
    for verb in (
        hvd.allreduce_async,
        hvd.allgather_async,
        hvd.reducescatter_async,
        lambda x, name: hvd.broadcast_async(x, 0, name=name),
        lambda x, name: hvd.alltoall_async(x[: hvd.size()], name=name),
    ):
        for first in range(hvd.size()):
            if rank != first:
                hvd.barrier()
            handle = verb(tensor, name="twice")
            if rank == first:
                with pytest.raises(ValueError, match=r"\.twice'"):
                    verb(tensor, name="twice")
                hvd.barrier()
            hvd.synchronize(handle)


def test_a_name_in_flight_is_refused_by_every_verb(run_ranks):
    run_ranks(2, rank_uses_a_name_twice)


# ---- What ranks give that does not fit ----


def rank_differs():
    hvd.init()
    rank = hvd.rank()
    other = rank == 0
    sized, shaped = (
        torch.ones((17 + rank,) * 3),
        torch.ones((17, 23 * 57) if other else (17, 23, 57)),
    )
    typed = torch.ones((17,) * 3, dtype=torch.int32 if rank % 2 == 0 else torch.float32)
    columns = torch.ones(17, 10 * (rank + 1), 17)
    for verb, wrong in (
        (hvd.allreduce, (sized, shaped, typed)),
        (hvd.reducescatter, (sized, shaped, typed)),
        (hvd.allgather, (columns, shaped, typed)),
        (lambda x: hvd.broadcast(x, 0), (columns, sized, shaped, typed)),
        (lambda x: hvd.broadcast(x, rank), (torch.ones(17, 17, 17),)),
        (lambda x: hvd.alltoall(x[: hvd.size()]), (columns, shaped, typed)),
    ):
        for tensor in wrong:
            with pytest.raises(hvd.HorovodInternalError, match="differ"):
                verb(tensor)
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@pytest.mark.parametrize("n", [2, 3])
def test_tensors_that_do_not_fit_raise_on_every_rank(run_ranks, n):
    run_ranks(n, rank_differs)
