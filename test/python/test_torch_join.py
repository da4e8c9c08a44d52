# SPDX-License-Identifier: Apache-2.0
"""Ranks that run out of data: what Horovod's tests of join expect, a test a behaviour, and more."""

import pickle

import pytest

torch = pytest.importorskip("torch")

import horon  # noqa: E402
import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py

DTYPES = [torch.int32, torch.int64, torch.float32, torch.float64, torch.float16]


def rank_allreduces(first, cached):
    """The first to join gives zeros to sums, and is not the last."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for turn, dtype in enumerate(DTYPES):
        tensor = torch.arange(1, 18).to(dtype)
        names = [f"{dtype}.{kind}" for kind in ("sum", "average")]
        for name in names if cached else ():
            hvd.allreduce(tensor, name=name, op=hvd.Sum if "sum" in name else hvd.Average)
        if rank != first:
            total = hvd.allreduce(tensor, name=names[0], op=hvd.Sum)
            assert torch.equal(total, tensor * (size - 1))
            if dtype.is_floating_point:
                mean = hvd.allreduce(tensor, name=names[1])
                assert torch.allclose(mean, tensor * (size - 1) / size, rtol=1e-3)
        last = hvd.join(rank if turn % 2 else -1)
        assert last != first
        assert hvd.allgather(torch.tensor([last])).tolist() == [last] * size


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("n", [2, 3])
def test_join_gives_zeros_to_sums_and_averages_over_all_ranks(run_ranks, n, cached):
    run_ranks(n, rank_allreduces, 0, cached)
    run_ranks(n, rank_allreduces, n - 1, cached)


def rank_averages(cached):
    """Two tensors at once, negative numbers too: an integer average is cut towards zero."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtype in (torch.int32, torch.int64, torch.float32, torch.float64):
        for first in range(size):
            numbers = torch.randint(-100, 101, (17, 3), generator=torch.manual_seed(first))
            tensors = {"a": numbers[:5].to(dtype), "b": numbers.to(dtype)}

            def average(tensors=tensors):
                handles = [hvd.allreduce_async(x, name=name) for name, x in tensors.items()]
                return [hvd.synchronize(handle) for handle in handles]

            if cached:
                average()
            if rank != first:
                for got, x in zip(average(), tensors.values(), strict=True):
                    want = x.double() * (size - 1) / size
                    assert torch.allclose(got.double(), want.to(dtype).double(), rtol=1e-6)
            last = hvd.join()
            assert last != first and hvd.allgather_object(last) == [last] * size


@pytest.mark.parametrize("cached", [False, True])
def test_join_averages_all_types_after_any_rank(run_ranks, cached):
    run_ranks(3, rank_averages, cached)


def rank_other_verbs():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if rank == 1:
        hvd.join()
    else:
        x = torch.ones(2, requires_grad=True)
        for move in (
            lambda: hvd.allgather(torch.ones(2, 3), name="a"),
            lambda: hvd.allgather(x, name="b"),
            lambda: hvd.grouped_allgather([torch.ones(2), torch.ones(3)], name="c"),
            lambda: hvd.broadcast(torch.ones(2), 0, name="d"),
            lambda: hvd.broadcast_(torch.ones(2), 0, name="e"),
            lambda: hvd.grouped_broadcast([torch.ones(2), torch.ones(3)], 0, name="h"),
            lambda: hvd.reducescatter(torch.ones(size), name="r"),
            lambda: hvd.alltoall(torch.ones(size), name="t"),
            lambda: hvd.synchronize(hvd.allgather_async(torch.ones(1), name="f")),
            lambda: hvd.allgather_object({}, name="o"),
            lambda: hvd.broadcast_object({}, 0, name="p"),
            lambda: hvd.broadcast_optimizer_state(torch.optim.SGD([x], lr=1.0), 0),
        ):
            with pytest.raises(
                hvd.HorovodInternalError, match="HORON_JOIN_VERBS=all lets it go on"
            ):
                move()
        with pytest.raises(hvd.HorovodInternalError, match="sparse_allreduce is not"):
            hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "s", hvd.Sum).wait()
        with pytest.raises(hvd.HorovodInternalError, match=r"its root, rank 1 .*, has joined"):
            hvd.broadcast(torch.ones(2), 1, name="g")
        hvd.barrier()
        hvd.join()
    assert hvd.allgather(torch.ones(1), name="a again").tolist() == [1] * size


@pytest.mark.parametrize("n", [2, 3])
def test_join_lets_other_verbs_raise_on_the_others(run_ranks, n):
    run_ranks(n, rank_other_verbs)


