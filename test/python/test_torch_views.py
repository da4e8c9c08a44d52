# SPDX-License-Identifier: Apache-2.0
"""Gradients that share memory, so that torch counts their changes together: what is written to one
on its way is found, and what may be written is not taken for it."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def distributed(p, **options):
    """SGD with lr 1, so that a step subtracts the gradient."""
    if options.get("compression") == "fp16":
        options["compression"] = hvd.Compression.fp16
    return hvd.DistributedOptimizer(torch.optim.SGD(p.values(), lr=1.0), p.items(), **options)


def loss_of(p, *names, scale=1):
    return sum(p[name].sum() * scale for name in names or p)


def cut(p, buffer, detached=False):
    """The gradients become parts of the buffer, two elements each."""
    for q, part in zip(p.values(), buffer.split(2), strict=False):
        q.grad = part.detach() if detached else part


def cut_by_torch(p):
    """As torch itself does it: they share a counter, and none is a view."""
    torch.cat(list(p.values())).square().sum().backward()
    assert len({q.grad.untyped_storage().data_ptr() for q in p.values()}) == 1
    assert not any(q.grad._is_view() for q in p.values())


KINDS = ("views", "detached", "joined")


def sharing(kind, names="abc"):
    """-> parameters of ones, and memory that holds nothing but their gradients, zeros"""
    p = {name: nn.Parameter(torch.ones(2)) for name in names}
    if kind == "joined":
        cut_by_torch(p)
    else:
        cut(p, torch.zeros(2 * len(names)), kind == "detached")
    first = p[names[0]].grad
    buffer = torch.empty(0).set_(first.untyped_storage(), 0, (2 * len(names),))
    buffer.zero_()
    return p, buffer


def assert_all(tensor, value):
    torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, value))


def assert_trains(optimizer, p, passes=1):
    """A usual step, with gradients where they are, is taken, and right."""
    before = [q.detach().clone() for q in p.values()]
    optimizer.zero_grad(set_to_none=False)
    for _ in range(passes):
        loss_of(p, scale=1 + hvd.rank()).backward()
    optimizer.step()
    for q, old in zip(p.values(), before, strict=True):
        assert_all(old - q, passes * (1 + hvd.size()) / 2)


# ---- What is found ----


def double(p):
    p["b"].grad.mul_(2)


def double_part(p):
    p["c"].grad[:1].mul_(2)


def clip(p):
    nn.utils.clip_grad_norm_(p.values(), 1e-3)


def clip_together(p):
    nn.utils.clip_grad_norm_(p.values(), 1e-3, foreach=True)


def clear(p):
    for q in p.values():
        q.grad.zero_()


OPTIONS = (
    {},
    {"groups": 1},
    {"groups": 2},
    {"compression": "fp16"},
    {"gradient_predivide_factor": 2.0},
    {"backward_passes_per_step": 2},
)


def rank_writing(kind, change, everywhere, options):
    hvd.init()
    p, _ = sharing(kind)
    optimizer = distributed(p, **options)
    passes = options.get("backward_passes_per_step", 1)
    for _ in range(2):
        assert_trains(optimizer, p, passes)
        before = p["a"].detach().clone()
        optimizer.zero_grad(set_to_none=False)
        for _ in range(passes):
            loss_of(p).backward()
        if everywhere or hvd.rank() == 1:
            change(p)
        told = r"gradient of a, b or c, which share a buffer, was changed after backward"
        where = "failed: the" if everywhere or hvd.rank() == 1 else "failed on rank 1: the"
        with pytest.raises(RuntimeError, match=f"{where} {told}"):
            optimizer.step()
        assert torch.equal(p["a"], before)


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("change", [double, double_part, clip, clip_together, clear])
def test_a_view_written_on_its_way_fails_the_step_of_all(run_ranks, change, everywhere):
    run_ranks(2, rank_writing, "views", change, everywhere, {})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_shares_memory_and_is_written_fails_the_step_of_all(run_ranks, kind, options):
    run_ranks(2, rank_writing, kind, clip, False, options)


def rank_writing_the_buffer():
    """Nor need it be a gradient that is written."""
    hvd.init()
    p, _ = sharing("views")
    optimizer = distributed(p)
    loss_of(p).backward()
    p["a"].grad._base.mul_(2)
    with pytest.raises(RuntimeError, match="gradient of a, b or c, which share a buffer, was"):
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert_trains(optimizer, p)


def test_the_buffer_written_while_its_views_are_on_their_way(run_ranks):
    run_ranks(2, rank_writing_the_buffer)


def rank_many():
    hvd.init()
    p, _ = sharing("views", "abcdefghijkl")
    optimizer = distributed(p)
    loss_of(p).backward()
    p["a"].grad.mul_(2)
    with pytest.raises(RuntimeError, match="of a, b, c, d, e, f, g, h or one of 4 more, which"):
        optimizer.step()


def test_a_long_list_of_names_is_cut(run_ranks):
    run_ranks(2, rank_many)


# ---- The rule itself ----


def written(*slots):
    """As (gradient, version that was noted)."""
    from horon.torch.versions import written

    slots = [
        SimpleNamespace(sent=sent, version=version, memory=sent.untyped_storage(), at=i)
        for i, (sent, version) in enumerate(slots)
    ]
    return [slot.at for slot in written(slots)]


def test_written_is_what_has_risen_since_the_last_note():
    buffer = torch.zeros(6)
    a, b, c = buffer.split(2)
    assert written((a, 0), (b, 0), (c, 0)) == []
    buffer.add_(1)
    buffer.add_(1)
    assert written((a, 0), (b, 2), (c, 1)) == []
    assert written((a, 0), (b, 1), (c, 1)) == [0, 1, 2]
    assert written((a, 0), (c, 1)) == written((b, 0), (c, 1)) == written((a, 0), (b, 1)) == []


def test_written_looks_at_each_memory_by_itself():
    first, second = torch.zeros(4), torch.zeros(4)
    a, b = first.split(2)
    first.add_(1)
    assert written((second, 0), (a, 0), (b, 1)) == []
    assert written((second, 0), (a, 0), (b, 0)) == [1, 2]
    second.add_(1)
    assert written((second, 0), (a, 0), (b, 1)) == [0]


def test_written_knows_counters_of_their_own_over_one_memory():
    buffer = torch.zeros(4)
    a, b = (part.data for part in buffer.split(2))
    a.add_(1)
    assert written((a, 0), (b, 0)) == [0]
    assert written((a, 1), (b, 0)) == []


@pytest.mark.parametrize(
    "parts, fill",
    [
        (lambda t: (t[:2], t[2:]), True),
        (lambda t: (t[:3], t[1:]), True),
        (lambda t: (t[:2], t[3:]), False),
        (lambda t: (t[1:2], t[2:]), False),
        (lambda t: (t[:1], t[1:3]), False),
        (lambda t: (t[:2], t[:2]), False),
        (lambda t: (t.t(), t[:0]), True),
        (lambda t: (t[:, :1], t[:, 1:]), False),
        (lambda t: (t[:1].expand(4, 3), t[:0]), False),
        (lambda t: (t.as_strided((2, 2, 3), (2, 2, 3)), t[:0]), False),
    ],
)
def test_written_says_nothing_of_memory_that_holds_more(parts, fill):
    memory = torch.zeros(4, 3)
    slots = parts(memory)
    memory.add_(1)
    assert written(*((slot, 0) for slot in slots)) == ([0, 1] if fill else [])
