# SPDX-License-Identifier: Apache-2.0
"""What scripts written for Horovod rely on, a test a behaviour."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import horon  # noqa: E402
import horon.torch as hvd  # noqa: E402
from torch import nn  # noqa: E402

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # see test_torch_optimizer.py


# ---- Gradients of what moves ----


def rank_averaged_gradients():
    """A loss of gathered tensors: each rank's gradient is an average, not a sum, over the ranks."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    weights = torch.arange(1.0, 2.0 * size + 1)
    for gather in (
        lambda x: hvd.allgather(x, name="g"),
        lambda x: hvd.grouped_allgather([x, x.detach()], name="h")[0],
    ):
        x = torch.ones(2, requires_grad=True)
        (gather(x) * weights * (rank + 1)).sum().backward()
        mean = (size + 1) / 2
        assert x.grad.tolist() == [mean * (2 * rank + 1), mean * (2 * rank + 2)]
    for root in range(size):
        x = torch.ones(2, requires_grad=True)
        (hvd.broadcast(x, root, name="b") * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [mean if rank == root else 0.0] * 2
        x = torch.ones(2, requires_grad=True)
        a, b, c = hvd.grouped_broadcast([x, torch.ones(2), 3 * x], root, name="c")
        assert a.requires_grad and c.tolist() == [3.0, 3.0]
        ((a + b + c) * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [4 * mean if rank == root else 0.0] * 2
    # what would overflow as a sum does not as an average
    x = torch.ones(1, dtype=torch.float16, requires_grad=True)
    (hvd.broadcast(x, 0) * 60000).sum().backward()
    assert x.grad.item() == (60000 if rank == 0 else 0)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_of_gathers_and_broadcasts_are_averaged(run_ranks, n):
    run_ranks(n, rank_averaged_gradients)


def derivatives(move):
    """-> a function that averages, its derivative and the derivative of that, at known tensors"""
    x = torch.ones(2, requires_grad=True)
    y = move(x)
    seed = torch.full_like(y, hvd.rank() + 1.0, requires_grad=True)
    (averages,) = torch.autograd.grad(y, x, seed, create_graph=True)
    weight = torch.tensor([hvd.rank() + 1.0, 5.0], requires_grad=True)
    (shares,) = torch.autograd.grad(averages, seed, weight, create_graph=True)
    (again,) = torch.autograd.grad(shares, weight, torch.full_like(shares, hvd.rank() + 1.0))
    return averages.tolist(), shares.tolist(), again.tolist()


def rank_derivatives():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    mean = [(size + 1) / 2] * 2
    averages, shares, again = derivatives(lambda x: hvd.allgather(x, name="g"))
    assert averages == again == mean
    assert shares == pytest.approx([w / size for r in range(size) for w in (r + 1.0, 5.0)])
    for cast in (
        lambda x: hvd.broadcast(x, size - 1, name="b"),
        lambda x: hvd.grouped_broadcast([x, x.detach()], size - 1, name="c")[0],
    ):
        averages, shares, again = derivatives(cast)
        assert averages == again == (mean if rank == size - 1 else [0.0] * 2)
        assert shares == pytest.approx([1.0, 5.0 / size])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_of_averaged_gradients_are_exact(run_ranks, n):
    run_ranks(n, rank_derivatives)


# ---- Numbers of reductions ----

BY_NUMBER = {0: 2.5, 1: 5.0, 3: 1.0, 4: 4.0, 5: 4.0}  # of 1 and 4


def rank_numbers_of_reductions():
    hvd.init()
    mine = 1.0 + 3 * hvd.rank()
    for op, want in BY_NUMBER.items():
        assert horon.allreduce(mine, op=op) == want
        assert hvd.allreduce(torch.tensor([mine]), op=op).item() == want
        assert hvd.grouped_allreduce([torch.tensor([mine])], op=op)[0].item() == want
        p = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [(f"p{op}", p)], op=op)
        (p * mine).sum().backward()
        optimizer.step()
        assert p.item() == -want
    names = [op.name for op in sorted(hvd.ReduceOp)]
    assert names[:6] == ["Average", "Sum", "Adasum", "Min", "Max", "Product"]
    assert names[6:] == ["BitAnd", "BitOr", "BitXor"]  # horon's own
    assert list(hvd.ReduceOp) == [getattr(hvd, name) for name in names]
    assert hvd.allreduce(torch.tensor([3.0]), op=2).item() == 3.0  # what is equal counts once
    with pytest.raises(NotImplementedError, match="no ADASUM"):
        horon.allreduce(1.0, op=2)
    for wrong in (9, -1):
        with pytest.raises(ValueError):
            hvd.allreduce(torch.ones(1), op=wrong)
    assert horon.allreduce(1.0, op=hvd.Sum) == 2.0


def test_reductions_have_the_numbers_of_horovod(run_ranks):
    run_ranks(2, rank_numbers_of_reductions)


# ---- Scale factors ----


def rank_scales():
    """Horovod rounds a factor to float32, for an Average the factor over size(); here the sum is
    divided by size(), which is at most 2**-22 of the value away."""
    hvd.init()
    size = hvd.size()
    total = torch.randn(4099, generator=torch.Generator().manual_seed(3))
    x = total if hvd.rank() == 0 else torch.zeros(4099)
    for factor in (0.1, 1 / 3, 7.7e-5, 123456.789, 0.5):
        horovods = total * torch.tensor(factor)
        for before, after in ((factor, 1.0), (1.0, factor)):
            scales = {"prescale_factor": before, "postscale_factor": after}
            assert hvd.allreduce(x, op=hvd.Sum, **scales).equal(horovods)
            assert hvd.allreduce_(x.clone(), op=hvd.Sum, **scales).equal(horovods)
            (alone,) = hvd.grouped_allreduce([x.view(1, -1)], op=hvd.Sum, **scales)
            assert alone.equal(horovods.view(1, -1))
            assert (horon.allreduce(x.numpy(), op=horon.Sum, **scales) == horovods.numpy()).all()
            mine = horovods.tensor_split(size)[hvd.rank()]
            assert hvd.reducescatter(x, op=hvd.Sum, **scales).equal(mine)
        horovods = (total * torch.tensor(factor / size)).double()
        got = hvd.allreduce(x, op=hvd.Average, postscale_factor=factor).double()
        assert ((got - horovods).abs() <= 2.0**-22 * horovods.abs()).all()
        if size == 2:
            assert got.equal(horovods)
        exact = total.double() * factor
        assert hvd.allreduce(x.double(), op=hvd.Sum, prescale_factor=factor).equal(exact)
    # of gradients, too, which are prepared another way
    p = nn.Parameter(torch.zeros(4099))
    options = {"gradient_predivide_factor": 3.0}
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], **options)
    for _ in range(2):
        optimizer.zero_grad()
        (p * x).sum().backward()
        optimizer.step()
        assert size != 2 or p.grad.equal(total * torch.tensor(1 / 3) * 3.0 / 2)