def rank_all_verbs(settings):
    hvd.init(settings=settings)
    rank, size = hvd.rank(), hvd.size()
    if rank != 1:
        others = [float(other) for other in range(size) if other != 1]
        assert hvd.allgather(torch.tensor([float(rank)]), name="a").tolist() == others
        assert hvd.broadcast(torch.tensor([float(rank)]), 0, name="b").tolist() == [0.0]
        mean = hvd.allreduce(torch.tensor([float(rank)]), name="c")
        assert mean.item() == sum(others) / (size - 1)
        assert hvd.allreduce(torch.tensor([2]), name="d", op=hvd.Product).item() == 2 ** (size - 1)
        assert hvd.allreduce(torch.tensor([-rank]), name="e", op=hvd.Max).item() == 0
        assert hvd.allreduce(torch.tensor([7 + rank]), name="f", op=hvd.Min).item() == 7
        assert hvd.allgather_object({rank}) == [{int(other)} for other in others]
        assert hvd.broadcast_object(rank, 0) == 0
        with pytest.raises(pickle.PicklingError, match=r"rank 0 cannot pickle its object: \w+"):
            hvd.allgather_object((_ for _ in ()) if rank == 0 else 0)
    hvd.join()
    assert hvd.allreduce(torch.ones(1), name="c").item() == 1


def rank_states(joiner):
    """The ranks that go on make their optimizers alike, whichever of them is the root."""
    hvd.init(settings={"JOIN_VERBS": "all"})
    rank, size = hvd.rank(), hvd.size()
    for root in range(size) if rank != joiner else ():
        p = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([p], lr=float(1 + rank), momentum=0.5)
        if root == joiner:
            with pytest.raises(
                hvd.HorovodInternalError, match=rf"its root, rank {root}, has joined"
            ):
                hvd.broadcast_optimizer_state(optimizer, root)
            continue
        hvd.broadcast_optimizer_state(optimizer, root)
        assert optimizer.param_groups[0]["lr"] == 1 + root
        wrapped = hvd.DistributedOptimizer(optimizer, [("p", p)], groups=1)
        p.sum().backward()
        wrapped.step()
        more = [nn.Parameter(torch.ones(2))] if rank == root else []
        wrong = torch.optim.SGD([p, *more], lr=1.0)
        with pytest.raises(ValueError, match=r"failed: rank \d: its optimizer has groups of"):
            hvd.broadcast_optimizer_state(wrong, root)
    hvd.join()


@pytest.mark.parametrize("joiner", [0, 1])
def test_join_options_let_states_of_optimizers_go_on(run_ranks, joiner):
    run_ranks(3, rank_states, joiner)


@pytest.mark.parametrize("n", [2, 3])
def test_join_options_let_all_verbs_go_on_and_divide_by_those_that_gave(run_ranks, n):
    run_ranks(n, rank_all_verbs, {"JOIN_VERBS": "all", "JOIN_AVERAGE": "given"})


def rank_gradients():
    """The rows that go to a rank that has joined, or would come from it, are zeros."""
    hvd.init(settings={"JOIN_VERBS": "all"})
    rank, size = hvd.rank(), hvd.size()
    late = torch.ones(size, 1, requires_grad=True)  # the rank joins before its gradient
    result = hvd.alltoall(late, name="late")
    shared = hvd.reducescatter(late, name="shared", op=hvd.Sum)
    hvd.barrier()
    if rank != 1:
        live = [[float(other != 1)] for other in range(size)]
        result.sum().backward()
        assert late.grad.tolist() == live
        late.grad = None
        shared.sum().backward()
        assert late.grad.tolist() == [[size * row[0]] for row in live]
        uneven = torch.ones(2 * size + 1, 1, requires_grad=True)
        hvd.alltoall(uneven, [3] + [2] * (size - 1))[0].sum().backward()
        want = [1.0] * 3 + [0.0] * 2 + [1.0] * 2 * (size - 2)
        assert uneven.grad.flatten().tolist() == want
        for form in (
            lambda x: hvd.reducescatter(x, op=hvd.Sum),
            lambda x: hvd.grouped_reducescatter([x], op=hvd.Sum)[0],
        ):
            x = torch.ones(2 * size + 1, 1, requires_grad=True)
            (form(x).square() / 2).sum().backward()
            assert x.grad[:3].tolist() == [[float(size * (size - 1))]] * 3
            assert x.grad[3:5].tolist() == [[0.0]] * 2
        x = torch.ones(2, requires_grad=True)
        hvd.allgather(x).sum().backward()
        assert x.grad.tolist() == pytest.approx([(size - 1) / size] * 2)
    hvd.join()


