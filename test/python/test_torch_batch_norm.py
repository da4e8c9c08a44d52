# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm is torch's BatchNorm over the batches of all ranks, one behind the other."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py

ROWS = [3, 1, 4]  # of each rank
CASES = {
    "plain": {},
    "plain average": {"momentum": None},
    "no affine": {"affine": False},
    "no statistics": {"track_running_stats": False},
    "neither": {"affine": False, "track_running_stats": False, "momentum": None, "eps": 0.01},
}


def numbers(shape, seed, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, want, dtype):
    got = got.cpu()
    assert got.dtype == want.dtype and got.shape == want.shape
    bound = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2e-2)
    assert torch.allclose(got.double(), want.double(), rtol=bound, atol=bound), (got, want)


def rank_like_one_batch(rows, options, dtype, inner, device="cpu"):
    """The whole batch is on the CPU."""
    hvd.init()
    rank, rows = hvd.rank(), rows[: hvd.size()]
    mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    sync, whole = hvd.SyncBatchNorm(5, **options), nn.BatchNorm1d(5, **options)
    whole._check_input_dim = lambda _: None  # of any number of dimensions
    if dtype == torch.float64:
        sync, whole = sync.double(), whole.double()
    if sync.affine:
        for module in (sync, whole):
            with torch.no_grad():
                module.weight.copy_(numbers(5, 1, dtype))
                module.bias.copy_(numbers(5, 2, dtype))
    sync = sync.to(device)
    for step in range(3):
        for training in (True, False):
            sync.train(training)
            whole.train(training)
            x = numbers((sum(rows), 5, *inner), 10 + step, dtype) * (step + 1) + 3
            seed = numbers(x.shape, 20 + step, dtype)
            of_all, own = x.clone().requires_grad_(), x[mine].clone().to(device).requires_grad_()
            want, got = whole(of_all), sync(own)
            assert got.device == own.device
            close(got, want[mine], dtype)
            sync.zero_grad()
            whole.zero_grad()
            want.backward(seed)
            got.backward(seed[mine].to(device))
            close(own.grad, of_all.grad[mine], dtype)
            for one, other in zip(sync.parameters(), whole.parameters(), strict=True):
                total = hvd.allreduce(one.grad, op=hvd.Sum)
                close(total, other.grad, dtype)
        for (name, one), (_, other) in zip(
            sync.named_buffers(), whole.named_buffers(), strict=True
        ):
            if name == "num_batches_tracked":
                assert one.item() == other.item() == step + 1
            else:
                close(one, other, dtype)
    state = {name: value.tolist() for name, value in sync.state_dict().items()}
    return state if not sync.affine else {k: v for k, v in state.items() if "running" in k}


@pytest.mark.parametrize("case", CASES)
def test_batch_norm_is_that_of_the_whole_batch(run_ranks, case):
    states = run_ranks(3, rank_like_one_batch, ROWS, CASES[case], torch.float32, (2, 3))
    assert states[0] == states[1] == states[2]  # the same bits


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_batch_norm_of_other_types(run_ranks, dtype):
    run_ranks(2, rank_like_one_batch, ROWS, {}, dtype, ())


@pytest.mark.parametrize("inner", [(), (7,), (2, 2, 2)], ids=len)
def test_batch_norm_of_any_dimensions(run_ranks, inner):
    run_ranks(2, rank_like_one_batch, ROWS, {}, torch.float32, inner)


def rank_on_cuda():
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    rank_like_one_batch(ROWS, {}, torch.float32, (2, 3), "cuda")
    rank_like_one_batch([4, 0, 3], {"momentum": None}, torch.float64, (), "cuda")
    return None


def test_batch_norm_on_a_gpu(run_ranks):
    """Asked for in a rank: a process that has used CUDA is not forked."""
    if why := run_ranks(2, rank_on_cuda)[0]:
        pytest.skip(why)


def rank_has_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return rank_like_one_batch([4, 0, 3], {}, torch.float32, (2,))


def test_batch_norm_of_a_rank_without_rows(run_ranks):
    run_ranks(3, rank_has_nothing)


def test_batch_norm_of_one_rank_is_torchs(run_ranks):
    run_ranks(1, rank_like_one_batch, [4], {"momentum": None}, torch.float32, (2,))


def rank_switching_statistics_off():
    """For a pass that is not to leave a trace, as virtual adversarial training has it."""
    hvd.init()
    rows = numbers((6, 3), 7, torch.float32)
    sync, whole = hvd.SyncBatchNorm(3), nn.BatchNorm1d(3)
    mine = rows[:2] if hvd.rank() == 0 else rows[2:]
    for tracks in (True, False, True):
        sync.track_running_stats = whole.track_running_stats = tracks
        sync(mine * (1 + tracks))
        whole(rows * (1 + tracks))
    assert sync.num_batches_tracked == whole.num_batches_tracked == 2
    close(sync.running_mean, whole.running_mean, torch.float32)
    close(sync.running_var, whole.running_var, torch.float32)


