# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer and what makes ranks start alike."""

import copy
import gc
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

# The first optimizer that a process makes brings torch's compiler in, which takes seconds: once
# here, and not in every rank that is forked from here.
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)

STEPS = 50
BATCH = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU())
        self.classes = nn.Linear(8 * 16, 10)

    def forward(self, x):
        return self.classes(self.features(x).flatten(1))


def net(seed=0):
    torch.manual_seed(seed)
    return Net()


def batches(steps, joined):
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(joined, 1, 8, 8, generator=generator),
            torch.randint(0, 10, (joined,), generator=generator),
        )
        for _ in range(steps)
    ]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train_alone(make, steps, joined):
    model = net()
    optimizer = make(model)
    for x, y in batches(steps, joined):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def distance(a, b):
    return max(
        (p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )


def my_part(x):
    return x.chunk(hvd.size())[hvd.rank()]


def begun(make):
    """As `make`, with the state that broadcast_optimizer_state() gives a new optimizer."""

    def make_begun(model):
        optimizer = make(model)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        return optimizer

    return make_begun


def rank_equal(maker, options):
    make = {"sgd": sgd, "adam": adam}[maker]
    options = dict(options)
    if "compression" in options:
        options["compression"] = getattr(hvd.Compression, options["compression"])
    torch.set_num_threads(1)
    hvd.init()
    model = net(seed=hvd.rank())  # every rank starts elsewhere
    optimizer = hvd.DistributedOptimizer(
        make(model), named_parameters=model.named_parameters(), **options
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for x, y in batches(STEPS, BATCH * hvd.size()):
        optimizer.zero_grad()
        cross_entropy(model(my_part(x)), my_part(y)).backward()
        optimizer.step()
    alone = train_alone(begun(make), STEPS, BATCH * hvd.size())
    checksum = torch.stack([p.detach().double().sum() for p in model.parameters()])
    assert hvd.allgather(checksum.reshape(1, -1)).unique(dim=0).shape[0] == 1, "ranks differ"
    return distance(model, alone)


@pytest.mark.parametrize(
    "n, maker, options, limit",
    [
        (2, "sgd", {}, 1e-5),
        (3, "sgd", {}, 1e-5),
        (2, "adam", {}, 1e-3),
        (2, "sgd", {"groups": 2}, 1e-5),
        (2, "sgd", {"gradient_predivide_factor": 2.0}, 1e-5),
        (2, "sgd", {"compression": "fp16"}, 0.05),
        (2, "sgd", {"compression": "bf16", "groups": 3}, 0.2),
    ],
)
def test_ranks_train_as_one_process_on_the_joined_batch(run_ranks, n, maker, options, limit):
    for away in run_ranks(n, rank_equal, maker, tuple(options.items())):
        assert away <= limit


def test_ranks_train_as_one_process_over_tcp(run_ranks):
    assert max(run_ranks(2, rank_equal, "sgd", (), HORON_SHM=0)) <= 1e-5


def rank_accumulate():
    hvd.init()
    torch.set_num_threads(1)
    model = net()
    optimizer = hvd.DistributedOptimizer(
        sgd(model), model.named_parameters(), backward_passes_per_step=3
    )
    assert optimizer.backward_passes_per_step == 3
    for x, y in batches(10, BATCH * hvd.size() * 3):
        optimizer.zero_grad()
        for part_x, part_y in zip(my_part(x).chunk(3), my_part(y).chunk(3), strict=True):
            (cross_entropy(model(part_x), part_y) / 3).backward()
        optimizer.step()
    away = distance(model, train_alone(sgd, 10, BATCH * hvd.size() * 3))
    with pytest.raises(ValueError, match="at least 1"):
        optimizer.set_backward_passes_per_step(0)
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    cross_entropy(model(my_part(x)), my_part(y)).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        cross_entropy(model(my_part(x)), my_part(y)).backward()
    with pytest.raises(RuntimeError, match=r"failed: .*backward_passes_per_step"):
        optimizer.step()
    optimizer.zero_grad()
    cross_entropy(model(my_part(x)), my_part(y)).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.step()
    return away


def test_gradient_accumulation(run_ranks):
    assert max(run_ranks(2, rank_accumulate)) <= 1e-5


def rank_clip():
    hvd.init()
    torch.set_num_threads(1)
    model, alone = net(), net()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    reference = sgd(alone)
    for x, y in batches(10, BATCH * hvd.size()):
        optimizer.zero_grad()
        cross_entropy(model(my_part(x)), my_part(y)).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        reference.zero_grad()
        cross_entropy(alone(x), y).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        reference.step()
    away = distance(model, alone)
    optimizer.zero_grad()
    cross_entropy(model(my_part(x)), my_part(y)).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize") as caught:
        optimizer.step()
    assert caught[0].filename == __file__
    return away


def test_clipping_between_synchronize_and_step(run_ranks):
    assert max(run_ranks(2, rank_clip)) <= 1e-5


def rank_unchanged():
    """What the wrapped optimizer can do it still can: state, closures, hooks, schedulers."""
    hvd.init()
    model = net()
    inner = adam(model)
    cross_entropy(model(torch.ones(2, 1, 8, 8)), torch.tensor([1, 2])).backward()
    inner.step()
    steps_before = inner.state_dict()["state"][0]["step"]
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    assert optimizer.state_dict()["state"][0]["step"] == steps_before
    assert optimizer.defaults == inner.defaults
    calls = []
    hooks = ["pre", "post"] if hasattr(optimizer, "register_step_pre_hook") else []
    if hooks:  # torch 2.0
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))

    def closure():
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(
            model(torch.full((2, 1, 8, 8), 0.1 * hvd.rank())), torch.tensor([1, 2])
        )
        loss.backward()
        return loss

    before = model.classes.bias.detach().clone()
    assert optimizer.step(closure).item() > 0
    assert calls == hooks
    assert not before.equal(model.classes.bias)
    after = model.classes.bias.detach().clone()
    assert hvd.allgather(after.reshape(1, -1)).unique(dim=0).shape[0] == 1
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.005
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    closure()
    calls.clear()
    optimizer.step()
    assert calls == hooks
    # parameters that come later, and ones that are unfrozen later
    extra = nn.Parameter(torch.full((3,), float(hvd.rank())))
    optimizer.add_param_group({"params": [extra], "lr": 1.0})
    optimizer.zero_grad()
    (extra.sum() * (hvd.rank() + 1) + sum(p.sum() for p in model.parameters())).backward()
    optimizer.synchronize()
    assert extra.grad.tolist() == [(1 + hvd.size()) / 2] * 3
    with optimizer.skip_synchronize():
        optimizer.step()


