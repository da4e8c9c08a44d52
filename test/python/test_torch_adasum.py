# SPDX-License-Identifier: Apache-2.0
"""Adasum as an operation and in DistributedOptimizer, against the published formula in numpy."""

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import horon  # noqa: E402
import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def pair(a, b):
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b


def model(tensors):
    """The ranks split at the largest power of two below their number."""
    if len(tensors) == 1:
        return tensors[0]
    half = 1 << (len(tensors) - 1).bit_length() - 1
    return pair(model(tensors[:half]), model(tensors[half:]))


def numbers(rank, shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + rank)).to(dtype)


def expected(tensors):
    return torch.from_numpy(np.asarray(model([t.double().numpy() for t in tensors])))


def close(got, want, dtype):
    assert got.dtype == dtype and got.shape == want.shape
    bound = BOUNDS[dtype] * max(1.0, want.abs().max().item() if want.numel() else 1.0)
    assert ((got.double() - want).abs() <= bound).all(), (got, want)


def rank_formula(counts):
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    torch.set_num_threads(1 + rank)  # the bits are the same all the same
    bits = []
    for dtype in BOUNDS:
        for count in counts:
            shape = (count,) if count != 6 else (2, 1, 3)
            ranks = [numbers(r, shape, dtype) for r in range(size)]
            want, x = expected(ranks), ranks[rank].clone()
            got = hvd.allreduce(x, op=hvd.Adasum, name=f"a{count}{dtype}")
            close(got, want, dtype)
            assert x.equal(ranks[rank])
            assert hvd.allreduce_(x, op=hvd.Adasum) is x and x.equal(got)
            bits.append(got.double().numpy().tobytes())
    return bits


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
def test_adasum_is_the_published_formula_on_any_ranks(run_ranks, n):
    results = run_ranks(n, rank_formula, [0, 1, 6, 1025])
    assert all(result == results[0] for result in results)


def test_adasum_of_more_than_a_piece(run_ranks):
    results = run_ranks(2, rank_formula, [(1 << 20) + 3])
    assert results[0] == results[1]


def rank_known():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtype in BOUNDS:
        same = torch.tensor([3.0, -4.0], dtype=dtype)
        assert hvd.allreduce(same, op=hvd.Adasum).equal(same)  # counts once
        apart = torch.zeros(size, dtype=dtype)
        apart[rank] = rank + 1.0
        assert hvd.allreduce(apart, op=hvd.Adasum).tolist() == [r + 1.0 for r in range(size)]
        assert hvd.allreduce(torch.zeros(3, dtype=dtype), op=hvd.Adasum).tolist() == [0.0] * 3
        one = torch.tensor([2.0, 0.5], dtype=dtype) * (rank == size - 1)
        assert hvd.allreduce(one, op=hvd.Adasum).tolist() == [2.0, 0.5]  # among zeros
        tiny = torch.full((2,), torch.finfo(dtype).tiny, dtype=dtype)
        assert torch.isfinite(hvd.allreduce(tiny, op=hvd.Adasum)).all()
        assert torch.isnan(hvd.allreduce(same / 0 * 0 * (rank + 1), op=hvd.Adasum)).all()
    scaled = hvd.allreduce(same, op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.25)
    assert scaled.equal(same / 2)
    assert hvd.allreduce(torch.tensor(7.0), op=hvd.Adasum).shape == ()


@pytest.mark.parametrize("n", [2, 3])
def test_adasum_of_what_is_equal_apart_or_nothing(run_ranks, n):
    run_ranks(n, rank_known)


def rank_groups():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    shapes = [(5,), (2, 3), (4,)]
    ranks = [
        [numbers(r, shape, torch.float32, i) for i, shape in enumerate(shapes)] for r in range(size)
    ]
    wants = [expected([ranks[r][i] for r in range(size)]) for i in range(3)]
    mine = [t.clone() for t in ranks[rank]]
    for got, want in zip(hvd.grouped_allreduce(mine, op=hvd.Adasum), wants, strict=True):
        close(got, want, torch.float32)
    handle = hvd.grouped_allreduce_async_(mine, op=hvd.Adasum, name="g")
    other = hvd.allreduce_async(mine[0].t(), op=hvd.Sum)  # waited for in another order
    if rank:
        other.wait()
    for got, x, want in zip(handle.wait(), mine, wants, strict=True):
        assert got is x
        close(x, want, torch.float32)
    other.wait()
    strided = numbers(rank, (4, 3), torch.float32).t()
    want = expected([numbers(r, (4, 3), torch.float32).t() for r in range(size)])
    close(hvd.allreduce_(strided, op=hvd.Adasum), want, torch.float32)
    narrow = hvd.allreduce(ranks[rank][0], op=hvd.Adasum, compression=hvd.Compression.fp16)
    assert narrow.dtype == torch.float32 and (narrow - wants[0]).abs().max() < 0.01
    eight = numbers(rank, (1, 2, 1, 2, 1, 1, 1, 2), torch.float64)
    assert hvd.allreduce(eight, op=hvd.Adasum).shape == eight.shape