def test_batch_norm_does_not_track_while_it_shall_not(run_ranks):
    run_ranks(2, rank_switching_statistics_off)


def rank_in_networks():
    """Layers of other widths, strided memory, no gradient wanted, copies of a module."""
    hvd.init()
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        hvd.SyncBatchNorm(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 1),
        hvd.SyncBatchNorm(4),
    )
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters()
    )
    for step in range(3):
        x = numbers((2 + hvd.rank(), 2, 5, 5), 30 * step + hvd.rank(), torch.float32)
        optimizer.zero_grad()
        net(x.to(memory_format=torch.channels_last)).square().sum().backward()
        optimizer.step()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        assert twin(x).equal(net(x))  # in training, on every rank
    states = hvd.allgather_object(
        {name: value.tolist() for name, value in net.state_dict().items()}
    )
    assert all(state == states[0] for state in states)


def test_batch_norm_in_networks(run_ranks):
    run_ranks(2, rank_in_networks)


def rank_in_a_set():
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    rank = hvd.rank()
    rows = [numbers((2 + r, 3), r, torch.float32) for r in range(3)]
    batch = torch.cat([rows[0], rows[2]]) if rank != 1 else rows[1]
    norm = copy.deepcopy(hvd.SyncBatchNorm(3, process_set=pair))
    whole = nn.BatchNorm1d(3)
    want = whole(batch)
    close(norm(rows[rank]), {0: want[:2], 1: want, 2: want[2:]}[rank], torch.float32)
    close(norm.running_var, whole.running_var, torch.float32)


def test_batch_norm_of_a_process_set(run_ranks):
    run_ranks(3, rank_in_a_set)


def rank_has_half(missing):
    """Weight or bias alone, of another type than the input's, too."""
    hvd.init()
    for dtype in (torch.float32, torch.bfloat16):
        rows = numbers((6, 3), 5, dtype)
        sync, whole = hvd.SyncBatchNorm(3), nn.BatchNorm1d(3)
        for module in (sync, whole):
            setattr(module, missing, None)
        mine = rows[:2] if hvd.rank() == 0 else rows[2:]
        whole(rows).float().square().sum().backward()
        sync(mine).float().square().sum().backward()
        (one,), (other,) = sync.parameters(), whole.parameters()
        assert one.grad.dtype == torch.float32
        bound = 1e-5 if dtype == torch.float32 else 5e-2
        total = hvd.allreduce(one.grad, op=hvd.Sum)
        assert torch.allclose(total, other.grad, rtol=bound, atol=bound), (total, other.grad)
        frozen = hvd.SyncBatchNorm(3)
        getattr(frozen, missing).requires_grad_(False)
        frozen(mine).sum().backward()
        grads = {name: p.grad is not None for name, p in frozen.named_parameters()}
        assert grads == {"weight": missing != "weight", "bias": missing != "bias"}


@pytest.mark.parametrize("missing", ["weight", "bias"])
def test_batch_norm_with_weight_or_bias_alone(run_ranks, missing):
    run_ranks(2, rank_has_half, missing)


def rank_refusals():
    hvd.init()
    norm = hvd.SyncBatchNorm(3)
    for wrong in (torch.ones(3), torch.ones(2, 4)):
        with pytest.raises(ValueError, match="expected"):
            norm(wrong)
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match=f"floating-point input .got {dtype}"):
            norm(torch.ones(2, 3, dtype=dtype))
    rows = 1 if hvd.rank() == 0 else 0
    with pytest.raises(ValueError, match="more than 1 value per channel over all ranks"):
        norm(torch.ones(rows, 3))
    assert norm.num_batches_tracked == 0 and norm.running_var.tolist() == [1.0] * 3
    x = torch.randn(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_batch_norm_refuses_what_it_cannot(run_ranks):
    run_ranks(2, rank_refusals)


def rank_other_channels(widths):
    """As if the ranks had other models: none waits for a layer that the others do not have."""
    hvd.init()
    rank = hvd.rank()
    x = torch.ones(2, widths[rank], requires_grad=True)
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.SyncBatchNorm(widths[rank])(x)
    want = "has 4 channels on rank 0, where that of rank 2 has 3"
    assert want in str(caught.value) and caught.value.status_name == "ERR_MISMATCH"
    _, cause, first, other, _, name = caught.value.about
    assert (cause, first, other, name) == ("DESCRIPTION", 0, 2, "allgather.sync_batch_norm")
    for width in (4, 3, 4):  # the job goes on
        hvd.SyncBatchNorm(width)(torch.randn(2, width, requires_grad=True)).sum().backward()


def test_batch_norm_of_other_channels_fails_on_every_rank(run_ranks):
    run_ranks(3, rank_other_channels, [4, 4, 3])