def test_wrapped_optimizer_behaves_as_before(run_ranks):
    run_ranks(2, rank_unchanged)


def rank_unused():
    """A parameter that only one rank's pass uses, a frozen one, a sparse gradient."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    used, unused, frozen = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([used, unused, frozen], lr=1.0),
        [("used", used), ("unused", unused), ("frozen", frozen)],
    )
    loss = used.sum() + (unused.sum() if rank == 0 else 0)
    loss.backward()
    optimizer.step()
    assert used.tolist() == [0.0] * 2 and frozen.tolist() == [1.0] * 2
    assert torch.allclose(unused.detach(), torch.tensor(1 - 1 / size))
    optimizer.zero_grad()
    frozen.requires_grad_()  # unfrozen after the optimizer was wrapped
    (frozen.sum() * rank).backward()
    optimizer.step()
    assert torch.allclose(frozen.detach(), torch.tensor(1 - sum(range(size)) / size))
    for sparse_as_dense in (False, True):
        table = nn.Embedding(6, 2, sparse=True)
        nn.init.ones_(table.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0),
            table.named_parameters(),
            sparse_as_dense=sparse_as_dense,
        )
        table(torch.tensor([rank, 5])).sum().backward()
        optimizer.step()
        want = torch.ones(6, 2)
        want[:size] -= 1 / size
        want[5] -= 1
        assert torch.allclose(table.weight.detach(), want), (sparse_as_dense, table.weight)


@pytest.mark.parametrize("n", [2, 3])
def test_unused_frozen_and_sparse_parameters(run_ranks, n):
    run_ranks(n, rank_unused)


def rank_table_of_one():
    """In the second step only rank 0's pass uses the table: the others' gradient is sparse, too."""
    hvd.init()
    table = nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters()
    )
    for used in (True, hvd.rank() == 0):
        optimizer.zero_grad()
        if used:
            table(torch.tensor([1])).sum().backward()
        optimizer.step()
    want = torch.ones(4, 2)
    want[1] -= 1 + 1 / hvd.size()
    assert torch.allclose(table.weight.detach(), want), table.weight


def test_sparse_parameter_that_one_rank_uses(run_ranks):
    run_ranks(2, rank_table_of_one)


def rank_with_another_parameter():
    hvd.init()
    names = ["a", "b" if hvd.rank() == 1 else "c"]
    parameters = [(name, nn.Parameter(torch.ones(2))) for name in names]
    inner = torch.optim.SGD([p for _, p in parameters], lr=1.0)
    with pytest.raises(ValueError, match="rank 1 and rank 0 differ in the parameter 'b'"):
        hvd.DistributedOptimizer(inner, parameters, groups=2)


def test_groups_of_different_parameters_fail_on_every_rank(run_ranks):
    run_ranks(3, rank_with_another_parameter)


def rank_moving():
    """Gradients whose memory, layout and type change from step to step."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    p = nn.Parameter(torch.zeros(4, 6))
    last = nn.Parameter(torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([p, last], lr=0.0), [("p", p), ("last", last)]
    )
    keep = []
    for step in range(6):
        optimizer.zero_grad(set_to_none=bool(step % 2))
        weight = torch.arange(24.0).reshape(4, 6) + rank + step
        ((p * weight).sum() + (last * (rank + 1)).sum()).backward()
        keep.append(p.grad)
        optimizer.step()
        assert p.grad.equal(torch.arange(24.0).reshape(4, 6) + step + (size - 1) / 2)
        assert (last.grad == (size + 1) / 2).all()
        if step == 3:
            p.grad = None
            last.grad = None
    wide = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([wide], lr=0.0), [("wide", wide)])
    for _ in range(2):
        (wide * (rank + 1)).sum().backward()
        optimizer.step()
        assert wide.grad.tolist() == [(size + 1) / 2] * 3
        optimizer.zero_grad()


