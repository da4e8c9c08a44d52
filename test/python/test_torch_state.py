# SPDX-License-Identifier: Apache-2.0
"""Optimizer state between ranks, of which nothing is pickled."""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def rank_odd_state(odd):
    """No part of a state is pickled: what is no plain data fails on every rank."""
    hvd.init()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)
    if hvd.rank() == 0:
        optimizer.param_groups[0]["odd"] = {"set": {1}, "sparse": torch.eye(2).to_sparse()}[odd]
    with pytest.raises(TypeError, match="rank 0 cannot send its data"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@pytest.mark.parametrize("odd", ["set", "sparse"])
def test_optimizer_state_that_is_not_plain_fails_everywhere(run_ranks, odd):
    run_ranks(2, rank_odd_state, odd)


def rank_state_without_objects():
    hvd.init(settings={"OBJECTS": "refuse"})
    model = nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    shape = torch.Size([2, 3])
    if hvd.rank() == 0:
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0].update(shape=shape, kind=torch.bfloat16, lr=torch.tensor(0.5))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    group = optimizer.param_groups[0]
    assert (group["shape"], group["kind"], group["lr"].item()) == (shape, torch.bfloat16, 0.5)
    assert type(group["betas"]) is tuple and len(optimizer.state) == len(list(model.parameters()))
    hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=2)


def test_optimizer_state_and_groups_need_no_objects(run_ranks):
    run_ranks(2, rank_state_without_objects)
