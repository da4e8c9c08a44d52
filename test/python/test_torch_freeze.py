# SPDX-License-Identifier: Apache-2.0
"""Parameters that are frozen or added after the optimizer was wrapped, between steps or in one."""

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


def distributed(p, **options):
    """SGD with lr 1 and a decay, so that a gradient of zeros moves a parameter, too."""
    inner = torch.optim.SGD(p.values(), lr=1.0, weight_decay=0.5)
    return hvd.DistributedOptimizer(inner, p.items(), **options)


def ones(names):
    return {name: nn.Parameter(torch.ones(2)) for name in names}


def rank_freezing_in_a_step(passes, users, options):
    """What a pass of a rank computed before the parameter was frozen is everybody's, as alone."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    p = ones("ab")
    optimizer = distributed(p, backward_passes_per_step=passes, **options)
    loss = p["b"].sum() * rank
    if rank in users:
        loss = loss + p["a"].sum() * (rank + 1)
    loss.backward()
    p["a"].requires_grad_(False)
    for _ in range(passes - 1):
        (p["b"].sum() * rank).backward()
    optimizer.step()
    mean = sum(user + 1 for user in users) / size
    assert p["a"].tolist() == [1.0 - mean - 0.5] * 2
    assert p["b"].tolist() == [1.0 - passes * (size - 1) / 2 - 0.5] * 2
    optimizer.zero_grad()
    before = p["a"].tolist()
    for _ in range(passes):
        p["b"].sum().backward()
    optimizer.step()  # of the next step it is no part
    assert p["a"].tolist() == before and p["a"].grad is None


def expect_differ(optimizer, name, holder, other):
    """The step fails, as one rank exchanges a gradient and another one does not."""
    with pytest.raises(hvd.HorovodInternalError) as raised:
        optimizer.step()
    error = raised.value
    text = f"the gradient of {name} is exchanged by rank {holder} and not by rank {other}, where"
    assert text in str(error)
    assert (error.rank, error.other_rank) == tuple(sorted((holder, other)))
    assert error.name == f"allreduce.{name}"


OPTIONS = ({}, {"groups": 1}, {"compression": hvd.Compression.fp16})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("users", [(0, 1), (1,)], ids=str)
@pytest.mark.parametrize("passes", [1, 2])
def test_a_parameter_frozen_in_a_step_is_in_that_step(run_ranks, passes, users, options):
    run_ranks(2, rank_freezing_in_a_step, passes, users, options)


def rank_freezing_between_steps(options):
    """It stays where it is, as with torch alone, and nothing of it stays in the next step."""
    hvd.init()
    p = ones("abc")
    optimizer = distributed(p, **options)
    for frozen in (True, False, True):
        optimizer.zero_grad()
        p["a"].requires_grad_(not frozen)
        before = p["a"].detach().clone()
        sum(q.sum() * hvd.rank() for q in p.values()).backward()
        optimizer.step()
        if frozen:
            assert p["a"].grad is None
        move = 0.0 if frozen else (hvd.size() - 1) / 2 + 0.5 * before
        assert p["a"].equal(before - move)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_parameter_frozen_between_steps_stays(run_ranks, options):
    run_ranks(2, rank_freezing_between_steps, options)


def rank_freezing_with_a_gradient(options):
    """Nobody clears it: torch alone applies it again and again, in a group or not."""
    hvd.init()
    p = nn.ParameterDict({name: nn.Parameter(torch.full((2,), 8.0)) for name in "ab"})
    optimizer = distributed(p, op=hvd.Sum, **options(p))
    for step in range(3):
        p["b"].grad = None
        (p["a"].sum() * (step == 0) + p["b"].sum()).backward()
        p["a"].requires_grad_(False)
        optimizer.step()
        assert p["a"].grad.tolist() == p["b"].grad.tolist() == [2.0, 2.0]
    assert p["a"].tolist() == p["b"].tolist()


@pytest.mark.parametrize("options", [lambda p: {}, lambda p: {"groups": [[p["a"], p["b"]]]}])
def test_a_frozen_parameter_keeps_the_gradient_it_has(run_ranks, options):
    run_ranks(2, rank_freezing_with_a_gradient, options)


def rank_thawing_in_a_step(options):
    """Frozen when the step began, it is used in it, and is frozen again: it is in that step."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    p = ones("abc")
    optimizer = distributed(p, **options(p))
    p["b"].requires_grad_(False)
    p["c"].requires_grad_(False)
    p["a"].sum().backward()
    p["b"].requires_grad_(True)
    (p["b"].sum() * rank).backward()
    p["b"].requires_grad_(False)
    optimizer.step()
    assert p["a"].tolist() == [1.0 - 1.0 - 0.5] * 2
    assert p["b"].tolist() == [1.0 - (size - 1) / 2 - 0.5] * 2
    assert p["c"].tolist() == [1.0] * 2 and p["c"].grad is None


