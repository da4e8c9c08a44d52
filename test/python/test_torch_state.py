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
        optimizer.param_groups[0]["odd"] = {"set": {1}, "sparse": torch.eye(2).to_sparse_csr()}[odd]
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


# ---- What receivers take ----


def sgd(p, rank=0, **options):
    """Only the root has a state: a gradient of ones was used."""
    optimizer = torch.optim.SGD([p], lr=1.0, momentum=0.5, **options)
    if rank == 0:
        p.grad = torch.ones_like(p)
        optimizer.step()
    return optimizer


def rank_exact_state(wrapped):
    """torch's load_state_dict() makes tensors of the parameter's dtype, and no text of a text."""
    hvd.init()
    p = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = sgd(p, hvd.rank())
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, [("p", p)])
    state = {
        "mean": torch.full((4,), 1 / 3),
        "n": torch.tensor(300),
        "step": torch.tensor(301),
        "kind": "wide",
        "parts": [1, (2, None), {"half": torch.ones(3, dtype=torch.float16)}],
    }
    if hvd.rank() == 0:
        optimizer.state[p] = state
        optimizer.state["all"] = {"seen": 7, "mask": torch.tensor([True])}
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert flat(optimizer.state[p]) == flat(state)
    assert type(optimizer.state[p]["parts"][1]) is tuple
    assert flat(optimizer.state["all"]) == flat({"seen": 7, "mask": torch.tensor([True])})


@pytest.mark.parametrize("wrapped", [False, True])
def test_optimizer_state_arrives_as_it_is(run_ranks, wrapped):
    run_ranks(2, rank_exact_state, wrapped)


def rank_state_in_place():
    """What a scheduler that was made before wrapping knows is what the optimizer steps with."""
    hvd.init()
    rank = hvd.rank()
    p = nn.Parameter(torch.ones(2))
    inner = sgd(p, rank)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(inner, [("p", p)])
    group = inner.param_groups[0]
    group["rate"] = torch.tensor(0.25 * (rank + 1))
    group["of_receivers" if rank else "of_the_root"] = rank
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.param_groups[0] is group and optimizer.state is inner.state
    assert group["rate"].item() == 0.25 and group["params"][0] is p
    assert group["of_the_root"] == 0 and "of_receivers" not in group
    optimizer.zero_grad()
    p.sum().backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_optimizer_state_is_taken_in_place(run_ranks):
    run_ranks(2, rank_state_in_place)


def rank_state_layout(here):
    """Fused kernels pair a parameter's elements with its state's by where they lie."""
    hvd.init()
    torch.manual_seed(0)
    layout = torch.channels_last if hvd.rank() in here else torch.contiguous_format
    p = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=layout))
    optimizer = torch.optim.Adam([p], lr=0.1)
    if hvd.rank() == 0:
        p.grad = torch.randn_like(p)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    mean = optimizer.state[p]["exp_avg"]
    assert mean.stride() == p.stride() and mean.is_contiguous(memory_format=layout)
    return mean.tolist()


@pytest.mark.parametrize("here", [(0, 1), (1,), (0,)], ids=str)
def test_optimizer_state_lies_as_the_parameter(run_ranks, here):
    results = run_ranks(2, rank_state_layout, here)
    assert results[0] == results[1]


def use(table, rows):
    table(torch.tensor(rows)).square().sum().backward()


def rank_sparse_state(kind, pass_model):
    """Only the root has trained, or nobody has. Rank 0 alone uses the table in the first step, and
    no gradient is cleared before it."""
    hvd.init()
    table = kind(4, 2, sparse=True)
    nn.init.constant_(table.weight, 1 / 3)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.3)
    for rows in [[[0, 1]], [[1, 2]]] if hvd.rank() == 0 and pass_model != "empty" else ():
        optimizer.zero_grad()
        use(table, rows)
        optimizer.step()
    optimizer.zero_grad()
    hvd.broadcast_parameters(table.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0, table if pass_model else None)
    optimizer = hvd.DistributedOptimizer(optimizer)
    if not pass_model:
        optimizer.zero_grad()
    results = []
    for step in range(3):
        if step or hvd.rank() == 0 or not pass_model:
            use(table, [[3 - hvd.rank(), step]])
        optimizer.step()
        moment = optimizer.state[table.weight]["momentum_buffer"]
        assert moment.is_sparse and table.weight.grad.is_sparse
        results.append((moment.is_coalesced(), moment.to_dense().tolist(), table.weight.tolist()))
        optimizer.zero_grad()
    return results


