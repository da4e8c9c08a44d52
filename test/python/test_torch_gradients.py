# SPDX-License-Identifier: Apache-2.0
"""Gradients of gradients, and gradients of operations with long names."""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def gathering(x):
    return hvd.allgather(x, name="gather")


def gathering_together(x):
    return hvd.grouped_allgather([x, 2 * x], name="together")[0]


def casting(x):
    return hvd.broadcast(x, 0, name="cast")


def summing(x):
    return hvd.allreduce(x, name="sum", op=hvd.Sum)


def rank_second_gradient(function, kind):
    """As if one process held all ranks' inputs, and the sum of the ranks' objectives for allreduce,
    their mean for allgather and broadcast, as with Horovod."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    inputs = [torch.tensor([1.0 + r, 2.0, 3.0 - r], dtype=torch.float64) for r in range(size)]
    if kind == "complex":
        inputs = [torch.complex(x, 1 - x) for x in inputs]
    x = inputs[rank].clone().requires_grad_()
    y = function(x)
    (g,) = torch.autograd.grad((y.abs() ** 4).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad((g.abs() ** 2).sum(), x)

    alone = [z.clone().requires_grad_() for z in inputs]
    if function is summing:
        outputs = [sum(alone)] * size
    elif function is casting:
        outputs = [alone[0]] * size
    else:
        outputs = [torch.cat(alone)] * size
    parts = 1 if function is summing else size
    total = sum((y.abs() ** 4).sum() for y in outputs) / parts
    gradients = torch.autograd.grad(total, alone, create_graph=True, allow_unused=True)
    gradients = [
        torch.zeros_like(z) if g is None else g for g, z in zip(gradients, alone, strict=False)
    ]
    torch.testing.assert_close(g, gradients[rank])
    penalty = sum((g.abs() ** 2).sum() for g in gradients) / parts
    wanted = torch.autograd.grad(penalty, alone, allow_unused=True)[rank]
    torch.testing.assert_close(h, torch.zeros_like(h) if wanted is None else wanted)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("function", [gathering, gathering_together, casting, summing])
def test_second_gradient(run_ranks, n, function, kind):
    if function is summing and kind == "complex":
        pytest.skip("horon does not add complex numbers")
    run_ranks(n, rank_second_gradient, function, kind)


def rank_long_name_in_backward():
    """A name that has just room for itself has a gradient, too."""
    hvd.init()
    for length in (400, 501, 505, 1000):
        x = torch.ones(2, requires_grad=True)
        (hvd.allreduce(x, name="n" * length, op=hvd.Sum).sum()).backward()
        (hvd.allgather(x, name="n" * length).sum()).backward()
        assert x.grad.tolist() == [hvd.size() + 1.0] * 2
        handle = hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), name="s" * length, op=hvd.Sum)
        assert handle.wait().to_dense().equal(torch.eye(2) * hvd.size())
    p = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([p], lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, [("p" * 600, p)])
    (p.sum() * hvd.rank()).backward()
    optimizer.step()
    assert p.tolist() == [0.5] * 2


def test_long_names_have_gradients(run_ranks):
    run_ranks(2, rank_long_name_in_backward)


def rank_changes_results():
    """Results are the caller's own: in place means the same as for any tensor."""
    hvd.init()
    size = hvd.size()
    verbs = {
        "allgather": hvd.allgather,
        "grouped_allgather": lambda x: hvd.grouped_allgather([x])[0],
        "alltoall": hvd.alltoall,
        "reducescatter": hvd.reducescatter,
        "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x])[0],
    }
    for name, verb in verbs.items():
        x = torch.ones(2 * size, 3, requires_grad=True)
        y = verb(x)
        y.mul_(3)
        assert (y == 3).all(), name
        y.sum().backward()
        assert (x.grad == 3).all(), name
    three = torch.full((1,), 3.0, requires_grad=True)
    silent = {**verbs, "adasum": lambda x: hvd.allreduce(x, op=hvd.Adasum)}
    for name, verb in silent.items():
        with torch.no_grad():
            y = verb(torch.ones(2 * size, 3))
        y.detach_()
        y.mul_(three)
        others = [torch.zeros(2 * size, 3) for _ in range(9)]  # none lies where the result does
        assert not any(other.any() for other in others) and (y == 3).all() and y.requires_grad, name
        y.sum().backward()
    for verb in (hvd.allgather, lambda x: hvd.broadcast(x, 0)):
        for dtype in (torch.float64, torch.complex128):
            x = torch.ones(2, dtype=dtype, requires_grad=True)
            (g,) = torch.autograd.grad(verb(x).abs().square().sum(), x, create_graph=True)
            g.mul_(3)
            g.abs().sum().backward()


