# SPDX-License-Identifier: Apache-2.0
"""Where results lie, if torch makes new tensors elsewhere unless it is told: scripts that call
torch.set_default_device("cuda") have tensors of the host, too. The device "meta" holds no data, so
that nothing that was made there goes unnoticed.
"""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

needs_default_device = pytest.mark.skipif(
    not hasattr(torch, "set_default_device"), reason="torch 2.0 has default devices"
)


def rank_with_another_default_device():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    x, none = torch.ones(size, 2), torch.ones(0, 2)
    sparse = torch.eye(2).to_sparse()
    table = nn.Embedding(size, 2, sparse=True)
    words = torch.tensor([0])
    norm, batch = hvd.SyncBatchNorm(2), torch.randn(3, 2, requires_grad=True)
    sgd = torch.optim.SGD(norm.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(table.parameters()))
    for _ in range(2):  # in the second step rank 0 alone uses the table
        if optimizer.state_dict()["state"] == {} or rank == 0:
            table(words).sum().backward()
        with torch.device("meta"):
            optimizer.step()
        optimizer.zero_grad()
    with torch.device("meta"):
        results = [
            hvd.allgather(none),
            hvd.alltoall(none, splits=[0] * size)[0],
            hvd.alltoall(x),
            hvd.reducescatter(x[:1]),
            hvd.allreduce(x, op=hvd.Adasum),
            hvd.sparse_allreduce_async(sparse)(),
            norm(batch),
        ]
        results[-1].sum().backward()
        hvd.broadcast_optimizer_state(sgd, 0)
    results += [batch.grad, *(state["momentum_buffer"] for state in sgd.state.values())]
    assert [one.device.type for one in results] == ["cpu"] * len(results)
    assert results[5].to_dense().tolist() == torch.eye(2).tolist()
    assert table.weight.device.type == "cpu"


@needs_default_device
def test_results_lie_where_inputs_do_whatever_the_default_device(run_ranks):
    run_ranks(2, rank_with_another_default_device)