@pytest.mark.parametrize("pass_model", [False, True, "empty"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_moments_are_everybodys(run_ranks, kind, pass_model):
    results = run_ranks(2, rank_sparse_state, kind, pass_model)
    assert results[0] == results[1]


class Loading(torch.optim.SGD):
    loaded = 0

    def load_state_dict(self, state_dict):
        self.loaded += 1
        super().load_state_dict(state_dict)


def rank_own_loading(wrapped):
    """Nobody knows what a class of the user's keeps: its own load_state_dict() takes the state."""
    hvd.init()
    hooked = []
    for kind in (Loading, torch.optim.SGD):
        p = nn.Parameter(torch.ones(2))
        optimizer = kind([p], lr=1.0, momentum=0.5)
        if kind is torch.optim.SGD:
            optimizer.register_load_state_dict_post_hook(hooked.append)
        if wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer, [("p", p)])
        hvd.broadcast_optimizer_state(optimizer, 0)
        assert optimizer.state[p]["momentum_buffer"].tolist() == [0.0, 0.0]
        assert getattr(optimizer, "loaded", hvd.rank()) == hvd.rank()
    assert len(hooked) == hvd.rank()


@pytest.mark.skipif(
    not hasattr(torch.optim.SGD, "register_load_state_dict_post_hook"), reason="old torch"
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_optimizer_state_goes_through_the_users_loading(run_ranks, wrapped):
    run_ranks(2, rank_own_loading, wrapped)


def rank_resuming():
    """The root loads a checkpoint into the wrapped optimizer: its schedulers go on, too."""
    hvd.init()
    p = nn.Parameter(torch.ones(2))
    inner = sgd(p)
    saved = copy.deepcopy(inner.state_dict())
    saved["param_groups"][0]["lr"] = 0.25
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(inner, [("p", p)])
    if hvd.rank() == 0:
        optimizer.load_state_dict(saved)
    hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer.zero_grad()
    p.sum().backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0] is inner.param_groups[0]
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert optimizer.state[p]["momentum_buffer"].tolist() == [1.5, 1.5]


def test_a_loaded_state_reaches_schedulers(run_ranks):
    run_ranks(2, rank_resuming)


# ---- Where ranks differ ----


def rank_other_groups():
    hvd.init()
    rank = hvd.rank()
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3 - rank)]
    optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=0.5)
    message = r"rank 1: .* groups of \[2\] parameters, that of rank 0 has \[3\]; rank 2: .*\[1\]"
    with pytest.raises(ValueError, match=message):
        hvd.broadcast_optimizer_state(optimizer, 0)
    with pytest.raises(ValueError, match=r"root 3 is no rank of 0\.\.2"):
        hvd.broadcast_optimizer_state(optimizer, 3)
    assert all(p.grad is None for p in parameters) and not optimizer.state
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_optimizers_of_other_parameters_fail_everywhere(run_ranks):
    run_ranks(3, rank_other_groups)


def rank_another_class():
    hvd.init()
    p = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=1.0) if hvd.rank() == 0 else torch.optim.Adam([p], lr=1.0)
    message = r"rank 1: its optimizer is of the class Adam, that of rank 0 of SGD; rank 2: "
    with pytest.raises(ValueError, match=message):
        hvd.broadcast_optimizer_state(optimizer, 0)
    assert p.grad is None and not optimizer.state
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=2.0))
    hvd.broadcast_optimizer_state(wrapped if hvd.rank() else torch.optim.SGD([p], lr=0.5), 0)
    assert wrapped.param_groups[0]["lr"] == (0.5 if hvd.rank() else 2.0)


def test_optimizers_of_another_class_fail_everywhere(run_ranks):
    run_ranks(3, rank_another_class)


def rank_communicating_step(begun, wrapped):
    """What step() and its hooks send needs all ranks, whichever of them have a state."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    p = nn.Parameter(torch.full((2,), float(rank)))
    optimizer = torch.optim.Adam([p], lr=1.0 + rank, weight_decay=0.1)
    if rank in begun:
        p.grad = torch.full((2,), 3.0)
        optimizer.step()
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, [("p", p)])
    before, sums = p.tolist(), []

    def hook(*_):
        sums.append(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="statistics").item())

    optimizer.register_step_post_hook(hook)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert sums == ([] if 0 in begun else [size])
    assert p.tolist() == before and p.grad.tolist() == [3.0 if rank in begun else 0.0] * 2
    return flat(optimizer.state_dict())


@pytest.mark.skipif(not hasattr(torch.optim.SGD, "register_step_post_hook"), reason="old torch")
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("begun", [(), (1,), (0,), (1, 2), (0, 1, 2)], ids=str)
def test_all_ranks_step_where_the_root_has_no_state(run_ranks, begun, wrapped):
    states = run_ranks(3, rank_communicating_step, begun, wrapped)
    assert states[0]["state"] and all(state == states[0] for state in states)


def rank_frozen_with_gradients(wrapped):
    """Left by an optimizer before this one; they are other ones on each rank."""
    hvd.init()
    rank = hvd.rank()
    backbone, head = (nn.Parameter(torch.full((2,), 5.0)) for _ in range(2))
    backbone.grad = head.grad = torch.full((2,), 1.0 + rank)
    backbone.requires_grad_(False)
    optimizer = torch.optim.SGD([backbone, head], lr=0.5, momentum=0.9)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, [("backbone", backbone), ("head", head)])
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert backbone.tolist() == head.tolist() == [5.0, 5.0]
    assert backbone.grad.tolist() == [1.0 + rank] * 2 and head.grad.tolist() == [0.0, 0.0]
    assert list(optimizer.state) == [head]


@pytest.mark.parametrize("wrapped", [False, True])
def test_frozen_parameters_stay_where_a_state_begins(run_ranks, wrapped):
    run_ranks(2, rank_frozen_with_gradients, wrapped)


def rank_wide_gradients():
    """Gradients of another dtype than the parameters': zeros have it, too, in a first state and
    where a rank's pass has not used a parameter."""
    hvd.init()
    p = {name: nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for name in "ab"}
    for one in p.values():
        one.grad_dtype = torch.float32
    sgd = torch.optim.SGD(p.values(), lr=1.0, foreach=False)
    optimizer = hvd.DistributedOptimizer(sgd, p.items())
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert p["a"].grad.dtype == torch.float32
    optimizer.zero_grad()
    for name in "ab" if hvd.rank() == 0 else "a":
        p[name].sum().backward()
    optimizer.step()
    assert p["a"].tolist() == [0.0] * 3 and p["b"].tolist() == [0.5] * 3


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch before 2.10")
def test_zeros_have_the_dtype_of_gradients(run_ranks):
    run_ranks(2, rank_wide_gradients)