def test_adasum_of_groups_and_odd_tensors(run_ranks):
    run_ranks(3, rank_groups)


def rank_beside_joined(joined):
    """A rank that has joined gives zeros, in its own place."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()

    def given(seed, dtype=torch.float32):
        ranks = [numbers(r, (2, 5), dtype, seed) for r in range(size)]
        zeros = torch.zeros(2, 5, dtype=dtype)
        return ranks[rank], expected([zeros if r in joined else x for r, x in enumerate(ranks)])

    p = nn.Parameter(torch.zeros(2, 5))
    optimizer = torch.optim.SGD([p], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, [("p", p)], op=hvd.Adasum)
    if rank not in joined:
        for seed, dtype in enumerate(BOUNDS):
            x, want = given(seed, dtype)
            close(hvd.allreduce(x, op=hvd.Adasum), want, dtype)
            close(hvd.allreduce_(x, op=hvd.Adasum, name="a name"), want, dtype)
        a, b = given(10), given(11)
        for got, (_, want) in zip(
            hvd.grouped_allreduce([a[0], b[0]], op=hvd.Adasum), (a, b), strict=True
        ):
            close(got, want, torch.float32)
        x, want = given(12)
        (p * x).sum().backward()
        optimizer.step()
        close(p.detach(), -want, torch.float32)
    hvd.join()
    x = numbers(rank, (5,), torch.float32)  # and then all give again
    want = expected([numbers(r, (5,), torch.float32) for r in range(size)])
    close(hvd.allreduce(x, op=hvd.Adasum, name="a name"), want, torch.float32)


@pytest.mark.parametrize(("n", "joined"), [(2, [0]), (3, [1]), (4, [1]), (5, [1])])
def test_adasum_beside_joined_ranks_is_that_with_zeros(run_ranks, n, joined):
    run_ranks(n, rank_beside_joined, joined)


def rank_in_a_set():
    pair = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[pair])
    rank = hvd.rank()
    x = [numbers(r, (5,), torch.float32) for r in range(3)]
    if rank != 1:
        want = expected([x[0], x[2]])
        close(hvd.allreduce(x[rank], op=hvd.Adasum, process_set=pair), want, torch.float32)
    p = nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.SGD([p], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, [("p", p)], op=hvd.Adasum, process_set=pair)
    (p * x[rank]).sum().backward()
    optimizer.step()
    close(p.detach(), -want if rank != 1 else -x[1].double(), torch.float32)


def test_adasum_of_a_process_set(run_ranks):
    run_ranks(3, rank_in_a_set)


def rank_refused():
    hvd.init()
    x = torch.ones(2, requires_grad=True)
    for wrong in (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.bool)):
        with pytest.raises(ValueError, match="floating-point tensors"):
            hvd.allreduce(wrong, op=hvd.Adasum)
    with pytest.raises(ValueError, match="share an address"):
        hvd.allreduce_(torch.ones(1).expand(3), op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="no gradient"):
        hvd.allreduce(x, op=hvd.Adasum).sum().backward()
    with pytest.raises(NotImplementedError, match="no ADASUM of float"):
        horon.allreduce(1.0, op=horon.Adasum)
    with pytest.raises(hvd.HorovodInternalError):  # the ranks' tensors differ
        hvd.allreduce(torch.ones(2 + hvd.rank()), op=hvd.Adasum, name="sizes")
    for i, scales in enumerate(({"prescale_factor": 2.0}, {"postscale_factor": 0.5})):
        with pytest.raises(hvd.HorovodInternalError, match=r"groups differ"):
            others = scales if hvd.rank() else {}
            hvd.allreduce(torch.ones(2), op=hvd.Adasum, name=f"scales {i}", **others)
        both = hvd.allreduce(torch.ones(2), op=hvd.Adasum, name=f"scales {i}", **scales)
        assert both.tolist() == [*scales.values()] * 2
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def test_adasum_refuses_what_it_cannot(run_ranks):
    assert run_ranks(2, rank_refused) == [2.0, 2.0]


# ---- DistributedOptimizer ----


def make(kind):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    unused = nn.Parameter(torch.ones(2))
    for i, p in enumerate(net.parameters()):
        p.data = numbers(i, p.shape, torch.float32, 7)
    params = [*net.parameters(), unused]
    named = [(f"p{i}", p) for i, p in enumerate(params)]
    optimizer = {
        "sgd": lambda: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        "adam": lambda: torch.optim.AdamW(params, lr=0.01),
    }[kind]()
    return net, params, named, optimizer


def loss_of(net, rank, step):
    return net(numbers(rank, (5, 3), torch.float32, 50 + step)).square().mean() * (rank + 1)


def rank_deltas(kind, how):
    """A rank simulates all: their optimizers step alone, and the deltas are combined."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    net, params, named, optimizer = make(kind)
    options = {
        "plain": {},
        "fp16": {"compression": hvd.Compression.fp16},
        "groups": {"groups": 2},
        "lists": {"groups": [params[:2]]},
        "passes": {"backward_passes_per_step": 2},
        "closure": {},
    }[how]
    optimizer = hvd.DistributedOptimizer(optimizer, named, op=hvd.Adasum, **options)
    others = [make(kind) for _ in range(size)]
    for step in range(3):
        optimizer.zero_grad()
        if how == "closure":

            def closure(step=step):
                optimizer.zero_grad()
                loss = loss_of(net, rank, step)
                loss.backward()
                return loss

            assert optimizer.step(closure).item() == loss_of(others[rank][0], rank, step).item()
        else:
            for _ in range(options.get("backward_passes_per_step", 1)):
                loss_of(net, rank, step).backward()
            optimizer.step()
        deltas = []
        for r, (other, its, _, alone) in enumerate(others):
            start = [p.detach().clone() for p in its]
            alone.zero_grad()
            for _ in range(options.get("backward_passes_per_step", 1)):
                loss_of(other, r, step).backward()
            alone.step()
            deltas.append([p.detach() - s for p, s in zip(its, start, strict=True)])
            for p, s in zip(its, start, strict=True):
                p.data.copy_(s)
        for i, p in enumerate(params):
            move = expected([deltas[r][i] for r in range(size)]).float()
            for _, its, _, _ in others:
                its[i].data.add_(move)
            bound = 2e-3 if how == "fp16" else 2e-6
            assert (p - others[0][1][i]).abs().max() <= bound
            for _, its, _, _ in others:  # differences do not add up
                its[i].data.copy_(p)
    assert optimizer.op == hvd.Adasum and optimizer._handles == {}
    assert optimizer._requires_update == (set(params) if size > 1 else set())
    return [p.tolist() for p in params]