@pytest.mark.parametrize("n", [2, 3])
def test_scale_factors_are_horovods(run_ranks, n):
    run_ranks(n, rank_scales)


# ---- Sparse gradients that travel as dense ones ----


def tables():
    a, b = (nn.Embedding(6, 2, sparse=True) for _ in range(2))
    nn.init.ones_(a.weight)
    nn.init.ones_(b.weight)
    return a, b, torch.optim.SparseAdam([a.weight, b.weight], lr=0.5)


def rank_sparse_as_dense(grouped):
    """The optimizer gets sparse gradients back: SparseAdam takes no others."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    a, b, optimizer = tables()
    named = [("a", a.weight), ("b", b.weight)]
    groups = [[a.weight, b.weight]] if grouped else None
    optimizer = hvd.DistributedOptimizer(optimizer, named, groups=groups, sparse_as_dense=True)
    alone_a, alone_b, alone = tables()
    for step in range(3):
        optimizer.zero_grad()
        a(torch.tensor([rank, 5])).sum().backward()
        if step == 0 or rank == 0:  # the gradient that a rank does not have is sparse, too
            (b(torch.tensor([2])) * torch.tensor([3.0, 0.0])).sum().backward()
        optimizer.step()
        alone_a.weight.grad = torch.zeros(6, 2)
        alone_a.weight.grad[:size] = 1 / size
        alone_a.weight.grad[5] = 1.0
        alone_b.weight.grad = torch.zeros(6, 2)
        alone_b.weight.grad[2, 0] = 3.0 if step == 0 else 3.0 / size
        for mine, want in ((a.weight, alone_a.weight), (b.weight, alone_b.weight)):
            assert mine.grad.is_sparse and torch.allclose(mine.grad.to_dense(), want.grad)
            assert mine.grad._nnz() == want.grad.count_nonzero()
            want.grad = want.grad.to_sparse()
        alone.step()
    assert torch.allclose(a.weight, alone_a.weight) and torch.allclose(b.weight, alone_b.weight)


@pytest.mark.parametrize("grouped", [False, True])
def test_sparse_as_dense_gives_sparse_gradients(run_ranks, grouped):
    run_ranks(2, rank_sparse_as_dense, grouped)


# ---- Handles ----


def rank_called_handle():
    hvd.init()
    sparse = torch.sparse_coo_tensor([[hvd.rank()]], [4.0], (2,))
    handle = hvd.sparse_allreduce_async(sparse, "s", hvd.Average)
    assert callable(handle)
    result = handle()
    assert result.is_sparse and result.to_dense().tolist() == [2.0, 2.0]
    assert handle() is result


def test_handle_of_a_sparse_allreduce_can_be_called(run_ranks):
    run_ranks(2, rank_called_handle)


def rank_own_handle():
    """What needs nothing more once it has ended, and what does."""
    hvd.init()
    tensor = torch.full((3,), float(hvd.rank()))
    apart = hvd.allreduce_async(tensor, name="apart", op=hvd.Sum)
    in_place = hvd.allreduce_async_(tensor, name="in_place", op=hvd.Sum)
    turned = torch.tensor([1 + 2j]).conj()
    broadcast = hvd.broadcast_async(turned, 0, name="turned")
    for handle in (apart, in_place, broadcast):
        assert isinstance(handle, hvd.Handle)
    prepared = hvd.prepare("allreduce", torch.ones(1), torch.ones(1), name="prepared")
    for ask in (hvd.poll, hvd.synchronize):
        with pytest.raises(TypeError, match="not Request"):
            ask(prepared)
    assert in_place() is tensor and in_place.wait(timeout=1) is tensor and in_place.poll()
    result = hvd.synchronize(apart)
    assert result is apart() and result is not tensor and result.tolist() == [1.0] * 3
    assert hvd.synchronize(broadcast).tolist() == [1 - 2j]
    for words, named in (((1,), {}), ((), {"timeout": 1})):
        with pytest.raises(TypeError):
            in_place(*words, **named)
    for words, named in (((1, 2), {}), ((), {"limit": 1}), ((1,), {"timeout": 1})):
        with pytest.raises(TypeError):
            in_place.wait(*words, **named)
    tensor.handle = in_place  # a cycle
    gone = weakref.ref(tensor)
    del tensor, in_place, handle
    gc.collect()
    assert gone() is None


def test_an_operation_is_its_own_handle(run_ranks):
    run_ranks(2, rank_own_handle)


def rank_unknown_handles():
    """Horovod's handles are numbers, and None is what a script has before it has one."""
    hvd.init()
    for unknown in (12345, -1, None):
        assert hvd.synchronize(unknown) is None
        with pytest.raises(TypeError if unknown is None else ValueError, match="handle is needed"):
            hvd.poll(unknown)
    for call in (hvd.synchronize, hvd.poll):
        with pytest.raises(TypeError, match=r"a handle is needed.*not Tensor"):
            call(torch.ones(1))


