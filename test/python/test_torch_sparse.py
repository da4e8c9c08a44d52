# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors: many at once, of a process set, and as gradients of SparseAdam."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def rank_sums_many(halves):
    """Each rank has other elements; the dense tensors have the same average."""
    hvd.init()
    sets = [hvd.add_process_set(range(first, hvd.size(), 2)) for first in (0, 1)]
    team = sets[hvd.rank() % 2] if halves else hvd.global_process_set
    generator = torch.Generator().manual_seed(hvd.rank())
    tensors = []
    for rows in [17, 32, 81, 12, 15, 23, 22] * 5:
        tensor = torch.rand(rows, 10, generator=generator)
        tensors.append(torch.where(tensor < 0.8, 0, tensor).to_sparse())
    means = [hvd.allreduce(tensor.to_dense(), process_set=team) for tensor in tensors]
    handles = [
        hvd.sparse_allreduce_async(tensor, op=hvd.Average, name=str(i), process_set=team)
        for i, tensor in enumerate(tensors)
    ]
    for handle, mean in zip(handles, means, strict=True):
        assert torch.allclose(handle().to_dense(), mean, rtol=1e-6)


@pytest.mark.parametrize("n, halves", [(2, False), (3, True)])
def test_many_sparse_allreduces_are_those_of_dense_tensors(run_ranks, n, halves):
    run_ranks(n, rank_sums_many, halves)


def rank_averages_large_halves():
    hvd.init()
    table = nn.Embedding(4, 3, sparse=True).half()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    for number in (20000, -65504):
        values = torch.full((2, 3), number, dtype=torch.float16)
        tensor = torch.sparse_coo_tensor([[0, 2]], values, (4, 3))
        mean = hvd.sparse_allreduce_async(tensor, op=hvd.Average)()
        assert mean.dtype == torch.float16 and mean.is_sparse
        assert (mean.coalesce().values() == number).all()
        nn.init.zeros_(table.weight)
        (table(torch.tensor([2])) * number).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert table.weight.tolist() == [[0.0] * 3, [0.0] * 3, [-float(number)] * 3, [0.0] * 3]


def test_sparse_average_of_halves_that_fits_does_not_overflow(run_ranks):
    run_ranks(4, rank_averages_large_halves)


ROWS = ([[1, 2, 4, 5], [4, 3, 2, 9]], [[1, 3, 4], [4, 7, 9]])  # that the ranks use


def rank_embeds(sparse_as_dense):
    """As one process whose gradient is the mean of both ranks'."""
    hvd.init()
    tables = [nn.Embedding(10, 3, sparse=True) for _ in range(2)]
    for table in tables:
        nn.init.ones_(table.weight)
    table, alone = tables
    optimizer, reference = (torch.optim.SparseAdam(list(t.parameters()), lr=0.1) for t in tables)
    optimizer = hvd.DistributedOptimizer(optimizer, sparse_as_dense=sparse_as_dense)
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor(ROWS[hvd.rank()])).sum().backward()
        optimizer.step()
        reference.zero_grad()
        (sum(alone(torch.tensor(rows)).sum() for rows in ROWS) / 2).backward()
        reference.step()
    assert torch.allclose(table.weight, alone.weight)
    assert (table.weight[0] == 1).all()  # no rank has used it


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_adam_steps_on_the_rows_of_all_ranks(run_ranks, sparse_as_dense):
    run_ranks(2, rank_embeds, sparse_as_dense)


def rank_unused_table():
    """A rank that has no rows in a step sends none, and torch has nothing to warn of."""
    hvd.init()
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(table.parameters()), table.named_parameters()
    )
    for ranks in (hvd.size(), 1):
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if hvd.rank() < ranks:
                table(torch.tensor([1])).sum().backward()
            optimizer.step()


def test_a_table_that_a_rank_has_not_used_warns_of_nothing(run_ranks):
    run_ranks(2, rank_unused_table)
