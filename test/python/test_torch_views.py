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


# ---- What may be written ----


def rank_backwards(kind, options, orders):
    """Backward adds to one gradient when another is on its way."""
    hvd.init()
    p, buffer = sharing(kind)
    optimizer = distributed(p, **options)
    for step in (1, 2):
        optimizer.zero_grad(set_to_none=False)
        for names in orders:
            loss_of(p, *names, scale=1 + hvd.rank()).backward()
        optimizer.step()
        passes = options.get("backward_passes_per_step", 1)
        assert_all(buffer, 1.5 * passes)
        assert_all(p["b"], 1.0 - 1.5 * passes * step)


@pytest.mark.parametrize("orders", [("abc",), ("cba",), ("a", "b", "c"), ("bc", "a")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_backward_adds_to_what_shares_memory(run_ranks, kind, orders):
    run_ranks(2, rank_backwards, kind, {}, orders)


@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_options_with_what_shares_memory(run_ranks, kind, options):
    run_ranks(2, rank_backwards, kind, options, ("ab", "c"))


@pytest.mark.parametrize("orders", [("abc", "cba"), ("a", "a", "bc", "cb"), ("ab", "ac", "cb")])
@pytest.mark.parametrize("kind", KINDS)
def test_passes_with_what_shares_memory(run_ranks, kind, orders):
    run_ranks(2, rank_backwards, kind, {"backward_passes_per_step": 2}, orders)


def rank_clipping(kind, options):
    hvd.init()
    p, buffer = sharing(kind)
    optimizer = distributed(p, **options)
    for step in (1, 2):
        optimizer.zero_grad(set_to_none=False)
        loss_of(p, scale=1 + hvd.rank()).backward()
        optimizer.synchronize()
        buffer.mul_(2)
        clip(p)
        buffer.fill_(0.25)
        with optimizer.skip_synchronize():
            optimizer.step()
        assert_all(p["b"], 1.0 - 0.25 * step)


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_after_synchronize_is_taken(run_ranks, kind, options):
    run_ranks(2, rank_clipping, kind, options)


def rank_clearing_between_passes(kind):
    hvd.init()
    p, buffer = sharing(kind)
    optimizer = distributed(p, backward_passes_per_step=2)
    loss_of(p).backward()
    clip(p)
    buffer.fill_(7.0)
    optimizer.zero_grad(set_to_none=False)
    assert_trains(optimizer, p, passes=2)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_between_passes_is_taken(run_ranks, kind):
    run_ranks(2, rank_clearing_between_passes, kind)


def rank_hooked(kind):
    """A hook that was there before the optimizer's changes what is not on its way yet."""
    hvd.init()
    p, buffer = sharing(kind)

    def hook(q):
        q.grad.mul_(2)

    for q in p.values():
        q.register_post_accumulate_grad_hook(hook)
    optimizer = distributed(p)
    loss_of(p, scale=1 + hvd.rank()).backward()
    optimizer.step()
    assert_all(buffer, 3.0)
    assert_all(p["c"], -2.0)


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), reason="old torch"
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_earlier_hooks_write_is_taken(run_ranks, kind):
    run_ranks(2, rank_hooked, kind)


def rank_setting_one(kind, users):
    """A gradient that no pass has computed may be made by hand, and goes in step()."""
    hvd.init()
    p, buffer = sharing(kind)
    optimizer = distributed(p)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        names = "abc" if hvd.rank() in users else "ab"
        loss_of(p, *names).backward()
        if hvd.rank() not in users:
            p["c"].grad.fill_(3.0)
        optimizer.step()
        assert_all(buffer[:4], 1.0)
        assert_all(buffer[4:], (len(users) + 3.0 * (hvd.size() - len(users))) / hvd.size())


@pytest.mark.parametrize("users", [(), (0,)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_on_its_way_may_be_written(run_ranks, kind, users):
    run_ranks(2, rank_setting_one, kind, users)


def rank_of_two_optimizers(kind, lone):
    """One gradient of each memory is another optimizer's, or nobody's: it is not looked at."""
    hvd.init()
    p, _ = sharing(kind, "abcd")
    other = p.pop("b")
    first = distributed(p)
    second = torch.optim.SGD([other], lr=1.0) if lone else distributed({"b": other})
    for step in (1, 2):
        ((loss_of(p) + other.sum()) * (1 + hvd.rank())).backward()
        if lone:
            other.grad.mul_(2)
            second.step()
            second.zero_grad(set_to_none=False)
        first.step()
        first.zero_grad(set_to_none=False)
        if not lone:
            second.step()
            second.zero_grad(set_to_none=False)
            assert_all(other, 1.0 - 1.5 * step)
        assert_all(p["d"], 1.0 - 1.5 * step)


@pytest.mark.parametrize("lone", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_two_optimizers_share(run_ranks, kind, lone):
    run_ranks(2, rank_of_two_optimizers, kind, lone)


def rank_padded():
    """Between gradients there may be anything."""
    hvd.init()
    p = {name: nn.Parameter(torch.ones(2)) for name in "ab"}
    buffer = torch.zeros(5)
    p["a"].grad, p["b"].grad = buffer[:2], buffer[3:]
    optimizer = distributed(p)
    for _ in range(2):
        assert_trains(optimizer, p)
        loss_of(p).backward()
        buffer[2:3].add_(1)
        optimizer.step()
        assert p["a"].equal(p["b"])


def test_what_lies_between_gradients_may_be_written(run_ranks):
    run_ranks(2, rank_padded)


def rank_mixed():
    """A sparse gradient, one by itself and views, one of which turns around."""
    hvd.init()
    table = nn.Embedding(4, 2, sparse=True)
    p = {"a": nn.Parameter(torch.ones(2, 3)), "b": nn.Parameter(torch.ones(2))}
    buffer = torch.zeros(8)
    p["a"].grad, p["b"].grad = buffer[:6].view(3, 2).t(), buffer[6:]
    p["c"], p["table"] = nn.Parameter(torch.ones(3)), table.weight
    optimizer = distributed(p)

    def backward():
        buffer.zero_()
        p["c"].grad = table.weight.grad = None
        (loss_of(p, *"abc") + table(torch.tensor([hvd.rank()])).sum()).backward()

    for step in (1, 2):
        backward()
        optimizer.step()
        assert_all(p["a"], 1.0 - step)
    backward()
    p["b"].grad.mul_(2)
    with pytest.raises(RuntimeError, match="gradient of a or b, which share a buffer, was"):
        optimizer.step()
    for other in ("c", "table"):
        backward()
        p[other].grad.mul_(2)
        with pytest.raises(RuntimeError, match=f"gradient of {other} was changed"):
            optimizer.step()


def test_sparse_and_turned_gradients_beside_views(run_ranks):
    run_ranks(2, rank_mixed)


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