def test_unknown_handles(run_ranks):
    run_ranks(1, rank_unknown_handles)


# ---- Optimizer state ----


def rank_new_state(kind, wrapped):
    hvd.init()
    model = nn.Linear(2, 1)
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    params = [frozen, *model.parameters()]
    names = ["frozen", "weight", "bias"]
    optimizer = {
        "adam": lambda: torch.optim.AdamW(params, lr=0.1 + hvd.rank(), weight_decay=0.5),
        "momentum": lambda: torch.optim.SGD(params, lr=0.1 + hvd.rank(), momentum=0.9),
        "plain": lambda: torch.optim.SGD(params, lr=0.1 + hvd.rank(), weight_decay=0.5),
        "sparse": lambda: torch.optim.SparseAdam(params, lr=0.1 + hvd.rank()),
        "closure": lambda: torch.optim.LBFGS(params, lr=0.1 + hvd.rank()),
    }[kind]()
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, zip(names, params, strict=True))
    before = [p.detach().clone() for p in params]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert all(p.equal(value) for p, value in zip(params, before, strict=True))
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert frozen.grad is None
    for p in params[1:]:
        assert p.grad.is_sparse == (kind == "sparse") and not p.grad.to_dense().any()
    state = optimizer.state_dict()["state"]
    kept = {"adam": "exp_avg", "momentum": "momentum_buffer", "sparse": "exp_avg"}.get(kind)
    if kept is None:
        assert not state
    else:
        assert list(state) == [1, 2] and not any(part[kept].any() for part in state.values())
    if kind in ("adam", "sparse"):
        assert all(part["step"] == 1 for part in state.values())
    if kind != "closure" and kind != "sparse":  # training goes on
        optimizer.zero_grad()
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("kind", ["adam", "momentum", "plain", "sparse", "closure"])
def test_state_of_a_new_optimizer(run_ranks, kind, wrapped):
    run_ranks(2, rank_new_state, kind, wrapped)


