# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer.step() with a closure, which may raise, and in skip_synchronize()."""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def rank_closure_raises(alone, passes):
    """The gradients of a closure that raised are no step's; those of its next call are."""
    hvd.init()
    p = {name: nn.Parameter(torch.ones(2)) for name in "ab"}
    inner = torch.optim.SGD(p.values(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, p.items(), backward_passes_per_step=passes)

    def closure(fails):
        optimizer.zero_grad()
        for i in range(passes):
            sum((q * (1.0 + hvd.rank()) / passes).sum() for q in p.values()).backward()
            if fails and i == 0:
                raise ValueError("no loss")

    if hvd.rank() == 0 or not alone:
        with pytest.raises(ValueError, match="no loss"):
            optimizer.step(lambda: closure(True))
    else:
        with pytest.raises(hvd.HoronInternalError, match="failed on rank 0: no loss") as caught:
            optimizer.step(lambda: closure(False))
        assert caught.value.rank == 0
    assert all(q.tolist() == [1.0, 1.0] for q in p.values())
    optimizer.step(lambda: closure(False))
    after = 1.0 - (1 + hvd.size()) / 2
    assert all(q.tolist() == [after, after] for q in p.values())


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_closure_that_raises_fails_its_step_alone(run_ranks, alone, passes):
    run_ranks(2, rank_closure_raises, alone, passes)


def rank_skipping():
    hvd.init()
    p = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
    (p * (1.0 + hvd.rank())).sum().backward()
    with optimizer.skip_synchronize():
        with pytest.raises(RuntimeError, match=r"not exchanged: call optimizer.synchronize\(\)"):
            optimizer.step()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            pass
        optimizer.step()
    assert p.tolist() == [1.0 - (1 + hvd.size()) / 2] * 2


@pytest.mark.filterwarnings("error")
def test_no_step_with_gradients_on_their_way(run_ranks):
    run_ranks(2, rank_skipping)
