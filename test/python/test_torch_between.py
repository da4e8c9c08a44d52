# SPDX-License-Identifier: Apache-2.0
"""Between backward and step: what becomes of the exchange that has begun."""

import copy
import re
import time

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # the first one is slow: see the other file

LATE_SECONDS = 0.2  # long after the other rank has gone on, if it does not wait


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batch(step, rank):
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))


def wanted(model, step):
    """The mean of the ranks' gradients; nobody else computes them on this model."""
    for rank in range(hvd.size()):
        (model(batch(step, rank)).square().sum() / hvd.size()).backward()
    return [p.grad for p in model.parameters()]


def rank_abandons(options, late, loading, narrow):
    hvd.init()
    rank = hvd.rank()
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), **options
    )
    state = copy.deepcopy(optimizer.state_dict())
    for step in range(2):
        if rank == late:
            time.sleep(LATE_SECONDS)
        # one rank may not use all parameters
        part = model[2:] if narrow and rank == 0 else model
        part(torch.full((4, part[0].in_features), 100.0)).sum().backward()
        if rank in loading:
            optimizer.load_state_dict(state)
        else:
            with pytest.raises(hvd.HoronInternalError, match=r"load_state_dict\(\) was called"):
                optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for _ in range(options.get("backward_passes_per_step", 1)):
            model(batch(step, rank)).square().sum().backward()
        optimizer.synchronize()
        for p, want in zip(model.parameters(), wanted(net(), step), strict=True):
            scale = options.get("backward_passes_per_step", 1)
            assert torch.allclose(p.grad, scale * want, rtol=1e-2, atol=1e-2), (step, late)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    return True


OPTIONS = (
    {},
    {"groups": 2},
    {"compression": hvd.Compression.fp16},
    {"backward_passes_per_step": 2},  # the abandoned step has had one: nothing has begun
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("late", [0, 1])
def test_step_is_abandoned(run_ranks, options, late):
    run_ranks(2, rank_abandons, options, late, (0, 1), False)


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
@pytest.mark.parametrize("loading", [(0,), (1,), (0, 1)], ids=str)
def test_step_is_abandoned_by_some_or_after_different_passes(run_ranks, options, loading):
    run_ranks(2, rank_abandons, options, 1, loading, True)


def rank_broadcasts_state():
    """Ranks that load it would drop the step that the root takes: refused on all."""
    hvd.init()
    p = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
    (p * (1.0 + hvd.rank())).sum().backward()
    with pytest.raises(ValueError, match=r"optimizer_state.*rank 0: .*comes first.*; rank 1: "):
        hvd.broadcast_optimizer_state(optimizer, 0)
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    return p.tolist()


def test_no_state_is_broadcast_between_backward_and_step(run_ranks):
    assert run_ranks(2, rank_broadcasts_state) == [[-1.5, -1.5]] * 2


def rank_abandons_what_failed():
    """Nothing is in flight: load_state_dict() waits for nobody."""
    model = net()
    optimizer = None
    for again in range(2):
        hvd.init()
        if optimizer is None:
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters()
            )
            state = copy.deepcopy(optimizer.state_dict())
        if hvd.rank() == 0:  # its gradients never meet others
            model(batch(again, 0)).sum().backward()
        hvd.barrier()
        hvd.shutdown()
        optimizer.load_state_dict(state)
        optimizer.zero_grad()
    hvd.init()
    with pytest.raises(AssertionError, match="must not require a gradient"):
        model(batch(0, hvd.rank())).square().sum().backward(create_graph=True)
    optimizer.load_state_dict(state)
    optimizer.zero_grad()
    model(batch(0, hvd.rank())).square().sum().backward()
    optimizer.synchronize()
    for p, want in zip(model.parameters(), wanted(net(), 0), strict=True):
        assert torch.allclose(p.grad, want)


def test_step_that_failed_is_abandoned(run_ranks):
    run_ranks(2, rank_abandons_what_failed)


def rank_traced():
    """What no pass has computed is sent in step(), right before the verdict."""
    hvd.init()
    p = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
    p.grad = torch.ones(2)
    for _ in range(200):
        optimizer.step()


def test_verdict_travels_with_the_last_gradients(start_ranks):
    """When both are ready at once, which is up to the threads: in one step of three or so in most
    jobs, and in some jobs in none."""
    together = re.compile(r"decided allreduce 'allreduce\.p': batch \d+, tensors 2")
    for _ in range(10):
        ranks = start_ranks(2, rank_traced, HORON_LOG_LEVEL="trace")
        ranks.results()
        if together.search(ranks.logs()):
            return
    pytest.fail("the verdict never travelled with the last gradient")