def rank_frozen_integers():
    """A parameter of integers has no gradient, and none is made for it."""
    hvd.init()
    frozen = nn.Parameter(torch.tensor([1, 3], dtype=torch.int32), requires_grad=False)
    p = nn.Parameter(torch.full((4,), float(hvd.rank())))
    options = {"lr": 0.001, "weight_decay": 1e-6, "momentum": 0.9, "nesterov": True}
    named = {"frozen": frozen, "p": p}
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([frozen, p], **options), named.items())
    hvd.broadcast_parameters(named, root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert frozen.grad is None and frozen.tolist() == [1, 3] and not p.any()
    assert p.grad.equal(hvd.broadcast(p.grad, root_rank=0))


def test_state_beside_a_frozen_parameter_of_integers(run_ranks):
    run_ranks(2, rank_frozen_integers)


# ---- What the wrapped optimizer shows ----


def rank_attributes(n):
    hvd.init()
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    c.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([a, b, c], lr=1.0),
        [("a", a), ("b", b), ("c", c)],
        compression=hvd.Compression.bf16,
        backward_passes_per_step=2,
        gradient_predivide_factor=4.0,
        sparse_as_dense=True,
    )
    assert optimizer.op is hvd.Average and optimizer.process_set is hvd.global_process_set
    assert optimizer.gradient_predivide_factor == 4.0 and optimizer.sparse_as_dense is True
    assert optimizer._compression is hvd.Compression.bf16
    assert optimizer._parameter_names == {a: "a", b: "b", c: "c"}
    assert optimizer._requires_update == ({a, b} if n > 1 else set())
    assert optimizer._allreduce_delay == {a: 2, b: 2, c: 2} and optimizer._handles == {}
    (a.sum() + b.sum()).backward()
    a.sum().backward()
    if n > 1:
        assert optimizer._allreduce_delay == {a: 0, b: 1, c: 2}
        assert set(optimizer._handles) == {a, b} and optimizer._handles[b] == (None, None)
        handle, ctx = optimizer._handles[a]
        b.sum().backward()
        assert ctx == torch.float32 and hvd.synchronize(handle).tolist() == [2.0, 2.0]
    optimizer.step()
    assert optimizer._handles == {} and optimizer._allreduce_delay == {a: 2, b: 2, c: 2}
    optimizer.backward_passes_per_step = 1
    assert optimizer.backward_passes_per_step == 1
    assert optimizer._allreduce_delay == {a: 1, b: 1, c: 1}
    optimizer.zero_grad()
    (a.sum() + b.sum()).backward()
    optimizer.step()
    with pytest.raises(ValueError, match="at least 1"):
        optimizer.backward_passes_per_step = 0


