# SPDX-License-Identifier: Apache-2.0
"""Optimizer state between ranks, of which nothing is pickled."""

import copy

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def rank_state(kind):
    hvd.init()
    rank = hvd.rank()
    model = nn.ModuleDict({"features": nn.Linear(3, 4), "classes": nn.Linear(4, 2)})
    make = {
        "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
        "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01 * (rank + 1), amsgrad=True),
        "plain": lambda m: torch.optim.SGD(m.parameters(), lr=0.5 / (rank + 1)),
        "lbfgs": lambda m: torch.optim.LBFGS(m.parameters(), max_iter=2),
        "groups": lambda m: torch.optim.AdamW(
            [
                {"params": m["features"].parameters(), "lr": 0.1 / (rank + 1)},
                {"params": m["classes"].parameters(), "betas": (0.5, 0.1 * (rank + 1))},
            ]
        ),
    }[kind]
    optimizer = make(model)

    def closure():
        optimizer.zero_grad()
        loss = model["classes"](model["features"](torch.ones(2, 3))).square().sum()
        loss.backward()
        return loss

    for _ in range(2 if rank == 0 else 0):  # only the root has any state
        optimizer.step(closure)
    before = copy.deepcopy(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    states = hvd.allgather_object(optimizer.state_dict())
    if rank == 0:
        assert flat(states[0]) == flat(before)
    assert all(flat(state) == flat(states[0]) for state in states)


def flat(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [flat(item) for item in value]
    return value


@pytest.mark.parametrize("kind", ["sgd", "adam", "plain", "lbfgs", "groups"])
def test_optimizer_state_of_the_root_is_everybodys(run_ranks, kind):
    run_ranks(2, rank_state, kind)


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


def rank_state_with_a_model():
    """Horovod's third argument; parameters stay, and weight decay leaves no trace."""
    hvd.init()
    model = nn.Linear(2, 3)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.5)
    for pass_model in (lambda: (0, model), lambda: (0, None)):
        hvd.broadcast_optimizer_state(optimizer, *pass_model())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    assert all(p.equal(was) for p, was in zip(model.parameters(), before, strict=True))
    assert len(optimizer.state) == len(before)
    with pytest.raises(ValueError, match=r"a torch\.nn\.Module, not OrderedDict"):
        hvd.broadcast_optimizer_state(optimizer, 0, model.state_dict())


def test_optimizer_state_takes_horovods_model(run_ranks):
    run_ranks(2, rank_state_with_a_model)
