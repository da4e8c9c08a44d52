# SPDX-License-Identifier: Apache-2.0
"""A compressor of the application's that fails on one rank."""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


class Halves(hvd.Compression.fp16):
    broken = False

    @classmethod
    def compress(cls, tensor):
        if cls.broken:
            raise RuntimeError("no room")
        return super().compress(tensor)


def rank_compressor_fails(groups):
    """Not even zeros can be made then of the kind that the other ranks wait for."""
    hvd.init()
    p = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    named = [(str(i), q) for i, q in enumerate(p)]
    inner = torch.optim.SGD(p, lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, named, compression=Halves, groups=groups)
    Halves.broken = hvd.rank() == 1
    loss = sum(q.sum() for q in p)
    if Halves.broken:
        with pytest.raises(RuntimeError, match="no room"):
            loss.backward()
    else:
        loss.backward()
    with pytest.raises(RuntimeError, match=r"gradients failed( on rank 1)?: no room"):
        optimizer.step()
    assert all(q.tolist() == [1.0, 1.0] for q in p)
    Halves.broken = False
    optimizer.zero_grad()
    sum(q.sum() for q in p).backward()
    optimizer.step()
    assert all(q.tolist() == [0.0, 0.0] for q in p)


@pytest.mark.parametrize("groups", [None, 1, 2])
@pytest.mark.parametrize("n", [2, 3])
def test_a_compressor_that_fails_on_one_rank_fails_the_step_of_all(run_ranks, n, groups):
    run_ranks(n, rank_compressor_fails, groups)