def test_gradients_that_move(run_ranks):
    run_ranks(2, rank_moving)


class WaitForLast(torch.autograd.Function):
    """In backward, before its input's gradient: waits until the last layer's gradient is there."""

    @staticmethod
    def forward(ctx, x, reduced):
        ctx.reduced = reduced
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        end = time.monotonic() + 30
        while not ctx.reduced():
            assert time.monotonic() < end, "the exchange waits for the end of backward"
        return gradient, None


def rank_overlap():
    hvd.init()
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    named = [
        (f"{i}.{name}", p)
        for i, layer in enumerate((first, last))
        for name, p in layer.named_parameters()
    ]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.1), named)
    operations = []

    def reduced():
        slot = optimizer._exchange.slots[id(last.weight)]
        operations.append(slot.operation)
        return slot.started and slot.operation.test()

    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        x = torch.full((2, 4), float(hvd.rank()))
        last(WaitForLast.apply(first(x), reduced)).sum().backward()
        assert first.weight.grad is not None
        optimizer.step()
    assert len(set(map(id, operations))) == 1, "the operation was made anew"


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="this torch's gradients do not go the quick way",
)
def test_gradients_are_exchanged_during_backward(run_ranks):
    run_ranks(2, rank_overlap)


def rank_reinit():
    model = net()
    optimizer = None
    for _ in range(3):
        hvd.init()
        if optimizer is None:
            optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
        x, y = batches(1, BATCH * hvd.size())[0]
        optimizer.zero_grad()
        cross_entropy(model(my_part(x)), my_part(y)).backward()
        optimizer.step()
        hvd.shutdown()
    return [p.detach().sum().item() for p in model.parameters()]


def test_optimizer_survives_a_new_init(run_ranks):
    a, b = run_ranks(2, rank_reinit)
    assert a == b


def rank_forgotten(options):
    hvd.init()
    gc.disable()  # what a cycle keeps alive is not forgotten yet
    model = net()
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **options)
    for _ in range(2):
        cross_entropy(model(torch.ones(1, 1, 8, 8)), torch.tensor([1])).backward()
        optimizer.step()
    exchange, first = weakref.ref(optimizer._exchange), weakref.ref(model.classes.bias)
    # a second wrapper takes over; the hooks of the first are gone with it
    optimizer = hvd.DistributedOptimizer(adam(model), model.named_parameters(), **options)
    assert exchange() is None
    cross_entropy(model(torch.ones(1, 1, 8, 8)), torch.tensor([1])).backward()
    optimizer.step()
    del model, optimizer
    assert first() is None


@pytest.mark.parametrize(
    "options", [{}, {"groups": 2}, {"compression": hvd.Compression.fp16}], ids=str
)
def test_nothing_keeps_a_forgotten_model_alive(run_ranks, options):
    run_ranks(2, rank_forgotten, options)


def rank_parameters():
    hvd.init()
    for form in (
        lambda m: m.state_dict(),
        lambda m: m.named_parameters(),
        lambda m: list(m.parameters()),
        lambda m: dict(m.named_parameters()),
    ):
        model = net(seed=hvd.rank())
        hvd.broadcast_parameters(form(model), root_rank=hvd.size() - 1)
        assert distance(model, net(seed=hvd.size() - 1)) == 0
    for model in (nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1))):
        with pytest.raises(ValueError, match=r"pass model.state_dict\(\)"):
            hvd.broadcast_parameters(model, root_rank=0)
    with pytest.raises(ValueError, match=r"type int: pass model.state_dict\(\)"):
        hvd.broadcast_parameters(5, root_rank=0)
    with pytest.raises(ValueError, match="parameter b is not a tensor but int; use broadcast_obj"):
        hvd.broadcast_parameters({"a": torch.ones(1), "b": 5}, root_rank=0)
    with pytest.raises(ValueError, match=r"must be unique\. Found duplicates: a$"):
        hvd.broadcast_parameters([("a", torch.ones(1)), ("a", torch.ones(1))], root_rank=0)
    with pytest.raises(ValueError, match="broadcast_optimizer_state"):
        hvd.broadcast_parameters(sgd(net()), root_rank=0)
    with pytest.raises(ValueError, match="needs an optimizer, not Net"):
        hvd.broadcast_optimizer_state(net(), root_rank=0)
    norm = nn.BatchNorm1d(3)
    norm.num_batches_tracked += hvd.rank()
    hvd.broadcast_parameters(norm.state_dict(), root_rank=0)
    assert norm.num_batches_tracked.item() == 0
    assert hvd.broadcast_object({"epoch": hvd.rank()}, root_rank=1) == {"epoch": 1}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


