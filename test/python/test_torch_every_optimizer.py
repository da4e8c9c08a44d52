# SPDX-License-Identifier: Apache-2.0
"""What torch's optimizers have in common: each of them steps when wrapped, and its state and
options are the root's after a broadcast. LBFGS and SparseAdam take other gradients or calls, and
have tests of their own (test_torch_state.py, test_torch_sparse.py)."""

import inspect
import io

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py

OTHERS = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
KINDS = [
    kind
    for _, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind not in OTHERS
]
FEW = {"lr": 0.2}
MANY = {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.1, "centered": True}
OF_THE_ROOT = {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.2, "nesterov": True}
OF_THE_ROOT.update(betas=(0.9, 0.999), etas=(0.8, 2.4), step_sizes=(1e-5, 100))
OF_OTHERS = {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.1, "nesterov": False}
OF_OTHERS.update(betas=(0.8, 0.9), etas=(0.25, 1.75), step_sizes=(1e-7, 5))


class Heads(nn.Module):
    """Weights alone, as Muon takes nothing else; a pass uses one of the heads, or both."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5, bias=False)
        self.heads = nn.ModuleList(nn.Linear(5, 4, bias=False) for _ in range(2))

    def forward(self, x, heads=(0, 1)):
        x = self.body(x).relu()
        return sum(self.heads[i](x).square().mean() for i in heads)


def known(kind, options):
    return {name: options[name] for name in options if name in inspect.signature(kind).parameters}


def make(kind, options):
    """Every rank has another model."""
    torch.manual_seed(hvd.rank())
    model = Heads()
    optimizer = kind(model.parameters(), **known(kind, options))
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())


def step(model, optimizer, heads=(0, 1)):
    optimizer.zero_grad()
    model(torch.full((3, 6), 1.0 + hvd.rank()), heads).backward()
    optimizer.step()


def flat(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    return [flat(item) for item in value] if isinstance(value, (list, tuple)) else value


def assert_alike(*values, what):
    mine = flat(values)
    assert hvd.allgather_object(mine) == [mine] * hvd.size(), what
    return mine


def rank_resumes():
    """The root loads what it saved after a step, and all ranks go on from there."""
    hvd.init()
    for kind in KINDS:
        for options in (FEW, MANY):
            what = (kind.__name__, options)
            model, optimizer = make(kind, options)
            step(model, optimizer)
            saved = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict()], saved)
            wanted = flat((model.state_dict(), optimizer.state_dict()))
            model, optimizer = make(kind, options)
            if hvd.rank() == 0:
                saved.seek(0)
                of_model, of_optimizer = torch.load(saved)
                model.load_state_dict(of_model)
                optimizer.load_state_dict(of_optimizer)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            got = assert_alike(model.state_dict(), optimizer.state_dict(), what=what)
            assert hvd.rank() != 0 or got == wanted, what
            step(model, optimizer)
            assert_alike(model.state_dict(), optimizer.state_dict(), what=what)


def test_every_optimizer_resumes_where_the_root_does(run_ranks):
    run_ranks(2, rank_resumes)


def rank_takes_options():
    hvd.init()
    for kind in KINDS:
        model, optimizer = make(kind, OF_THE_ROOT if hvd.rank() == 0 else OF_OTHERS)
        step(model, optimizer)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        (group,) = optimizer.param_groups
        for name, want in known(kind, OF_THE_ROOT).items():
            assert group[name] == want and type(group[name]) is type(want), (kind, name)
        step(model, optimizer)  # it can work with what it got
        assert_alike(model.state_dict(), optimizer.state_dict(), what=kind)


def test_every_optimizer_takes_the_options_of_the_root(run_ranks):
    run_ranks(2, rank_takes_options)


def rank_uses_one_head():
    hvd.init()
    for kind in KINDS:
        for options in (FEW, MANY):
            model, optimizer = make(kind, options)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            before = flat(model.state_dict())
            step(model, optimizer, heads=[hvd.rank()])
            after = assert_alike(model.state_dict(), optimizer.state_dict(), what=kind)[0]
            assert all(after[name] != before[name] for name in before), kind


def test_every_optimizer_exchanges_what_a_rank_has_not_used(run_ranks):
    run_ranks(2, rank_uses_one_head)