@pytest.mark.parametrize("n", [1, 2])
def test_attributes_of_the_wrapped_optimizer(run_ranks, n):
    run_ranks(n, rank_attributes, n)


def rank_unnamed_parameters():
    hvd.init()
    layers = [nn.Linear(10, 10) for _ in range(2)]
    groups = [{"params": layer.parameters()} for layer in layers]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.001))
    names = sorted(optimizer._parameter_names.values())
    assert len(set(names)) == 4 and hvd.allgather_object(names) == [names] * hvd.size()


def test_parameters_without_names_are_called_alike(run_ranks):
    run_ranks(2, rank_unnamed_parameters)


def rank_gradients_when_wrapped(options):
    """Wrapping leaves gradients alone; step() makes zeros where no pass has left one."""
    hvd.init()
    p = {name: nn.Parameter(torch.ones(2)) for name in "abc"}
    p["b"].grad = given = torch.ones(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(p.values(), lr=1.0), p.items(), **options)
    assert p["a"].grad is None and p["b"].grad is given and p["c"].grad is None
    optimizer.zero_grad()
    p["a"].sum().backward()
    optimizer.step()
    zeros = None if options else [0.0, 0.0]
    assert [getattr(p[name].grad, "tolist", lambda: None)() for name in "bc"] == [zeros] * 2
    assert [p[name].tolist() for name in "abc"] == [[0.0] * 2, [1.0] * 2, [1.0] * 2]


@pytest.mark.parametrize("options", [{}, {"op": hvd.Adasum}], ids=str)
def test_gradients_of_a_wrapped_optimizer_are_made_in_its_step(run_ranks, options):
    run_ranks(2, rank_gradients_when_wrapped, options)


def rank_turns():
    """A generator and what judges it, frozen in turns."""
    hvd.init()
    makes, judges = nn.Conv2d(1, 10, 1), nn.Conv2d(10, 1, 1)
    optimizers = {
        model: hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        for model in (makes, judges)
    }
    for turn in range(10):
        trained = (makes, judges)[turn % 2]
        for model, optimizer in optimizers.items():
            model.requires_grad_(model is trained)
            optimizer.zero_grad()
        judges(makes(torch.rand(1, 1, 9, 9))).sum().backward()
        for model in optimizers:
            for p in model.parameters():
                assert (p.grad is not None and p.grad.any().item()) == (model is trained)
        optimizers[trained].step()
    for model in (makes, judges):
        for p in model.parameters():
            assert torch.isfinite(p).all()


def test_models_are_frozen_in_turns(run_ranks):
    run_ranks(2, rank_turns)


def rank_handles():
    """Of plain gradients, which go without a handle, and of groups."""
    hvd.init()
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    for groups, keys in ((None, {a, b}), ([[a, b]], {(a, b)})):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)], op=hvd.Sum, groups=groups
        )
        a.sum().backward()
        if groups:
            assert optimizer._handles == {a: (None, None)}
        b.sum().backward()
        assert set(optimizer._handles) == keys
        for handle, _ in optimizer._handles.values():
            result = handle.wait()
            assert all(t.tolist() == [2.0, 2.0] for t in (result if groups else [result]))
        optimizer.step()
        assert optimizer._handles == {}
        optimizer.zero_grad()


def test_handles_of_the_wrapped_optimizer(run_ranks):
    run_ranks(2, rank_handles)


# ---- horovod.torch.mpi_ops ----


