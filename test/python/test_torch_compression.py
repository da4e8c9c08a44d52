# SPDX-License-Identifier: Apache-2.0
"""Gradients as halves; compressors of the application, such as one that fails on one rank."""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def rank_averages_large_numbers():
    """Their sum does not fit into 16 bits."""
    hvd.init()
    mean = hvd.allreduce(torch.full((5,), 60000.0), compression=hvd.Compression.fp16)
    assert mean.dtype == torch.float32 and mean.eq(60000.0).all()
    weight = nn.Parameter(torch.zeros(5))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), [("w", weight)], compression=hvd.Compression.fp16
    )
    (weight * 60000.0).sum().backward()
    optimizer.step()
    assert weight.eq(-60000.0).all()


def test_average_of_compressed_gradients_that_fits_does_not_overflow(run_ranks):
    run_ranks(4, rank_averages_large_numbers)


class Halves(hvd.Compression.fp16):
    broken = False
    stuck = False

    @classmethod
    def compress(cls, tensor):
        if cls.broken:
            raise RuntimeError("no room")
        return super().compress(tensor)

    @classmethod
    def decompress(cls, tensor, ctx):
        if cls.stuck:
            raise RuntimeError("no way back")
        return tensor.to(ctx)


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
    told = r"gradients failed( on rank 1)?: the gradient of [012]: no room"
    with pytest.raises(RuntimeError, match=told):
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


class Failing(hvd.Compression.none):
    error = None

    @classmethod
    def compress(cls, tensor):
        raise cls.error


def rank_compressor_says(error):
    """What a text says by chance is not taken for the gradient's name."""
    hvd.init()
    Failing.error = error
    p = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([p], lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, [("o", p)], compression=Failing)
    with pytest.raises(type(error), match="no room"):
        p.sum().backward()
    with pytest.raises(RuntimeError, match=r"gradients failed: the gradient of o: no room$"):
        optimizer.step()


@pytest.mark.parametrize(
    "error", [RuntimeError("no room"), AttributeError("no room", name="o")], ids=repr
)
def test_the_gradient_is_named_whatever_the_compressor_says(run_ranks, error):
    run_ranks(2, rank_compressor_says, error)


def rank_decompressor_fails(groups, again):
    """The other rank has taken the step then: this one takes it, too, or the next one fails."""
    hvd.init()
    p = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    named = [(str(i), q) for i, q in enumerate(p)]
    inner = torch.optim.SGD(p, lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, named, compression=Halves, groups=groups)

    def backward():
        optimizer.zero_grad()
        sum(q.sum() for q in p).backward()

    backward()
    if hvd.rank() == 1:
        Halves.stuck = True
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"gradient of . was exchanged.* no way back"):
                optimizer.step()
        Halves.stuck = False
        if again:
            optimizer.step()
    else:
        optimizer.step()
    backward()
    if not again:
        with pytest.raises(RuntimeError, match=r"gradients failed( on rank 1)?: .* has dropped"):
            optimizer.step()
        hvd.broadcast_parameters(dict(named), 0)
        backward()
    optimizer.step()
    assert all(q.tolist() == [-1.0, -1.0] for q in p)


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("again", [False, True])
def test_a_decompressor_that_fails_on_one_rank_is_told_to_all(run_ranks, groups, again):
    run_ranks(2, rank_decompressor_fails, groups, again)


def rank_slips():
    """-> what is said of a compression that is none, and of tensors without elements"""
    hvd.init()
    p = nn.Parameter(torch.ones(2))
    sgd = torch.optim.SGD([p], lr=1.0)
    for call in (
        lambda: hvd.allreduce(p, compression=3),
        lambda: hvd.grouped_allreduce([p], compression=3),
        lambda: hvd.reducescatter(p, compression=3),
        lambda: hvd.DistributedOptimizer(sgd, [("p", p)], compression=3),
    ):
        with pytest.raises(TypeError, match="compression has to be"):
            call()
    meta = torch.ones(3, device="meta")
    for call, name in (
        (lambda: hvd.allreduce(meta, name="x"), "'allreduce.x'"),
        (lambda: hvd.allgather(meta, name="x"), "'allgather.x'"),
        (lambda: hvd.broadcast_(meta, 0, name="x"), "'broadcast.x'"),
        (lambda: hvd.grouped_allreduce([p, meta], name="g"), r"'allreduce.g\[1\]'"),
    ):
        with pytest.raises(ValueError, match=f"{name} was refused: .* not one on the meta device"):
            call()
    return hvd.allreduce(torch.ones(1), name="x").item()


def test_slips_name_the_argument_and_the_tensor(run_ranks):
    assert run_ranks(2, rank_slips) == [1.0, 1.0]


WIRE = {hvd.Compression.fp16: torch.float16, hvd.Compression.bf16: torch.bfloat16}


@pytest.mark.parametrize("compression", WIRE)
def test_compression_narrows_wide_floats_alone(compression):
    narrow = (torch.float16, torch.bfloat16, torch.bool)
    whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    for dtype in (torch.float32, torch.float64, *narrow, *whole):
        tensor = torch.ones((5,) * 3, dtype=dtype)
        sent, ctx = compression.compress(tensor)
        wide = dtype in (torch.float32, torch.float64)
        assert sent.dtype == (WIRE[compression] if wide else dtype)
        assert compression.decompress(sent, ctx).dtype == dtype
        assert compression.decompress(sent, ctx).equal(tensor)