def test_parameters_of_the_root_are_everybodys(run_ranks):
    run_ranks(2, rank_parameters)


def rank_refusals():
    hvd.init()
    model = net()
    named = list(model.named_parameters())
    for wrong, word in (
        (model, "Net"),
        (model.parameters(), "generator"),
        (torch.optim.SGD, "SGD"),
        (type("Duck", (), {"param_groups": [], "state": {}, "step": print})(), "Duck"),
    ):
        with pytest.raises(TypeError, match=f"needs an optimizer, such as .*, not {word}"):
            hvd.DistributedOptimizer(wrong, named)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd(model), named), named)
    with pytest.raises(ValueError, match="unique"):
        hvd.DistributedOptimizer(sgd(model), [("same", p) for _, p in named])
    with pytest.raises(ValueError, match="not named"):
        hvd.DistributedOptimizer(sgd(model), named[1:])
    with pytest.raises(ValueError, match="tuples"):
        hvd.DistributedOptimizer(sgd(model), model.parameters())
    with pytest.raises(ValueError, match="predivide"):
        hvd.DistributedOptimizer(sgd(model), named, op=hvd.Sum, gradient_predivide_factor=2.0)
    for factor in (0.0, -1.0, 1e45, 1e-310, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"predivide_factor .* is not in"):
            hvd.DistributedOptimizer(sgd(model), named, gradient_predivide_factor=factor)
    for passes, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError)):
        with pytest.raises(error):
            hvd.DistributedOptimizer(sgd(model), named, backward_passes_per_step=passes)
    with pytest.raises(ValueError, match="one group"):
        p = named[0][1]
        hvd.DistributedOptimizer(sgd(model), named, groups=[[p], [p]])
    for groups in (
        -1,
        0.5,
        "a",
        [[1]],
        [0.5],
        ["ab"],
        [["features.0.weight"]],
        [model.classes.weight],
    ):
        with pytest.raises(ValueError, match="list of lists of parameters"):
            hvd.DistributedOptimizer(sgd(model), named, groups=groups)
    unnamed = hvd.DistributedOptimizer(
        torch.optim.SGD(
            [{"params": model.features.parameters()}, {"params": model.classes.parameters()}],
            lr=0.1,
        )
    )
    cross_entropy(model(torch.ones(1, 1, 8, 8)), torch.tensor([1])).backward()
    unnamed.step()


@pytest.mark.parametrize("n", [1, 2])
def test_wrong_wrapping_is_refused(run_ranks, n):
    run_ranks(n, rank_refusals)


def rank_loader():
    """DataLoader's workers are forked from a rank; they neither hide nor hold anything of it."""
    hvd.init()
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4))
    sums = []
    for _ in range(2):
        loader = torch.utils.data.DataLoader(
            data, batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        for (batch,) in loader:
            sums.append(hvd.allreduce(batch.sum(), op=hvd.Sum).item())
    return sum(sums)


def test_forked_loader_workers(run_ranks):
    total = 2 * 2 * sum(range(64))
    assert run_ranks(2, rank_loader) == [total, total]


def rank_id_again():
    """A parameter that is gone has left its place in memory, and so its id, to another one."""
    hvd.init()
    body, *head = (nn.Parameter(torch.ones(2)) for _ in range(3))
    inner = torch.optim.SGD([body], lr=1.0)
    named = [("body", body), ("head", head[0]), ("bias", head[1])]
    optimizer = hvd.DistributedOptimizer(inner, named)
    places = {id(p) for p in head}
    named.clear()
    head.clear()
    made = [nn.Parameter(torch.ones(2))]
    while id(made[-1]) not in places and len(made) < 1000:  # an early one usually is
        made.append(nn.Parameter(torch.ones(2)))
    optimizer.add_param_group({"params": made[-1:]})
    return [slot.name for slot in optimizer._exchange.slots.values()]


def test_a_parameter_has_no_name_of_one_that_is_gone(run_ranks):
    assert run_ranks(2, rank_id_again) == [["body", "noname.1.0"]] * 2