def rank_mpi_ops():
    from horon.torch import mpi_ops

    mpi_ops.init()
    basics, rank, size = mpi_ops._basics, mpi_ops.rank(), mpi_ops.size()
    assert (basics.rank(), basics.size(), basics.Sum) == (rank, size, mpi_ops.Sum)
    assert issubclass(mpi_ops.HorovodInternalError, RuntimeError)
    resolve = mpi_ops.handle_average_backwards_compatibility
    assert (resolve(None, None), resolve(mpi_ops.Max, None)) == (mpi_ops.Average, mpi_ops.Max)
    with pytest.warns(DeprecationWarning):
        assert resolve(None, False) == mpi_ops.Sum
    with pytest.raises(ValueError):
        resolve(mpi_ops.Sum, True)
    assert [n for n in range(-1, 10) if mpi_ops.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert mpi_ops.gpu_available("torch") == torch.cuda.is_available()
    x = torch.ones(2, requires_grad=True)
    everyone = mpi_ops.global_process_set
    outputs = [
        mpi_ops.HorovodAllreduce.apply(x, None, "a", mpi_ops.Sum, 1.0, 2.0, everyone),
        *mpi_ops.HorovodGroupedAllreduce.apply(None, "b", mpi_ops.Sum, 1.0, 1.0, everyone, x, x),
        mpi_ops.HorovodAllgather.apply(x, "c", everyone),
        *mpi_ops.HorovodGroupedAllgather.apply("d", everyone, x, x),
        mpi_ops.HorovodBroadcast.apply(x, 0, "e", everyone),
    ]
    assert [len(y) for y in outputs] == [2, 2, 2, 2 * size, 2 * size, 2 * size, 2]
    sum(y.sum() for y in outputs).backward()
    assert x.grad.tolist() == [2.0 * size + 2 * size + 3 + (rank == 0)] * 2


def test_names_of_mpi_ops(run_ranks):
    run_ranks(2, rank_mpi_ops)


# ---- torch.jit.trace ----

TRACED = {
    "allreduce": lambda x, name: hvd.allreduce(x, name=name, op=hvd.Sum),
    "grouped_allreduce": lambda x, name: hvd.grouped_allreduce([x, x], name=name, op=hvd.Max)[1],
    "allgather": hvd.allgather,
    "grouped_allgather": lambda x, name: hvd.grouped_allgather([x, x], name)[1],
    "alltoall": lambda x, name: hvd.alltoall(x, name=name),
    "reducescatter": lambda x, name: hvd.reducescatter(x, name=name, op=hvd.Sum),
    "grouped_reducescatter": lambda x, name: hvd.grouped_reducescatter([x], name, op=hvd.Sum)[0],
    "broadcast": lambda x, name: hvd.broadcast(x, 1, name),
    "grouped_broadcast": lambda x, name: hvd.grouped_broadcast([x, x], 1, name)[1],
}


def rank_traces(requires_grad):
    """What was traced exchanges the tensors that it is called with, as with Horovod."""
    hvd.init()
    example = torch.ones(4, requires_grad=requires_grad)
    other = torch.arange(4.0) + 10 * hvd.rank()
    for name, operation in TRACED.items():

        def compute(x, name=name, operation=operation):
            return operation(x * 2, name) + 1

        traced = torch.jit.trace(compute, example)
        for given in (other, other * 3):
            assert traced(given).tolist() == compute(given).tolist(), name


@pytest.mark.parametrize("requires_grad", [False, True])
def test_traced_operations_are_carried_out(run_ranks, requires_grad):
    run_ranks(2, rank_traces, requires_grad)


# ---- Names ----


def rank_names_in_use():
    hvd.init()
    size, x = hvd.size(), torch.ones(3)
    if hvd.rank() == 0:
        first = hvd.allreduce_async(x, name="twice", op=hvd.Sum)
        for again in (hvd.allreduce_async, hvd.allreduce_async_, hvd.allreduce):
            with pytest.raises(ValueError, match=r"'allreduce\.twice'"):
                again(x, name="twice", op=hvd.Sum)
        hvd.barrier()
        assert hvd.synchronize(first).tolist() == [size] * 3
    else:
        hvd.barrier()
        hvd.allreduce(x, name="twice", op=hvd.Sum)
    # It has ended here, and perhaps not on the others: what comes next under its name is the next
    for n in range(200):
        assert hvd.allreduce(x * n, name="twice", op=hvd.Sum).tolist() == [n * size] * 3


@pytest.mark.parametrize("n", [2, 3])
def test_name_is_in_use_until_its_operation_has_ended_here(run_ranks, n):
    run_ranks(n, rank_names_in_use)