@pytest.mark.parametrize("options", [lambda p: {}, lambda p: {"groups": [[p["b"], p["c"]]]}])
def test_a_parameter_that_was_used_while_it_was_not_frozen_is_in_the_step(run_ranks, options):
    run_ranks(2, rank_thawing_in_a_step, options)


def rank_freezing_alone():
    """A group goes whole: what the other ranks compute moves the parameter on all."""
    hvd.init()
    p = ones("ab")
    optimizer = distributed(p, groups=1)
    p["a"].requires_grad_(hvd.rank() != 0)
    sum(q.sum() * hvd.rank() for q in p.values()).backward()
    optimizer.step()
    return [q.tolist() for q in p.values()]


def test_a_parameter_of_a_group_frozen_on_one_rank(run_ranks):
    assert run_ranks(2, rank_freezing_alone) == [[[0.0, 0.0]] * 2] * 2


def rank_failing_with_a_frozen_one():
    """The gradient that a group has lent it is taken back, also from a step that fails."""
    hvd.init()
    p = ones("ab")
    optimizer = distributed(p, groups=1)
    p["a"].requires_grad_(False)
    p["b"].sum().backward()
    optimizer._exchange.note_failure(ValueError("no step"))
    with pytest.raises(RuntimeError, match="no step"):
        optimizer.step()
    assert p["a"].grad is None
    optimizer.zero_grad()
    p["b"].sum().backward()
    optimizer.step()
    assert p["a"].tolist() == [1.0, 1.0] and p["a"].grad is None


def test_a_frozen_parameter_in_a_step_that_fails(run_ranks):
    run_ranks(2, rank_failing_with_a_frozen_one)


def rank_freezing_by_itself(options):
    """Its rank would go on, and the others wait for ever."""
    hvd.init()
    rank = hvd.rank()
    p = ones("abc")
    optimizer = distributed(p, **options)
    for _ in range(2):
        optimizer.zero_grad()
        sum(q.sum() for q in p.values()).backward()
        optimizer.step()
    before = [q.tolist() for q in p.values()]
    p["b"].requires_grad_(rank != 1)
    for _ in range(2):
        optimizer.zero_grad()
        sum(q.sum() for q in p.values()).backward()
        expect_differ(optimizer, "b", 0, 1)
    assert [q.tolist() for q in p.values()] == before
    p["b"].requires_grad_(False)
    optimizer.zero_grad()
    sum(q.sum() for q in p.values()).backward()
    optimizer.step()  # now it is frozen everywhere
    assert p["b"].tolist() == before[1] and p["a"].tolist() != before[0]


@pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.fp16}], ids=str)
def test_a_parameter_frozen_on_one_rank_alone_fails_on_all(run_ranks, options):
    run_ranks(3, rank_freezing_by_itself, options)


