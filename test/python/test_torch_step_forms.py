# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer.step() with a closure, which may raise, in skip_synchronize() and in
inference mode."""

import copy

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


class Sharpness(torch.optim.SGD):
    """Moves by the gradients at hand, and back once the closure has computed those there (SAM)."""

    def step(self, closure=None):
        (p,) = self.param_groups[0]["params"]
        was, moved_by = p.detach().clone(), p.grad.clone()
        with torch.no_grad():
            p.add_(moved_by)
        self.zero_grad()
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            p.copy_(was)
        return super().step()


def rank_gradients_before_the_closure(op):
    """They are exchanged before the update, and what the closure does not compute anew only once.

    The gradient of p**2 * weight is 2 * weight * p, and that of the ranks 2 * total * p.
    """
    hvd.init()
    p = nn.Parameter(torch.ones(1))
    total = {hvd.Sum: 3.0, hvd.Average: 1.5}[op]

    def compute():
        loss = (p**2 * (1.0 + hvd.rank())).sum()
        loss.backward()
        return loss

    optimizer = hvd.DistributedOptimizer(Sharpness([p], lr=1.0), [("p", p)], op=op)
    compute()
    optimizer.step(compute)
    assert p.item() == 1 - 2 * total * (1 + 2 * total)
    p.data.fill_(1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=op)
    for synchronized in (False, True):
        optimizer.zero_grad()
        loss = compute()
        before = p.item()
        if synchronized:
            optimizer.synchronize()
            with pytest.warns(UserWarning, match="not exchanged again"):
                optimizer.step(lambda loss=loss: loss)
        else:
            optimizer.step(lambda loss=loss: loss)
        assert p.item() == before * (1 - 2 * total)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_gradients_are_exchanged_once_before_a_closure(run_ranks, op):
    run_ranks(2, rank_gradients_before_the_closure, op)


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


class Named(torch.optim.SGD):
    """Has an argument and an attribute of its own that horon might take for its own."""

    _steps = 0

    def step(self, closure=None, step=1):
        self._steps += step
        return super().step(closure)


def rank_skipping_by_the_attribute():
    """As scripts written for Horovod do: the attribute in place of skip_synchronize()."""
    hvd.init()
    p = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(Named([p], lr=1.0), [("p", p)])
    assert optimizer._should_synchronize
    (p * (1.0 + hvd.rank())).sum().backward()
    optimizer.synchronize()
    optimizer._should_synchronize = False
    optimizer.step(step=3)
    optimizer._should_synchronize = True
    assert optimizer._steps == 3
    assert p.tolist() == [1.0 - (1 + hvd.size()) / 2] * 2


@pytest.mark.filterwarnings("error")
def test_horovods_attribute_skips_the_exchange(run_ranks):
    run_ranks(2, rank_skipping_by_the_attribute)


def rank_wrapped_alone():
    """It has no hooks, and would train for itself; after another init() it is told."""
    hvd.init(rank=0, size=1)
    p = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([p], lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, [("p", p)])
    p.grad = torch.ones(2)
    optimizer.step()
    hvd.shutdown()
    optimizer.step()
    assert p.tolist() == [-1.0, -1.0]
    hvd.init()
    for step in (optimizer.synchronize, optimizer.step, lambda: optimizer.step(lambda: None)):
        with pytest.raises(RuntimeError, match="wrapped when there was no other rank"):
            step()
    p.grad = torch.full((2,), 1.0 + hvd.rank())
    hvd.DistributedOptimizer(inner, [("p", p)]).step()
    assert p.tolist() == [-1.0 - (1 + hvd.size()) / 2] * 2


def test_an_optimizer_of_one_rank_does_not_train_alone_beside_others(run_ranks):
    run_ranks(2, rank_wrapped_alone)


def rank_in_inference_mode(options):
    """Torch does not count changes of what is made in it, and lets nobody write it outside."""
    hvd.init()
    p = {name: nn.Parameter(torch.zeros(2)) for name in "ab"}
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(p.values(), lr=1.0), p.items(), **options)
    with torch.inference_mode():
        optimizer.step()
    assert all(q.grad.tolist() == [0.0, 0.0] for q in p.values())
    optimizer.zero_grad(set_to_none=False)  # the zeros that step() has made are as any gradient
    with torch.inference_mode():
        for q in p.values():
            q.grad = torch.full_like(q, 2.0 * hvd.rank())
    optimizer.step()
    assert all(q.tolist() == [-1.0, -1.0] for q in p.values())


@pytest.mark.parametrize(
    "options", [{}, {"groups": 1}, {"compression": hvd.Compression.fp16}], ids=str
)
def test_steps_and_gradients_of_inference_mode(run_ranks, options):
    run_ranks(2, rank_in_inference_mode, options)


def rank_zeroes_what_others_step_with(alone):
    """After synchronize() one rank, or each, clears the gradients, and steps with none."""
    hvd.init()
    p = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([p], lr=1.0, weight_decay=0.5)
    optimizer = hvd.DistributedOptimizer(inner, [("p", p)], op=hvd.Sum)
    zeroes = not alone or hvd.rank() == 1

    def compute():
        (p * (1.0 + hvd.rank())).sum().backward()

    compute()
    optimizer.synchronize()
    if zeroes:
        optimizer.zero_grad()
    if not alone:
        optimizer.step()
        assert p.tolist() == [0.5, 0.5] and p.grad.tolist() == [0.0, 0.0]  # it has decayed
        return
    if not zeroes:
        optimizer.step()
        optimizer.zero_grad()
        compute()
    with pytest.raises(hvd.HoronInternalError, match=r"rank 1 has .* rank 0 has step") as caught:
        optimizer.step()
    assert (caught.value.rank, caught.value.other_rank) == (0, 1)
    optimizer.zero_grad()
    hvd.broadcast_parameters([("p", p)], root_rank=0)
    compute()
    optimizer.step()
    assert p.tolist() == [-4.25, -4.25]  # 1 - 3.5, less a half of it, and 3


@pytest.mark.parametrize("alone", [False, True])
def test_gradients_that_one_rank_clears_after_synchronize(run_ranks, alone):
    run_ranks(2, rank_zeroes_what_others_step_with, alone)


def rank_lacks_a_batch_after_a_dropped_step(with_closure, clears_there):
    """All ranks drop a step, and clear its gradients without the optimizer; then one has none."""
    hvd.init()
    p = nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum)
    p.sum().backward()
    optimizer.synchronize()
    p.grad = p.grad if clears_there else None  # as model.zero_grad()

    def compute():
        p.grad = None
        if hvd.rank() == 1:
            (p * 3.0).sum().backward()

    if with_closure:
        optimizer.step(compute)
    else:
        compute()
        optimizer.step()
    assert p.tolist() == [-2.0]


@pytest.mark.parametrize(
    ("with_closure", "clears_there"), [(False, False), (True, False), (True, True)]
)
def test_a_rank_without_a_batch_after_a_step_that_all_drop(run_ranks, with_closure, clears_there):
    run_ranks(2, rank_lacks_a_batch_after_a_dropped_step, with_closure, clears_there)


def rank_drops_a_step_alone():
    """It has gradients of its own in the next one, so that the ranks are in one step."""
    hvd.init()
    p = nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum)
    for step in range(2):
        (p * (1.0 + hvd.rank())).sum().backward()
        optimizer.synchronize()
        if step == 1 or hvd.rank() == 0:
            with optimizer.skip_synchronize():
                optimizer.step()
        optimizer.zero_grad()
    assert p.tolist() == [-5.0 if hvd.rank() == 0 else -2.0]


def test_a_step_that_one_rank_drops_after_synchronize(run_ranks):
    run_ranks(2, rank_drops_a_step_alone)


def rank_owner_hands_its_step_on():
    """Rank 0 alone updates, and rank 1, which drops what it was given, lacks the next batch: each
    calls synchronize() itself, so that both are in the same step."""
    hvd.init()
    p = nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum)
    for step in range(2):
        if step == 0 or hvd.rank() == 0:
            p.sum().backward()
        optimizer.synchronize()
        if hvd.rank() == 0:
            with optimizer.skip_synchronize():
                optimizer.step()
        optimizer.zero_grad()
        hvd.broadcast_parameters([("p", p)], root_rank=0)
    assert p.tolist() == [-2.0]


def test_a_step_of_one_rank_that_hands_it_on(run_ranks):
    run_ranks(2, rank_owner_hands_its_step_on)


def rank_alone_steps_after_synchronize():
    """It is warned as beside others, and so is a copy, which is allowed where nothing is
    exchanged."""
    hvd.init()
    p = nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
    for one in (optimizer, copy.deepcopy(optimizer)):
        (q,) = one.param_groups[0]["params"]
        q.sum().backward()
        one.synchronize()
        with pytest.warns(UserWarning, match="without optimizer.skip_synchronize"):
            one.step()
        assert q.tolist() == [0.0]


def test_steps_of_one_rank_after_synchronize(run_ranks):
    run_ranks(1, rank_alone_steps_after_synchronize)
