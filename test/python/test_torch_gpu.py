# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU: every function gives them what it gives tensors of the host, and leaves the
results on the device. All ranks share one GPU. A rank asks for it: a process that has used CUDA is
not forked.
"""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py

NO_GPU = "torch finds no CUDA device"
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]


def on_both(function):
    """Runs it for the host and for the GPU; its results are the same bits, each on its device."""
    if not torch.cuda.is_available():
        return NO_GPU
    hvd.init()
    host, device = function("cpu"), function("cuda")
    assert len(host) == len(device)
    for number, (want, got) in enumerate(zip(host, device, strict=True)):
        assert got.device.type == "cuda", number
        want, got = want.detach().to_dense(), got.detach().cpu().to_dense()
        assert got.dtype == want.dtype and torch.equal(got, want), (number, got, want)
    return None


def on_a_gpu(run_ranks, size, function):
    if why := run_ranks(size, on_both, function)[0]:
        pytest.skip(why)


def numbers(device, dtype, *shape):
    generator = torch.Generator().manual_seed(hvd.rank() + 1)
    return torch.randint(0, 5, shape, generator=generator).to(device, dtype)


def every_verb(device):
    rank, size = hvd.rank(), hvd.size()
    results = []
    for dtype in DTYPES:
        x = numbers(device, dtype, 5, 7)
        strided = numbers(device, dtype, 7, 10).t()[::2]
        mine = numbers(device, dtype, rank, 3)  # rank 0 has none
        splits = torch.tensor([1] * (size - 1) + [6 - size], dtype=torch.int32, device=device)
        message = hvd.send_async(strided, (rank + 1) % size, tag=1)
        results += [
            hvd.allreduce(x, op=hvd.Sum),
            hvd.allreduce(x[0, 0], op=hvd.Max),
            hvd.allreduce(strided, op=hvd.Min),
            hvd.allreduce_(strided.clone(), op=hvd.Product),
            hvd.allreduce_(numbers(device, dtype, 7, 10).t()[::2], op=hvd.Sum),
            *hvd.grouped_allreduce([x, strided, mine[:0]], op=hvd.Sum),
            hvd.allgather(mine),
            *hvd.grouped_allgather([strided, x]),
            hvd.broadcast(strided, root_rank=size - 1),
            hvd.broadcast_(x.clone(), root_rank=1),
            *hvd.alltoall(x, splits=splits),
            hvd.alltoall(strided[:size]),
            hvd.reducescatter(strided, op=hvd.Sum),
            *hvd.grouped_reducescatter([x, strided], op=hvd.Sum),
            hvd.gather(mine, root_rank=1),
            hvd.scatter(strided, root_rank=size - 1, splits=splits),
            hvd.reduce(strided, root_rank=0, op=hvd.Sum),
            hvd.reduce_(strided.clone(), root_rank=1, op=hvd.Max),
            *hvd.grouped_broadcast([x, strided], root_rank=1),
            *hvd.grouped_broadcast_([x.clone(), strided.clone()], root_rank=1),
            *hvd.grouped_reduce([x, strided], root_rank=size - 1, op=hvd.Sum),
            *hvd.grouped_reduce_([x.clone(), strided.clone()], root_rank=0, op=hvd.Min),
            hvd.recv(numbers(device, dtype, 7, 10).t()[::2], (rank - 1) % size, tag=1),
        ]
        hvd.synchronize(message)
    floats = numbers(device, torch.float32, 6) / 3
    results += [
        hvd.allreduce(floats),
        hvd.allreduce(floats, compression=hvd.Compression.fp16),
        hvd.allreduce(floats, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        hvd.allreduce(floats, op=hvd.Adasum),
        hvd.sparse_allreduce_async(torch.diag(floats).to_sparse(), op=hvd.Sum)(),
    ]
    return [one for one in results if one is not None]  # that another rank alone gets


def test_every_verb_on_a_gpu(run_ranks):
    on_a_gpu(run_ranks, 3, every_verb)


def rank_on_either_device():
    """The odd ranks have their tensors on the GPU, and each one group has tensors of both."""
    if not torch.cuda.is_available():
        return NO_GPU
    hvd.init()
    own, other = ("cpu", "cuda") if hvd.rank() % 2 == 0 else ("cuda", "cpu")
    ones = torch.ones(4, device=own)
    total, (first, second) = hvd.allreduce(ones), hvd.grouped_allreduce([ones, ones.to(other)])
    gathered = hvd.allgather(ones)
    for result, device in ((total, own), (first, own), (second, other), (gathered, own)):
        assert result.device.type == device and result.eq(1).all()
    assert len(gathered) == 4 * hvd.size()
    return None


def test_ranks_with_tensors_on_different_devices(run_ranks):
    if why := run_ranks(2, rank_on_either_device)[0]:
        pytest.skip(why)


def gradients(device):
    results = []
    for function in (
        hvd.allreduce,
        hvd.allgather,
        lambda x: hvd.broadcast(x, root_rank=1),
        lambda x: hvd.alltoall(x)[:2],
        hvd.reducescatter,
        lambda x: torch.cat(hvd.grouped_allreduce([x, 2 * x])),
    ):
        x = numbers(device, torch.float32, 4, 3).requires_grad_()
        (function(x) * (hvd.rank() + 2)).sum().backward()
        results.append(x.grad)
    return results


def test_gradients_of_verbs_on_a_gpu(run_ranks):
    on_a_gpu(run_ranks, 2, gradients)


def training(device):
    """Products of small numbers alone: they are exact on every device, in whatever order."""
    width = 1 << 16
    table = nn.Embedding(8, 4, sparse=True)
    weights = [nn.Parameter(torch.full((width,), 1.0 + hvd.rank())) for _ in range(4)]
    with torch.no_grad():
        table.weight.fill_(1.0 + hvd.rank())
    table = table.to(device)
    weights = [nn.Parameter(one.detach().to(device)) for one in weights]
    named = [("table", table.weight), *((f"w{i}", one) for i, one in enumerate(weights))]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(weights, lr=0.5, momentum=0.5), named_parameters=named[1:]
    )
    rare = hvd.DistributedOptimizer(
        torch.optim.SGD([table.weight], lr=0.5), named_parameters=named[:1]
    )
    hvd.broadcast_parameters(named, root_rank=1)
    for step in range(3):
        x = numbers(device, torch.float32, width) + step
        rows = torch.tensor([hvd.rank(), step], device=device)
        loss = sum((one * x).sum() for one in weights) + table(rows).sum()
        loss.backward()
        if step == 1:
            optimizer.synchronize()
            nn.utils.clip_grad_value_(weights, 2.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        rare.step()
        optimizer.zero_grad()
        rare.zero_grad()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    moments = [state["momentum_buffer"] for state in optimizer.state.values()]
    return [table.weight, *weights, *moments]


def test_training_on_a_gpu(run_ranks):
    on_a_gpu(run_ranks, 2, training)


def moving(device):
    weight = nn.Parameter(numbers(device, torch.float32, 64))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=0.5), named_parameters=[("weight", weight)], op=hvd.Adasum
    )
    hvd.broadcast_parameters([("weight", weight)], root_rank=0)
    for _ in range(2):
        (weight * numbers(device, torch.float32, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [weight]


def test_adasum_optimizer_on_a_gpu(run_ranks):
    on_a_gpu(run_ranks, 2, moving)


def uneven(device):
    results = []
    for _ in range(2 + hvd.rank()):
        results.append(hvd.allreduce(numbers(device, torch.float32, 9), op=hvd.Sum))
    assert hvd.join() == 1
    return results


def test_join_on_a_gpu(run_ranks):
    on_a_gpu(run_ranks, 2, uneven)


def streams(device):
    """What a stream has still to write is what travels, and what it reads next is what came. A
    tensor of a GPU is copied when its operation begins, and may be changed from then on.
    """
    results = []
    x = torch.zeros(1 << 20, device=device)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for step in range(4):
            if device == "cuda":
                torch.cuda._sleep(20_000_000)
            x += hvd.rank() + step
            handle = hvd.allreduce_async(x if device == "cuda" else x.clone(), op=hvd.Sum)
            if device == "cuda":
                torch.cuda._sleep(20_000_000)
            x *= 2
            results.append(hvd.synchronize(handle) + x)
            hvd.allreduce_(x, op=hvd.Max)
    side.synchronize()
    return [*results, x]


def test_work_in_streams_of_a_gpu(run_ranks):
    on_a_gpu(run_ranks, 2, streams)


def objects(device):
    """A tensor in an object comes as it was sent."""
    x = numbers(device, torch.float32, 3)
    found = hvd.broadcast_object({"x": x, "step": 7}, root_rank=1)
    assert found["step"] == 7
    return [found["x"], *hvd.allgather_object(x)]


def test_objects_with_tensors_of_a_gpu(run_ranks):
    on_a_gpu(run_ranks, 2, objects)
