# SPDX-License-Identifier: Apache-2.0
"""horon.torch on process sets: gradients, optimizer, and state, as Horovod has them."""

import io

import pytest

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("horon.torch")


def rank_has_gradients():
    hvd.init()
    rank = hvd.rank()
    some = hvd.add_process_set([0, 2])
    if rank == 1:
        with pytest.raises(ValueError, match="rank 1 is no member"):
            hvd.allreduce(torch.ones(2), process_set=some)
        return
    x = torch.full((3,), float(rank), requires_grad=True)
    y = hvd.allreduce(x, process_set=some)
    assert y.tolist() == [1.0] * 3
    (y * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [2.0] * 3  # the average of 1 and 3
    x.grad = None
    y = hvd.allgather(x[: 1 + rank // 2], process_set=some)
    assert y.tolist() == [0.0, 2.0, 2.0]
    (y * torch.arange(3.0) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == ([0.0, 0.0, 0.0] if rank == 0 else [2.0, 4.0, 0.0])
    x.grad = None
    y = hvd.broadcast(x, 2, process_set=some)  # a rank of the job
    assert y.tolist() == [2.0] * 3
    (y * (rank + 1)).sum().backward()
    assert x.grad.tolist() == ([0.0] * 3 if rank == 0 else [2.0] * 3)
    with pytest.raises(ValueError, match="rank 1 is no member"):
        hvd.broadcast(x, 1, process_set=some)
    x.grad = None
    y, z = hvd.grouped_broadcast([x, 2 * x], 2, process_set=some)
    assert y.tolist() == [2.0] * 3 and z.tolist() == [4.0] * 3
    ((y + z) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == ([0.0] * 3 if rank == 0 else [6.0] * 3)
    with pytest.raises(ValueError, match="rank 1 is no member"):
        hvd.grouped_broadcast([x], 1, process_set=some)
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (3,))
    dense = hvd.sparse_allreduce_async(sparse, op=hvd.Average, process_set=some)().to_dense()
    assert dense.tolist() == [0.5, 0.0, 0.5]


def test_torch_process_sets_have_gradients(run_ranks):
    run_ranks(3, rank_has_gradients)


def train(process_set, rank, steps=3, **options):
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if process_set.included():
        hvd.broadcast_parameters(model.state_dict(), process_set.ranks[0], process_set)
        hvd.broadcast_optimizer_state(optimizer, process_set.ranks[0], process_set=process_set)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), process_set=process_set, **options
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 4), 1.0 + rank)).sum().backward()
        optimizer.step()
    return model.weight.detach().clone()


def rank_trains(options):
    hvd.init()
    rank = hvd.rank()
    some = hvd.add_process_set([1, 2])
    weight = train(some, rank, **options)
    if some.included():
        both = hvd.allgather(weight.reshape(1, -1), process_set=some)
        assert torch.equal(both[0], both[1])
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 2)
        alone = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            alone.zero_grad()
            model(torch.full((1, 4), 2.5)).sum().backward()  # the mean of inputs 2 and 3
            alone.step()
        assert torch.allclose(weight, model.weight)
    else:  # it steps by itself
        torch.manual_seed(0)
        assert not torch.equal(weight, torch.nn.Linear(4, 2).weight)


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"gradient_predivide_factor": 4.0}])
def test_torch_process_sets_train_apart(run_ranks, options):
    run_ranks(3, rank_trains, options)


def rank_names_culprit():
    hvd.init()
    some = hvd.add_process_set([0, 2])
    if not some.included():
        return
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=some
    )
    model(torch.ones(1, 2)).sum().backward()
    if hvd.rank() == 2:
        model.weight.grad = None  # it was sent
    with pytest.raises(Exception, match=r"rank 2|changed") as raised:
        optimizer.step()
    if hvd.rank() == 0:
        assert raised.value.rank == 2


def test_torch_process_sets_name_the_rank_of_the_job(run_ranks):
    run_ranks(3, rank_names_culprit)


def rank_saves():
    """A module that holds a process set is saved whole, on its members, too."""
    hvd.init()
    some = hvd.add_process_set([0])
    file = io.BytesIO()
    torch.save(hvd.SyncBatchNorm(3, process_set=some), file)
    file.seek(0)
    assert torch.load(file, weights_only=False).process_set is some
    file.seek(0)
    hvd.remove_process_set(some)
    norm = torch.load(file, weights_only=False)
    assert norm.process_set.ranks == [0]
    with pytest.raises(ValueError, match="has not been added"):
        norm(torch.ones(2, 3))
    hvd.add_process_set(norm.process_set)
    assert norm(torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2


def test_torch_modules_with_a_process_set_are_saved(run_ranks):
    run_ranks(2, rank_saves)