@pytest.mark.parametrize("how", ["plain", "fp16", "groups", "lists", "passes", "closure"])
def test_adasum_optimizer_combines_what_ranks_move(run_ranks, how):
    results = run_ranks(2, rank_deltas, "sgd", how)
    assert results[0] == results[1]


@pytest.mark.parametrize("n", [1, 3])
def test_adasum_optimizer_of_any_ranks(run_ranks, n):
    results = run_ranks(n, rank_deltas, "adam", "plain")
    assert all(result == results[0] for result in results)


class Breaks(torch.optim.SGD):
    broken = False

    def step(self, closure=None):
        super().step(closure)
        if self.broken:
            raise OSError("broken")


def rank_failing_step():
    hvd.init()
    rank = hvd.rank()
    p = nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(Breaks([p], lr=0.5), [("p", p)], op=hvd.Adasum)
    with pytest.raises(AssertionError, match="not supported when using Adasum"):
        with optimizer.skip_synchronize():
            pass
    optimizer.synchronize()
    p.square().sum().backward()
    optimizer.broken = rank == 1
    with pytest.raises(OSError if rank == 1 else hvd.HorovodInternalError, match="broken"):
        optimizer.step()
    assert p.tolist() == [1.0] * 3  # nobody takes it
    optimizer.broken = False
    optimizer.step()
    assert p.tolist() == [0.0] * 3


def test_adasum_optimizer_step_fails_on_all_or_none(run_ranks):
    run_ranks(2, rank_failing_step)


def rank_moved_model():
    """By double() and the like, after it was wrapped."""
    hvd.init()
    net = nn.Linear(3, 1, bias=False)
    nn.init.constant_(net.weight, 4.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), op=hvd.Adasum)
    for dtype, after in ((torch.float64, 3.5), (torch.bfloat16, 3.0), (torch.float32, 2.5)):
        net.to(dtype)
        net.weight.grad = torch.ones_like(net.weight)
        optimizer.step()
        assert net.weight.dtype == dtype and net.weight.tolist() == [[after] * 3]
        optimizer.zero_grad()
    net.double()
    net.weight.grad = torch.ones_like(net.weight)
    if hvd.rank() == 0:  # it lacks the memory for a copy

        def no_copy():
            raise RuntimeError("no room")

        net.weight.clone = no_copy
    with pytest.raises(Exception, match="no room"):
        optimizer.step()
    assert net.weight.tolist() == [[2.5] * 3]


def test_adasum_optimizer_follows_a_model_to_other_types(run_ranks):
    run_ranks(2, rank_moved_model)


def rank_scaling(unscale):
    """An inf of one rank alone: that rank would skip the step."""
    hvd.init()
    p = nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.5), [("p", p)], op=hvd.Adasum)
    for enabled in (True, False):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=enabled)
        optimizer.zero_grad()
        factor = float("inf") if enabled and hvd.rank() == 0 else 1.0
        scaler.scale(p.sum() * factor).backward()
        if unscale:
            scaler.unscale_(optimizer)
        if enabled:
            with pytest.raises(NotImplementedError, match=r"GradScaler.* op=Adasum"):
                scaler.step(optimizer)
            assert p.tolist() == [1.0] * 3
        else:
            scaler.step(optimizer)
    assert p.tolist() == [0.5] * 3


@pytest.mark.skipif(
    not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"), reason="old torch"
)
@pytest.mark.parametrize("unscale", [False, True])
def test_adasum_optimizer_refuses_a_grad_scaler(run_ranks, unscale):
    run_ranks(2, rank_scaling, unscale)