def rank_freezing_beside_a_failure():
    """One rank freezes a parameter in the step in which another one fails."""
    hvd.init()
    rank = hvd.rank()
    p = ones("ab")
    optimizer = distributed(p)
    p["a"].requires_grad_(rank != 0)
    sum(q.sum() for q in p.values()).backward()
    if rank == 1:
        p["b"].grad = torch.zeros(2)
    with pytest.raises(RuntimeError, match="the gradient of b was changed after backward"):
        optimizer.step()


def test_a_parameter_frozen_on_one_rank_while_another_fails(run_ranks):
    run_ranks(3, rank_freezing_beside_a_failure)


def rank_adding_by_itself(steps, options):
    """The group has a name that goes before those of the others."""
    hvd.init()
    rank = hvd.rank()
    p = ones("tuv")
    late = nn.Parameter(torch.ones(2))
    optimizer = distributed(p, **options)

    def backward(*more):
        optimizer.zero_grad()
        sum(q.sum() for q in (*p.values(), *more)).backward()

    for _ in range(steps):
        backward()
        optimizer.step()
    before = [q.tolist() for q in p.values()]
    if rank == 1:
        optimizer.add_param_group({"params": [late]})
    for _ in range(2):
        backward(late)
        expect_differ(optimizer, "noname.1.0", 1, 0)
    assert [q.tolist() for q in (late, *p.values())] == [[1.0, 1.0], *before]
    if rank != 1:
        optimizer.add_param_group({"params": [late]})
    backward(late)
    optimizer.step()
    assert late.tolist() != [1.0, 1.0] and p["t"].tolist() != before[0]


@pytest.mark.parametrize(
    "options", [{}, {"compression": hvd.Compression.fp16}, {"op": hvd.Adasum}], ids=str
)
@pytest.mark.parametrize("steps", [0, 2])
def test_a_parameter_added_on_one_rank_alone_fails_on_all(run_ranks, steps, options):
    run_ranks(3, rank_adding_by_itself, steps, options)


def rank_wrapping_other_parameters(name):
    hvd.init()
    p = ones("ab")
    p[name].requires_grad_(hvd.rank() != 1)
    optimizer = distributed(p)
    sum(q.sum() for q in p.values()).backward()
    expect_differ(optimizer, name, 0, 1)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_parameter_frozen_on_one_rank_from_the_start(run_ranks, name):
    run_ranks(2, rank_wrapping_other_parameters, name)


def rank_wrapping_frozen_parameters(options):
    """It has no gradient to send, and the others' step fails all the same."""
    hvd.init()
    p = ones("ab")
    for q in p.values():
        q.requires_grad_(hvd.rank() != 1)
    optimizer = distributed(p, **options)
    if hvd.rank() != 1:
        sum(q.sum() for q in p.values()).backward()
    expect_differ(optimizer, "a", 0, 1)
    for q in p.values():
        q.requires_grad_(True)
    optimizer.zero_grad()
    sum(q.sum() for q in p.values()).backward()
    optimizer.step()
    assert [q.tolist() for q in p.values()] == [[-0.5, -0.5]] * 2


@pytest.mark.parametrize("options", [{}, {"op": hvd.Adasum}], ids=str)
def test_all_parameters_frozen_on_one_rank_from_the_start(run_ranks, options):
    run_ranks(2, rank_wrapping_frozen_parameters, options)


def rank_freezing_all_by_itself():
    """It is no rank that has joined: the others' step has no gradients of its own."""
    hvd.init()
    p = ones("ab")
    optimizer = distributed(p)
    for step in range(3):
        for q in p.values():
            q.requires_grad_(hvd.rank() != 1 or step != 1)
        optimizer.zero_grad()
        if hvd.rank() != 1 or step != 1:
            sum(q.sum() for q in p.values()).backward()
        before = [q.tolist() for q in p.values()]
        if step == 1:
            expect_differ(optimizer, "a", 0, 1)
        else:
            optimizer.step()
        assert (before == [q.tolist() for q in p.values()]) == (step == 1)