@pytest.mark.parametrize("n", [2, 3])
def test_join_leaves_zeros_in_gradients(run_ranks, n):
    run_ranks(n, rank_gradients)


def rank_trains():
    """Batches of unequal number; without the join the rank with more would wait for ever."""
    hvd.init()
    rank = hvd.rank()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for _epoch in range(2):
        for _batch in range(2 + rank):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        last = hvd.join()
        assert last == hvd.size() - 1
        # Horovod's users do this, since the joined have not stepped
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    return [parameter.sum().item() for parameter in model.parameters()]


def test_join_ends_epochs_of_uneven_batches(run_ranks):
    first, *others = run_ranks(3, rank_trains)
    assert all(other == first for other in others)


def rank_has_sparse_gradients(groups):
    """Beside the rank that has joined each step() raises, and the optimizer stays usable."""
    hvd.init()
    table, weight = nn.Embedding(4, 2, sparse=True), nn.Parameter(torch.ones(2))
    nn.init.ones_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([table.weight, weight], lr=1.0),
        [("table", table.weight), ("weight", weight)],
        groups=[[weight]] if groups else None,
    )

    def backward():
        (table(torch.tensor([2])) * weight).sum().backward()

    for _ in range(2 if hvd.rank() else 0):
        for _ in range(2):  # the gradients that are there are sent again
            if weight.grad is None:
                backward()
            with pytest.raises(
                hvd.HorovodInternalError,
                match=r"^the gradient of table: sparse_allreduce is not supported with join",
            ) as raised:
                optimizer.step()
            assert raised.value.cause == "JOINED" and raised.value.name == "allreduce.table"
        optimizer.zero_grad()
        assert weight.tolist() == [1.0] * 2 and (table.weight == 1).all()
    hvd.join()
    backward()
    optimizer.step()
    assert weight.tolist() == [0.0] * 2 and table.weight[2].tolist() == [0.0] * 2


@pytest.mark.parametrize("groups", [False, True])
def test_join_lets_steps_with_sparse_gradients_raise(run_ranks, groups):
    run_ranks(3, rank_has_sparse_gradients, groups)


def rank_goes_on_with_sparse_gradients():
    hvd.init(settings={"JOIN_VERBS": "all"})
    table = nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    for step in range(2 if hvd.rank() else 1):
        table(torch.tensor([step])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    hvd.join()
    third = 0.0 if hvd.rank() == 0 else 2 / 3  # an Average is divided by all
    rows = [[0.0] * 2, pytest.approx([1 - third] * 2), [1.0] * 2, [1.0] * 2]
    assert table.weight.tolist() == rows


def test_join_options_let_steps_with_sparse_gradients_go_on(run_ranks):
    run_ranks(3, rank_goes_on_with_sparse_gradients)


def rank_unnamed():
    """Operations without a name are counted from 0 again, as they were not as many on all."""
    horon.init()
    rank, size = horon.rank(), horon.size()
    for _ in range(rank):
        hvd.allreduce(torch.ones(1))
    last = horon.join()
    assert last == size - 1
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size


def test_join_is_followed_by_operations_without_names(run_ranks):
    run_ranks(3, rank_unnamed)


def rank_joins_a_process_set():
    """Ranks 1 and 2 have a set, which 1 leaves first; the job goes on meanwhile."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    some = hvd.add_process_set([1, 2])
    everybody = hvd.allreduce_async(torch.ones(1), name="job", op=hvd.Sum)
    if rank == 0:
        with pytest.raises(ValueError, match="rank 0 is no member"):
            hvd.join(process_set=some)
    elif rank == 1:
        assert hvd.join(process_set=some) == 2
    else:
        part = hvd.allreduce(torch.ones(1), name="set", op=hvd.Sum, process_set=some)
        assert part.item() == 1
        with pytest.raises(hvd.HorovodInternalError, match="not supported with join"):
            hvd.allgather(torch.ones(1), process_set=some)
        assert hvd.join(process_set=some) == 2
    assert hvd.synchronize(everybody).item() == size
    assert hvd.allgather(torch.tensor([rank])).tolist() == list(range(size))  # nobody joined that
    if rank:
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=some).item() == 2


def test_join_of_a_process_set_leaves_the_job(run_ranks):
    run_ranks(3, rank_joins_a_process_set)
