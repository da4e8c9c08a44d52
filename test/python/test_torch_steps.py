# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer where training does not go as usual: copies, parameters that come in the
middle of a step, gradients that cannot start."""

import copy
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from horon import _horon, _world  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


needs_scaler = pytest.mark.skipif(
    not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"), reason="old torch"
)


def distributed(named, **options):
    """SGD with lr 1, so that a step subtracts the gradient."""
    named = list(named)
    inner = torch.optim.SGD([p for _, p in named], lr=1.0)
    return hvd.DistributedOptimizer(inner, named, **options)


def ones(*names):
    """{name: a parameter of two ones}"""
    return {name: nn.Parameter(torch.ones(2)) for name in names}


def assert_all(tensor, value):
    torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, value))


# ---- Copies ----


def rank_copying():
    hvd.init()
    p = ones("p")
    optimizer = distributed(p.items())
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"wrap .* new DistributedOptimizer.*state_dict"):
            copying(optimizer)
    (p["p"].sum() * hvd.rank()).backward()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.step()
    assert_all(p["p"], 0.5)
    optimizer.zero_grad()
    optimizer.load_state_dict(state)
    # what the text advises
    q = copy.deepcopy(p)
    again = distributed(q.items())
    again.load_state_dict(optimizer.state_dict())
    (q["p"].sum() * hvd.rank()).backward()
    again.step()
    assert_all(q["p"], 0.0)
    assert_all(p["p"], 0.5)


def test_a_copy_is_refused(run_ranks):
    run_ranks(2, rank_copying)


def rank_copying_alone():
    hvd.init()
    p = ones("p")
    q, optimizer = copy.deepcopy((p, distributed(p.items())))
    q["p"].sum().backward()
    optimizer.step()
    assert_all(q["p"], 0.0)
    assert_all(p["p"], 1.0)


def test_a_copy_in_a_world_of_one_steps(run_ranks):
    run_ranks(1, rank_copying_alone)


# ---- Parameters that come in the middle of a step ----


def rank_unfreezing():
    """The parameter is unfrozen between two steps, or between backward and step."""
    hvd.init()
    rank = hvd.rank()
    p = ones("always", "between", "during")
    p["between"].requires_grad_(False)
    p["during"].requires_grad_(False)
    optimizer = distributed(p.items())
    (p["always"].sum() * (rank + 1)).backward()
    optimizer.step()
    assert_all(p["always"], -0.5)
    optimizer.zero_grad()
    p["between"].requires_grad_(True)
    (p["always"].sum() * (rank + 1) + p["between"].sum() * rank).backward()
    p["during"].requires_grad_(True)
    optimizer.step()
    assert_all(p["always"], -2.0)
    assert_all(p["between"], 0.5)
    assert_all(p["during"], 1.0)
    optimizer.zero_grad()
    sum(q.sum() * rank for q in p.values()).backward()
    optimizer.step()
    assert_all(p["always"], -2.5)
    assert_all(p["between"], 0.0)
    assert_all(p["during"], 0.5)


def test_parameters_unfrozen_between_steps_and_during_one(run_ranks):
    run_ranks(2, rank_unfreezing)


def rank_adding():
    hvd.init()
    rank = hvd.rank()
    p = ones("first", "late")
    optimizer = distributed([("first", p["first"])])
    (p["first"].sum() * (rank + 1)).backward()
    optimizer.add_param_group({"params": [p["late"]], "lr": 2.0})
    optimizer.step()
    assert_all(p["first"], -0.5)
    assert_all(p["late"], 1.0)
    optimizer.zero_grad()
    (p["first"].sum() * rank + p["late"].sum() * (rank + 1)).backward()
    optimizer.step()
    assert_all(p["first"], -1.0)
    assert_all(p["late"], -2.0)


def test_parameters_added_between_backward_and_step(run_ranks):
    run_ranks(2, rank_adding)


# ---- Gradients that cannot start ----


def rank_requiring(recover):
    """create_graph makes gradients that require gradients, which no exchange can have."""
    hvd.init()
    p = ones("a", "b")
    optimizer = distributed(p.items())
    for _ in range(2):
        with pytest.raises(AssertionError, match="must not require a gradient"):
            sum((q**2).sum() for q in p.values()).backward(create_graph=True)
        if recover == "step":
            with pytest.raises(RuntimeError, match=r"failed: .*must not require a gradient"):
                optimizer.step()
        elif recover == "synchronize":
            with pytest.raises(RuntimeError, match=r"failed: .*must not require a gradient"):
                optimizer.synchronize()
        optimizer.zero_grad()
    sum((q.sum() * hvd.rank()) for q in p.values()).backward()
    optimizer.step()
    assert_all(p["a"], 0.5)
    assert_all(p["b"], 0.5)


@pytest.mark.parametrize("recover", ["zero_grad", "step", "synchronize"])
def test_a_failed_hook_leaves_the_optimizer_usable(run_ranks, recover):
    run_ranks(2, rank_requiring, recover)


def rank_sparse_in_group():
    """The error is caught; the step after it does not take the local gradient."""
    hvd.init()
    table = nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(table.weight)
    optimizer = distributed(table.named_parameters(), groups=1)
    with pytest.raises(ValueError, match="sparse gradient of weight cannot be in a group"):
        table(torch.tensor([hvd.rank()])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradient of weight cannot be in a group"):
        optimizer.step()
    assert_all(table.weight, 1.0)


def test_no_step_with_a_gradient_that_was_not_exchanged(run_ranks):
    run_ranks(2, rank_sparse_in_group)


def rank_in_flight():
    """Rank 0 uses the name for something else: the step fails on both, and neither is ahead."""
    hvd.init()
    p = ones("a", "b")
    optimizer = distributed(p.items())
    if hvd.rank() == 0:
        other = hvd.allreduce_async(torch.ones(2), name="a")
        with pytest.raises(ValueError, match=r"allreduce.a' is already in flight.*: another opt"):
            sum(q.sum() for q in p.values()).backward()
        hvd.barrier()
        assert_all(hvd.synchronize(other), 1.0)
        with pytest.raises(
            RuntimeError, match=r"gradients failed: 'allreduce.a' is already in"
        ) as caught:
            optimizer.step()
        assert caught.value.status == _horon.STATUSES["ERR_DUPLICATE"]
        assert caught.value.cause == "ARGUMENT" and caught.value.rank == 0
    else:
        hvd.barrier()  # before it, rank 0's allreduce cannot end
        assert_all(hvd.allreduce(torch.ones(2), name="a"), 1.0)
        sum(q.sum() for q in p.values()).backward()
        with pytest.raises(
            hvd.HoronInternalError, match=r"failed on rank 0: 'allreduce.a' is"
        ) as caught:
            optimizer.step()
    assert caught.value.name == "allreduce.a"
    assert_all(p["a"], 1.0)
    assert_all(p["b"], 1.0)
    optimizer.zero_grad()
    sum(q.sum() * hvd.rank() for q in p.values()).backward()
    optimizer.step()
    assert_all(p["a"], 0.5)
    assert_all(p["b"], 0.5)


def test_a_name_in_use_fails_the_step_of_all(run_ranks):
    run_ranks(2, rank_in_flight)


def rank_two_networks():
    """Two optimizers whose parameters have the same names, as in a GAN, and one backward."""
    hvd.init()
    p, q = ones("p"), ones("p")
    first, second = distributed(p.items()), distributed(q.items())
    loss = p["p"].sum() + q["p"].sum()
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match=r"names of its own, such as .*generator"):
            loss.backward()
        hvd.barrier()
    else:
        hvd.barrier()  # before it, what rank 0 has started cannot end
    del first, second
    p["p"].grad = q["p"].grad = None
    first = distributed((("first." + name, x) for name, x in p.items()))
    second = distributed((("second." + name, x) for name, x in q.items()))
    (p["p"].sum() + q["p"].sum() * hvd.rank()).backward()
    first.step()
    second.step()
    assert_all(p["p"], 0.0)
    assert_all(q["p"], 0.5)


def test_two_optimizers_need_names_of_their_own(run_ranks):
    run_ranks(2, rank_two_networks)


def rank_shapes_differ():
    hvd.init()
    weight = nn.Parameter(torch.ones(2 + hvd.rank()))
    optimizer = distributed([("w", weight)])
    with pytest.raises(hvd.HoronInternalError) as caught:
        weight.sum().backward()
        optimizer.step()
    assert caught.value.cause == "DESCRIPTION" and caught.value.name == "allreduce.w"
    assert (caught.value.rank, caught.value.other_rank) == (0, 1)
    assert "sparse" not in str(caught.value)  # that would explain another mismatch


def test_a_mismatch_is_explained_by_its_cause(run_ranks):
    run_ranks(2, rank_shapes_differ)


def rank_sparse_here_dense_there():
    """In the first step only rank 1 uses the table; rank 0 cannot know that it is sparse."""
    hvd.init()
    table, other = nn.Embedding(4, 2, sparse=True), ones("other")
    nn.init.ones_(table.weight)
    optimizer = distributed([("table", table.weight), *other.items()])
    loss = other["other"].sum()
    if hvd.rank() == 1:
        loss = loss + table(torch.tensor([1])).sum()
    loss.backward()
    with pytest.raises(hvd.HoronInternalError) as caught:
        optimizer.step()
    assert caught.value.status_name == "ERR_MISMATCH"
    for word in ("'allreduce.table'", "dense", "sparse", "rank 0", "rank 1", "sparse_as_dense"):
        assert word in str(caught.value)
    for _ in range(2):  # both use it now
        optimizer.zero_grad()
        (table(torch.tensor([hvd.rank()])).sum() + other["other"].sum()).backward()
        optimizer.step()
    assert_all(table.weight[:2], 0.0)
    assert_all(other["other"], -1.0)


def test_a_gradient_sparse_here_and_dense_there_fails_on_both(run_ranks):
    run_ranks(2, rank_sparse_here_dense_there)


# ---- What one rank alone does ----


def train_step(optimizer, p, scale):
    optimizer.zero_grad()
    sum((q * scale).sum() for q in p.values()).backward()
    optimizer.step()


def fails_here_or_there(optimizer, here, cause, ends="step"):
    """The step fails on rank 0 for `cause`, and on the others because of it."""
    if hvd.rank() == 0 and ends == "zero_grad":
        optimizer.zero_grad()
    elif hvd.rank() == 0 or here:
        with pytest.raises(RuntimeError, match=f"gradients failed: {cause}") as caught:
            optimizer.step()
        assert not isinstance(caught.value, hvd.HoronInternalError)
        assert caught.value.cause == "CANCELLED" and caught.value.rank == hvd.rank()
        assert caught.value.host == _world.context().hosts[hvd.rank()]
    else:
        with pytest.raises(hvd.HoronInternalError, match=f"failed on rank 0: {cause}") as caught:
            optimizer.step()
        assert caught.value.status_name == "ERR_CANCELLED"
        assert caught.value.cause == "CANCELLED" and caught.value.rank == 0
        assert caught.value.host == _world.context().hosts[0]


def assert_in_step(optimizer, p):
    """The failed step has moved nothing, and the next one is the same step on all ranks."""
    for q in p.values():
        assert_all(q, 1.0)
    train_step(optimizer, p, 1.0 + hvd.rank())
    for q in p.values():
        assert_all(q, 1.0 - (1 + hvd.size()) / 2)


def rank_hook_fails_alone(ends, groups):
    """Ranks would stay a step apart: each took the other's last gradient for this step's."""
    hvd.init()
    p = ones("a", "b")
    optimizer = distributed(p.items(), groups=groups)
    loss = sum((q**2).sum() for q in p.values())
    cause = "the gradient of . must not require a gradient itself"
    if hvd.rank() == 0:
        with pytest.raises(AssertionError, match=cause):
            loss.backward(create_graph=True)
    else:
        loss.backward()
    fails_here_or_there(optimizer, False, cause, ends)
    optimizer.zero_grad()
    assert_in_step(optimizer, p)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("ends", ["step", "zero_grad"])
@pytest.mark.parametrize("groups", [None, 1, 2])
def test_a_hook_that_fails_on_one_rank_fails_the_step_of_all(run_ranks, n, ends, groups):
    run_ranks(n, rank_hook_fails_alone, ends, groups)


def rank_sparse_in_group_alone():
    hvd.init()
    table, other = nn.Embedding(2, 1), ones("other")
    nn.init.ones_(table.weight)
    optimizer = distributed([("table", table.weight), *other.items()], groups=1)
    table.sparse = hvd.rank() == 0
    loss = table(torch.tensor([0])).sum() + other["other"].sum()
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="sparse gradient of table cannot be in a group"):
            loss.backward()
    else:
        loss.backward()
    fails_here_or_there(optimizer, False, "the sparse gradient of table cannot be in a group")
    optimizer.zero_grad()
    table.sparse = False
    (table(torch.tensor([0, 1])).sum() + other["other"].sum()).backward()
    optimizer.step()
    assert_all(table.weight, 0.0)
    assert_all(other["other"], 0.0)


def test_a_group_that_fails_on_one_rank_ends_on_all(run_ranks):
    run_ranks(2, rank_sparse_in_group_alone)


class SilentCompressor(hvd.Compression.none):
    """Fails on rank 0, once, and does not say why."""

    @staticmethod
    def compress(tensor):
        if hvd.rank() == 0 and SilentCompressor.fails:
            SilentCompressor.fails = False
            raise NotImplementedError
        return tensor, None


def rank_failing_silently():
    hvd.init()
    SilentCompressor.fails = True
    p = ones("a")
    optimizer = distributed(p.items(), compression=SilentCompressor)
    if hvd.rank() == 0:
        with pytest.raises(NotImplementedError):
            p["a"].sum().backward()
    else:
        p["a"].sum().backward()
    fails_here_or_there(optimizer, False, "the gradient of a: NotImplementedError$")
    optimizer.zero_grad()
    assert_in_step(optimizer, p)


def test_a_failure_without_a_text_fails_the_step_of_all(run_ranks):
    run_ranks(2, rank_failing_silently)


def double(p):
    p["b"].grad.mul_(2)


def clip(p):
    nn.utils.clip_grad_norm_(p.values(), 1e-3)


def clip_together(p):
    nn.utils.clip_grad_norm_(p.values(), 1e-3, foreach=True)


def clear(p):
    p["b"].grad = None


def replace(p):
    p["b"].grad = p["b"].grad.clone()


def move(p):
    p["b"].grad.data = p["b"].grad.clone()


@pytest.mark.parametrize("change", [double, clip, clip_together, clear, replace, move])
@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("options", [{}, {"compression": "fp16"}, {"groups": 1}], ids=str)
def test_a_gradient_changed_on_its_way_fails_the_step_of_all(
    run_ranks, change, everywhere, options
):
    run_ranks(2, rank_changing, change, everywhere, options)


def rank_changing(change, everywhere, options):
    hvd.init()
    p = ones("a", "b")
    options = dict(options)
    if "compression" in options:
        options["compression"] = getattr(hvd.Compression, options["compression"])
    optimizer = distributed(p.items(), **options)
    sum(q.sum() for q in p.values()).backward()
    if everywhere or hvd.rank() == 0:
        change(p)
    cause = "the gradient of [ab] was changed after backward.*optimizer.synchronize"
    fails_here_or_there(optimizer, everywhere, cause)
    optimizer.zero_grad()
    assert_in_step(optimizer, p)


def rank_views(options):
    hvd.init()
    p = ones("a", "b", "c")
    buffer = torch.zeros(6)
    for q, gradient in zip(p.values(), buffer.split(2), strict=True):
        q.grad = gradient
    optimizer = distributed(p.items(), **options)
    for step in (1, 2):
        optimizer.zero_grad(set_to_none=False)
        sum(q.sum() * (1 + hvd.rank()) for q in p.values()).backward()
        optimizer.step()
        assert_all(buffer, 1.5)
        assert_all(p["b"], 1.0 - 1.5 * step)
    sum(q.sum() for q in p.values()).backward()
    p["b"].grad = None
    with pytest.raises(RuntimeError, match="gradient of b was changed"):
        optimizer.step()


@pytest.mark.parametrize("options", [{}, {"groups": 2}], ids=str)
def test_gradients_may_be_views_of_one_buffer(run_ranks, options):
    """torch counts a change of one as a change of all."""
    run_ranks(2, rank_views, options)


def rank_scaling(explicit):
    """GradScaler unscales gradients that are on their way, in a way that torch does not count."""
    hvd.init()
    p = ones("a", "b")
    optimizer = distributed(p.items())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(sum(q.sum() for q in p.values())).backward()
    if explicit:
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"gradient of [ab] was unscaled.*synchronize"):
        scaler.step(optimizer)
    if explicit:
        scaler.update()
    optimizer.zero_grad()
    assert_in_step(optimizer, p)
    optimizer.zero_grad()
    scaler.scale(sum(q.sum() * (1 + hvd.rank()) for q in p.values())).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    assert_all(p["a"], 1.0 - 2 * 1.5)


@needs_scaler
@pytest.mark.parametrize("explicit", [False, True])
def test_unscaling_on_the_way_fails_the_step(run_ranks, explicit):
    run_ranks(2, rank_scaling, explicit)


def rank_unscaling_unseen():
    hvd.init()
    p = ones("a")
    optimizer = distributed(p.items())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(p["a"].sum()).backward()
    version = p["a"].grad._version
    scaler.unscale_(optimizer)
    assert p["a"].grad._version == version, "torch counts it: it can be found"
    optimizer.step()


@needs_scaler
def test_unscaling_before_a_plain_step_is_not_found(run_ranks):
    """As docs/horovod.md says."""
    run_ranks(2, rank_unscaling_unseen)


def rank_clearing_between_passes():
    """Nothing is on its way before the last pass: what was accumulated may be dropped."""
    hvd.init()
    p = ones("a", "b")
    optimizer = distributed(p.items(), backward_passes_per_step=2)
    sum(q.sum() for q in p.values()).backward()
    optimizer.zero_grad()
    for _ in range(2):
        sum((q * hvd.rank()).sum() for q in p.values()).backward()
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    optimizer.step()
    assert_all(p["a"], 0.0)


def test_zero_grad_between_the_passes_of_a_step(run_ranks):
    run_ranks(2, rank_clearing_between_passes)


# ---- Schedulers ----


def rank_scheduling(wrapped_first):
    hvd.init()
    p = ones("p")
    inner = torch.optim.SGD(p.values(), lr=1.0)
    if wrapped_first:
        optimizer = hvd.DistributedOptimizer(inner, p.items())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    else:
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(inner, p.items())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            p["p"].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    assert_all(p["p"], -0.5)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("wrapped_first", [True, False])
def test_a_scheduler_sees_the_steps(run_ranks, n, wrapped_first):
    run_ranks(n, rank_scheduling, wrapped_first)


def rank_scheduling_too_early():
    hvd.init()
    p = ones("p")
    inner = torch.optim.SGD(p.values(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(inner, p.items())
    with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
        scheduler.step()
    p["p"].sum().backward()
    optimizer.step()


def test_a_scheduler_that_is_early_says_so(run_ranks):
    run_ranks(1, rank_scheduling_too_early)