def test_all_parameters_frozen_on_one_rank_later(run_ranks):
    run_ranks(2, rank_freezing_all_by_itself)


def grouped(p, groups):
    """groups: a number, None, or names: "ab c" has two groups, and a parameter left out has none"""
    if isinstance(groups, str):
        groups = [[p[name] for name in group] for group in groups.split()]
    return distributed(p, groups=groups)


def step_of(optimizer, p):
    optimizer.zero_grad()
    sum(q.sum() for q in p.values()).backward()
    optimizer.step()


def meet(step):
    """Nothing is left on its way: not what others wait for, nor what the next step would meet."""
    assert hvd.allgather_object(step, name="meet") == [step] * hvd.size()


def rank_grouping_otherwise(layouts, names, frozen):
    """Also where all meet, as names and shapes are alike, but not those of one parameter."""
    hvd.init()
    rank = hvd.rank()
    p = ones(names)
    for name in frozen if rank == 1 else "":
        p[name].requires_grad_(False)
    optimizer = grouped(p, layouts[rank])
    text = r"gradient of [abc][ ,].* another group: "
    for step in range(3):
        with pytest.raises(hvd.HorovodInternalError, match=text):
            step_of(optimizer, p)
        meet(step)
    assert [q.tolist() for q in p.values()] == [[1.0, 1.0]] * len(p)
    p = ones(names)
    optimizer = grouped(p, layouts[0])  # the very names that the failed steps had
    step_of(optimizer, p)
    assert [q.tolist() for q in p.values()] == [[-0.5, -0.5]] * len(p)


@pytest.mark.parametrize(
    ("layouts", "names", "frozen"),
    [
        (("ab c", "a bc", "ab c"), "abc", ""),
        (("ab c", "ba c", "ab c"), "abc", ""),
        (("abc", "acb", "abc"), "abc", ""),
        (("ab c", None, "ab c"), "abc", ""),
        (("ab c", "ab c", "ab c"), "abc", "a"),
        (("ab c", "a bc"), "abc", ""),
        (("a b", "a b", "ab"), "ab", ""),
        ((2, 1), "ab", ""),
        ((1, 2), "abc", ""),
        (("abc", "a b c", "ab c", "a bc"), "abc", ""),
        (("bc", None, "a bc"), "abc", ""),
    ],
    ids=str,
)
def test_groups_that_ranks_make_otherwise_fail_the_step_of_all(run_ranks, layouts, names, frozen):
    run_ranks(len(layouts), rank_grouping_otherwise, layouts, names, frozen)


def rank_failing_beside_other_groups():
    """A rank has failed in its hook, too: all are told why, and no group waits for another one."""
    hvd.init()
    rank = hvd.rank()
    p = ones("abc")
    optimizer = grouped(p, ("ab c", "a bc")[rank])
    for step in range(2):
        optimizer.zero_grad()
        loss = sum(q.sum() for q in p.values())
        loss.backward(retain_graph=True)
        if rank == 1:
            with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
                loss.backward()
        with pytest.raises(RuntimeError, match="more than backward_passes_per_step"):
            optimizer.step()
        meet(step)
    assert [q.tolist() for q in p.values()] == [[1.0, 1.0]] * 3


def test_groups_that_differ_where_a_rank_has_failed(run_ranks):
    run_ranks(2, rank_failing_beside_other_groups)


def rank_adding_to_nothing():
    hvd.init()
    p = ones("a")
    inner = torch.optim.SGD([{"params": []}], lr=1.0)
    optimizer = hvd.DistributedOptimizer(inner, p.items())
    optimizer.step()
    optimizer.add_param_group({"params": [*p.values()]})
    (p["a"].sum() * hvd.rank()).backward()
    optimizer.step()
    assert p["a"].tolist() == [0.5, 0.5]


def test_an_optimizer_may_begin_without_parameters(run_ranks):
    run_ranks(2, rank_adding_to_nothing)
