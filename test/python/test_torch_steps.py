# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer where training does not go as usual: copies."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def distributed(named, **options):
    """SGD with lr 1, so that a step subtracts the gradient."""
    named = list(named)
    inner = torch.optim.SGD([p for _, p in named], lr=1.0)
    return hvd.DistributedOptimizer(inner, named, **options)


def ones(*names):
    """{name: a parameter of two ones}"""
    return {name: nn.Parameter(torch.ones(2)) for name in names}


def assert_all(tensor, value):
    torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, value))


# ---- Copies ----


def rank_copying():
    hvd.init()
    p = ones("p")
    optimizer = distributed(p.items())
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"wrap .* new DistributedOptimizer.*state_dict"):
            copying(optimizer)
    (p["p"].sum() * hvd.rank()).backward()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.step()
    assert_all(p["p"], 0.5)
    optimizer.zero_grad()
    optimizer.load_state_dict(state)
    # what the text advises
    q = copy.deepcopy(p)
    again = distributed(q.items())
    again.load_state_dict(optimizer.state_dict())
    (q["p"].sum() * hvd.rank()).backward()
    again.step()
    assert_all(q["p"], 0.0)
    assert_all(p["p"], 0.5)


def test_a_copy_is_refused(run_ranks):
    run_ranks(2, rank_copying)


def rank_copying_alone():
    hvd.init()
    p = ones("p")
    q, optimizer = copy.deepcopy((p, distributed(p.items())))
    q["p"].sum().backward()
    optimizer.step()
    assert_all(q["p"], 0.0)
    assert_all(p["p"], 1.0)


def test_a_copy_in_a_world_of_one_steps(run_ranks):
    run_ranks(1, rank_copying_alone)