def test_results_may_be_changed_in_place(run_ranks):
    run_ranks(2, rank_changes_results)


def rank_groups_of_types():
    """What has no gradient stands beside what has one; ranks need not need the same ones."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    others = [torch.ones(size).to(getattr(torch, name)) for name in ("bool", "int64", "uint16")]
    moved = [torch.ones(size).to(torch.float8_e4m3fn), torch.ones(size, dtype=torch.complex64)]
    if hasattr(torch, "float4_e2m1fn_x2"):
        moved.append(torch.zeros(size, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    for verb, tensors, want in (
        (hvd.grouped_allgather, [*others, *moved], 1.0),
        (lambda group: hvd.grouped_broadcast(group, 0), [*others, *moved], float(rank == 0)),
        (lambda group: hvd.grouped_reducescatter(group, op=hvd.Sum), others, float(size)),
        (lambda group: hvd.grouped_allreduce(group, op=hvd.Sum), others, float(size)),
    ):
        x, y = torch.ones(size, 2, requires_grad=True), torch.ones(size, requires_grad=rank == 0)
        result, *_, last = verb([x, *tensors, y])
        (result.sum() + last.sum() if rank == 0 else result.sum()).backward()
        assert x.grad.unique().tolist() == [want]
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size  # nobody waits


def test_groups_hold_types_without_a_gradient(run_ranks):
    run_ranks(2, rank_groups_of_types)


def rank_narrow_gradients():
    """Floats of a byte are averaged as wide ones, and rounded once."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        for verb in (hvd.allgather, lambda x: hvd.broadcast(x, 0)):
            x = torch.ones(2, requires_grad=True)
            y = verb(x.to(dtype))
            (y.float().sum() * (1 + 2 * rank)).backward()
            want = float(size) if verb is hvd.allgather or rank == 0 else 0.0
            assert x.grad.tolist() == [want] * 2


def test_gradients_of_narrow_floats(run_ranks):
    run_ranks(2, rank_narrow_gradients)


def rank_tangents():
    """Forward mode: refused on all ranks, where the derivative would be silently none."""
    hvd.init()
    ones = torch.ones(2 * hvd.size())
    calls = {
        "allreduce": hvd.allreduce,
        "allgather": hvd.allgather,
        "alltoall": hvd.alltoall,
        "broadcast": lambda x: hvd.broadcast(x, 0),
        "reducescatter": hvd.reducescatter,
        "grouped_allreduce": lambda x: hvd.grouped_allreduce([x]),
        "grouped_allgather": lambda x: hvd.grouped_allgather([x]),
        "grouped_broadcast": lambda x: hvd.grouped_broadcast([x], 0),
        "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x]),
    }
    for name, call in calls.items():
        with forward_ad.dual_level():
            for context in (torch.enable_grad, torch.no_grad):
                with context(), pytest.raises(NotImplementedError, match="jvp"):
                    call(forward_ad.make_dual(ones, ones))
                    pytest.fail(name)
            assert call(ones) is not None  # it has no tangent
        with pytest.raises((NotImplementedError, RuntimeError)):
            torch.func.jvp(call, (ones,), (ones,))
        assert call(ones) is not None


def test_tangents_are_refused(run_ranks):
    run_ranks(2, rank_tangents)
