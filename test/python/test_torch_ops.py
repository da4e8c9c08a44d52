# SPDX-License-Identifier: Apache-2.0
"""torch tensors: every operation, type and form, and the gradients of operations."""

from functools import reduce

import pytest

torch = pytest.importorskip("torch")

import horon.torch as hvd  # noqa: E402
from horon import _horon, _names, _world  # noqa: E402

REDUCED = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
)
LENT = (
    "complex32",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)
MOVED = (*REDUCED, "complex64", "complex128", "float8_e4m3fn", "float8_e5m2")
COUNTS = (0, 1, 13, 4099)


def dtypes(names):
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


def value(dtype, count, rank):
    """Small integers that every type holds exactly; each rank has its own."""
    numbers = (torch.arange(count, dtype=torch.float64) + 2 * rank) % 5 + 1
    return (numbers % 2 if dtype == torch.bool else numbers).to(dtype)


def same(a, b):
    """Equality also for types that torch cannot compare."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = (t.contiguous().view(-1).view(torch.uint8) for t in (a, b))
    return a.equal(b)


BITWISE = {
    hvd.BitAnd: torch.bitwise_and,
    hvd.BitOr: torch.bitwise_or,
    hvd.BitXor: torch.bitwise_xor,
}


def has(dtype, op):
    if op in BITWISE:
        return not dtype.is_floating_point
    return op != hvd.Adasum and not (dtype == torch.bool and op == hvd.Average)


def expected(dtype, count, size, op):
    if op in BITWISE:
        values = [value(dtype, count, rank).to(torch.int64) for rank in range(size)]
        return reduce(BITWISE[op], values).to(dtype)
    wide = torch.stack([value(dtype, count, rank).to(torch.float64) for rank in range(size)])
    if op == hvd.Sum:
        return wide.sum(0).to(dtype)
    if op == hvd.Average:
        return (wide.sum(0) / size).to(dtype)
    if op == hvd.Product:
        return wide.prod(0).to(dtype)
    return (wide.amin(0) if op == hvd.Min else wide.amax(0)).to(dtype)


def rank_allreduce_types():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for count in COUNTS:
        for dtype in dtypes(REDUCED):
            for op in hvd.ReduceOp:
                if not has(dtype, op):
                    continue
                name = f"{dtype}.{count}.{op.name}"
                mine = value(dtype, count, rank)
                want = expected(dtype, count, size, op) if count else mine
                got = hvd.allreduce(mine, name=name, op=op)
                if dtype.is_floating_point:
                    assert torch.allclose(got.double(), want.double(), rtol=1e-2, atol=0), name
                else:
                    assert same(got, want), (name, got, want)
                assert same(mine, value(dtype, count, rank)), f"{name}: the input has changed"
                assert hvd.allreduce_(mine, name=name, op=op) is mine
                assert same(mine, got), name


@pytest.mark.parametrize("n", [1, 2, 3])
def test_allreduce_every_type_and_op_is_right(run_ranks, n):
    run_ranks(n, rank_allreduce_types)


def rank_move_types():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtype in dtypes(MOVED):
        for rows in (0, 1, 7):
            mine = value(dtype, (rows + rank) * 3, rank).reshape(rows + rank, 3)
            got = hvd.allgather(mine, name=f"g.{dtype}.{rows}")
            want = (
                torch.cat([value(dtype, (rows + r) * 3, r).view(torch.uint8) for r in range(size)])
                .view(dtype)
                .reshape(-1, 3)
            )
            assert same(got, want), (dtype, rows)
        for root in range(size):
            mine = value(dtype, 11, rank)
            assert same(hvd.broadcast(mine, root, name=f"b.{dtype}"), value(dtype, 11, root))
            assert same(mine, value(dtype, 11, rank))
            assert hvd.broadcast_(mine, root, name=f"b.{dtype}") is mine
            assert same(mine, value(dtype, 11, root)), dtype


@pytest.mark.parametrize("n", [1, 3])
def test_allgather_and_broadcast_move_every_type(run_ranks, n):
    run_ranks(n, rank_move_types)


def rank_lent_types():
    """Types that no verb reduces and horon has no name for."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for dtype in dtypes(LENT):
        width = dtype.itemsize
        values = torch.arange(6 * width, dtype=torch.uint8)
        whole = [(values + 50 * r).view(dtype).reshape(2, 3) for r in range(size)]
        for mine, turn in ((whole[rank], 0), (whole[rank].t(), 1)):
            want = [w.t() if turn else w for w in whole]
            assert same(hvd.broadcast(mine, size - 1, name=f"{dtype}"), want[-1]), dtype
            joined = torch.cat([w.contiguous().view(torch.uint8) for w in want]).view(dtype)
            assert same(hvd.allgather(mine, name=f"{dtype}"), joined), dtype
            assert same(hvd.grouped_allgather([mine, mine])[1], joined), dtype
            copy = mine.clone()
            assert hvd.broadcast_(copy, size - 1, name=f"{dtype}") is copy
            assert same(copy, want[-1]), dtype
        with pytest.raises(ValueError, match="cannot be reduced"):
            hvd.allreduce(whole[rank], op=hvd.Sum)
        with pytest.raises(ValueError, match="cannot be reduced"):
            hvd.allreduce_(whole[rank], op=hvd.Sum)
    with pytest.raises(ValueError, match="cannot be broadcast"):
        hvd.broadcast(torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), 0)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("n", [1, 2])
def test_types_without_a_name_move(run_ranks, n):
    run_ranks(n, rank_lent_types)


def rank_forms():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    total = sum(range(size))
    # scalars and empty tensors
    assert hvd.allreduce(torch.tensor(float(rank)), op=hvd.Sum).item() == total
    assert hvd.allreduce(torch.tensor(float(rank))).shape == ()
    assert hvd.allgather(torch.tensor(rank)).tolist() == list(range(size))
    assert hvd.allgather(torch.empty(0, 4)).shape == (0, 4)
    assert hvd.allreduce(torch.empty(3, 0)).shape == (3, 0)
    # strided, transposed, expanded, channels last, conjugated, negated
    grid = torch.arange(12.0).reshape(3, 4)
    mine = grid + rank
    assert hvd.allreduce(mine.t(), op=hvd.Sum).equal(grid.t() * size + total)
    hvd.allreduce_(mine[:, 1], op=hvd.Sum)
    assert mine[:, 1].equal(grid[:, 1] * size + total) and mine[:, 0].equal(grid[:, 0] + rank)
    assert hvd.allreduce(torch.ones(1).expand(5), op=hvd.Sum).tolist() == [size] * 5
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert hvd.broadcast(image, 0).shape == image.shape
    copy = image.clone()
    hvd.broadcast_(copy, rank if size == 1 else 0)
    assert copy.is_contiguous(memory_format=torch.channels_last)
    assert rank or copy.equal(image)
    turned = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert hvd.broadcast(turned, 0).tolist() == [1 - 2j, 3 + 1j]
    assert hvd.allreduce(turned.imag, op=hvd.Sum).tolist() == [-2.0 * size, 1.0 * size]
    # parameters and tensors of more dimensions than the wire knows
    parameter = torch.nn.Parameter(torch.full((2,), float(rank)))
    hvd.broadcast_(parameter, size - 1)
    assert parameter.tolist() == [size - 1.0] * 2 and parameter.requires_grad
    assert hvd.allreduce(torch.ones([1] * 9 + [3]), op=hvd.Sum).sum().item() == 3 * size
    # handles, in any order; names that two verbs share
    handles = [
        hvd.allreduce_async(torch.full((n,), float(rank)), op=hvd.Sum, name=f"h{n}")
        for n in range(30)
    ]
    handles.append(hvd.broadcast_async(torch.tensor([rank]), 0, name="h3"))
    for handle in handles if rank % 2 else handles[::-1]:
        hvd.synchronize(handle)
        assert hvd.poll(handle)
    assert hvd.synchronize(handles[2]).tolist() == [total] * 2
    assert handles[-1].wait().item() == 0
    # groups
    tensors = [torch.full((n,), float(rank + n)) for n in range(4)]
    for n, result in enumerate(hvd.grouped_allreduce(tensors, op=hvd.Sum)):
        assert result.tolist() == [total + n * size] * n
    assert hvd.grouped_allreduce_(tensors, op=hvd.Sum)[3] is tensors[3]
    assert tensors[3].tolist() == [total + 3.0 * size] * 3
    a, b = hvd.grouped_allgather([torch.full((rank,), rank), torch.tensor([[rank]])])
    assert len(a) == total and b.shape == (size, 1)
    assert hvd.grouped_allreduce([]) == []
    # scale factors and old arguments
    one = torch.ones(2)
    assert hvd.allreduce(one, op=hvd.Sum, prescale_factor=0.5).tolist() == [size / 2] * 2
    assert hvd.allreduce(one, op=hvd.Sum, postscale_factor=3.0).tolist() == [size * 3.0] * 2
    for call in (hvd.allreduce, hvd.allreduce_):
        with pytest.warns(DeprecationWarning) as caught:
            assert call(torch.ones(2), average=False).tolist() == [size] * 2
        assert caught[0].filename == __file__
    # compression
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        got = hvd.allreduce(torch.tensor([0.5, 2.0]), compression=compression, op=hvd.Sum)
        assert got.dtype == torch.float32 and got.tolist() == [0.5 * size, 2.0 * size]
    # sparse
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,))
    dense = hvd.synchronize(hvd.sparse_allreduce_async(sparse, op=hvd.Sum)).to_dense()
    assert dense.tolist() == [1.0] * size + [2.0 * size]
    hvd.barrier()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_forms_of_tensors_and_calls(run_ranks, n):
    run_ranks(n, rank_forms)


def test_forms_of_tensors_and_calls_over_tcp(run_ranks):
    run_ranks(3, rank_forms, HORON_SHM=0)


def rank_broadcasts_groups():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    tensors = [torch.full((n,), float(rank + n)) for n in range(4)]
    for form in (
        lambda: hvd.grouped_broadcast(tensors, size - 1),
        lambda: hvd.grouped_broadcast_async(tensors, size - 1, name="cast").wait(),
    ):
        assert [t.tolist() for t in form()] == [[size - 1.0 + n] * n for n in range(4)]
        assert [t.tolist() for t in tensors] == [[float(rank + n)] * n for n in range(4)]
    for form in (
        lambda: hvd.grouped_broadcast_(tensors, 0),
        lambda: hvd.grouped_broadcast_async_(tensors, root_rank=0).wait(),
    ):
        assert all(a is b for a, b in zip(form(), tensors, strict=True))
        assert [t.tolist() for t in tensors] == [[float(n)] * n for n in range(4)]
    a, b = hvd.grouped_broadcast([torch.tensor([1 + rank * 1j]), torch.tensor(rank > 0)], 0)
    assert a.tolist() == [1 + 0j] and b.item() is False
    assert hvd.grouped_broadcast([], 0) == []


@pytest.mark.parametrize("n", [1, 2, 3])
def test_groups_are_broadcast_in_every_form(run_ranks, n):
    run_ranks(n, rank_broadcasts_groups)


def rank_wrong_arguments():
    hvd.init()
    with pytest.raises(TypeError):
        hvd.allreduce([1.0])
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather):
        with pytest.raises(ValueError, match=r"layout torch.sparse_coo: sparse_allreduce_async"):
            call(torch.eye(2).to_sparse())
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather):
        with pytest.raises(ValueError, match=r"not a nested one: unbind\(\) gives its parts"):
            call(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))
    expanded = torch.ones(1).expand(3)
    for call in (hvd.allreduce_, lambda t: hvd.broadcast_(t, 0)):
        with pytest.raises(ValueError, match=r"share an address.* clone\(\) makes"):
            call(expanded)
    assert hvd.allreduce(expanded, op=hvd.Sum).tolist() == [2.0] * 3
    nothing = torch.empty(0, 1).expand(0, 3)  # and so no elements that share one
    assert hvd.allreduce_(nothing) is nothing
    assert hvd.grouped_allreduce_([nothing])[0] is nothing
    with pytest.raises(ValueError, match="strided; allreduce_async"):
        hvd.sparse_allreduce_async(torch.eye(2))
    with pytest.raises(ValueError, match="sparse COO tensor, not list"):
        hvd.sparse_allreduce_async([1.0])
    with pytest.raises(ValueError, match="NUL"):
        hvd.allreduce_(torch.ones(2), name="a\0b")
    with pytest.raises(ValueError):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64), op=hvd.Sum)
    with pytest.raises(ValueError):
        hvd.allreduce(torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError):
        hvd.broadcast(torch.ones(2), hvd.size())
    with pytest.raises(ValueError):
        hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)
    with pytest.raises((ValueError, NotImplementedError)):
        hvd.allreduce(torch.ones(2, device="meta"))
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_wrong_arguments_raise_and_leave_the_job_working(run_ranks):
    assert run_ranks(2, rank_wrong_arguments) == [2.0, 2.0]


def sparse(*shape, dtype=torch.float32):
    """One element, at the end."""
    return torch.sparse_coo_tensor([[d - 1] for d in shape], torch.ones(1, dtype=dtype), shape)


def rank_sparse_shapes(shapes):
    hvd.init()
    with pytest.raises(hvd.HoronInternalError) as caught:
        hvd.sparse_allreduce_async(sparse(*shapes[hvd.rank()]), name="s").wait()
    assert caught.value.status_name == "ERR_MISMATCH"
    for _ in range(2):  # named and not
        total = hvd.sparse_allreduce_async(sparse(*shapes[0]), op=hvd.Sum).wait()
        assert total.shape == shapes[0] and total.values().tolist() == [hvd.size()]
    return str(caught.value)


@pytest.mark.parametrize(
    "shapes",
    [
        ((4,), (1000004,)),
        ((4, 3), (4, 2)),
        ((4, 3), (12,)),
        ((1, 2, 1, 2, 1, 2, 1, 6, 4), (1, 2, 1, 2, 1, 2, 1, 4, 6)),  # more than horon tells apart
        ((1, 2, 1, 2, 1, 2, 1, 6), (1, 2, 1, 2, 1, 2, 1)),
    ],
)
def test_sparse_tensors_of_different_shapes_fail(run_ranks, shapes):
    for text in run_ranks(2, rank_sparse_shapes, shapes):
        assert "'sparse_allreduce.s.shape" in text and "differ" in text, text
        assert "rank 0" in text and "rank 1" in text, text


def rank_groups_differ():
    hvd.init()
    rank = hvd.rank()
    tensors = [torch.ones(3)] * (2 + rank)
    for call in (
        hvd.grouped_allreduce,
        hvd.grouped_allreduce_,
        hvd.grouped_allgather,
        lambda t: hvd.grouped_broadcast(t, 0),
        lambda t: hvd.grouped_allreduce([x.clone().requires_grad_() for x in t]),
    ):
        with pytest.raises(hvd.HoronInternalError, match="groups differ"):
            call(tensors)
        assert len(call(tensors[:2])) == 2


def test_groups_of_different_sizes_fail(run_ranks):
    run_ranks(2, rank_groups_differ)


REFUSED = {
    "allreduce": lambda: hvd.allreduce([1.0]),
    "allreduce ": lambda: hvd.allreduce_(torch.ones(2), average=True, op=hvd.Sum),
    "allgather": lambda: hvd.allgather(torch.ones(2), process_set=9),
    "broadcast": lambda: hvd.broadcast(torch.ones(2), 99),
    "broadcast ": lambda: hvd.broadcast_(torch.ones(2).to_sparse(), 0),
    "grouped_allreduce": lambda: hvd.grouped_allreduce(5),
    "grouped_allreduce ": lambda: hvd.grouped_allreduce_([1.0]),
    "grouped_allgather": lambda: hvd.grouped_allgather([torch.ones(1), 1.0]),
    "grouped_broadcast": lambda: hvd.grouped_broadcast([torch.ones(1)], 99),
    "grouped_broadcast ": lambda: hvd.grouped_broadcast_([1.0], 0),
    "sparse_allreduce": lambda: hvd.sparse_allreduce_async(torch.eye(2)),
    "parameters": lambda: hvd.broadcast_parameters(torch.nn.Linear(1, 1), 0),
}


def rank_refused():
    hvd.init()
    for verb, call in REFUSED.items():
        before = _names.auto_name(verb.strip())
        with pytest.raises((TypeError, ValueError)):
            call()
        after = _names.auto_name(verb.strip())
        count = int(after.rpartition(".")[2]) - int(before.rpartition(".")[2])
        assert count == 2, (verb, before, after)


def test_call_that_is_refused_counts(run_ranks):
    run_ranks(1, rank_refused)


# ---- Gradients: each rank's must be what one process computes on the joined computation ----


def leaf(rank, *shape):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def weights(*shape):
    generator = torch.Generator().manual_seed(99)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def joined_gradient(size, rank, combine, loss_of):
    """Gradient at `rank`'s leaf of the sum over ranks of the loss of the combined leaves."""
    leaves = [leaf(r, 3 + (r if combine is torch.cat else 0), 2) for r in range(size)]
    combined = combine(leaves)
    sum(loss_of(combined, r) for r in range(size)).backward()
    return leaves[rank].grad


def loss_of(result, rank):
    return (result * weights(*result.shape)).pow(2).sum() * (rank + 1)


def rank_gradients():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    cases = {
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), lambda xs: sum(xs)),
        "average": (lambda x: hvd.allreduce(x), lambda xs: sum(xs) / size),
        "scaled": (
            lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
            lambda xs: sum(xs) * 1.5,
        ),
        "grouped": (
            lambda x: hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)[1],
            lambda xs: sum(xs) * 2,
        ),
        "broadcast": (lambda x: hvd.broadcast(x, size - 1), lambda xs: xs[-1] + 0 * sum(xs)),
        "strided": (lambda x: hvd.allreduce(x.t(), op=hvd.Sum).t(), lambda xs: sum(xs)),
    }
    for name, (collective, combine) in cases.items():
        mine = leaf(rank, 3, 2)
        loss_of(collective(mine), rank).backward()
        want = joined_gradient(size, rank, combine, loss_of)
        if name == "broadcast":  # of the mean of the losses, as with Horovod
            want = want / size
        # the gradient of an averaging allreduce is the average of the gradients, as in Horovod
        assert torch.allclose(mine.grad, want, rtol=1e-12, atol=1e-12), name
    for gather in (hvd.allgather, lambda x: hvd.grouped_allgather([x])[0]):
        mine = leaf(rank, 3 + rank, 2)
        loss_of(gather(mine), rank).backward()
        want = joined_gradient(size, rank, torch.cat, loss_of) / size
        assert torch.allclose(mine.grad, want, rtol=1e-12, atol=1e-12)
    scalar = torch.tensor(float(rank + 1), requires_grad=True)
    (hvd.allgather(scalar) * torch.arange(1.0, size + 1)).sum().backward()
    assert scalar.grad.item() == rank + 1.0
    with pytest.raises(NotImplementedError):
        hvd.allreduce(leaf(rank, 2), op=hvd.Max).sum().backward()
    # second derivatives
    mine = leaf(rank, 2)
    (first,) = torch.autograd.grad(
        hvd.allreduce(mine.pow(3), op=hvd.Sum).sum(), mine, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), mine)
    assert torch.allclose(second, 6 * size * mine.detach())
    # half on the way, full in the gradient
    mine = torch.ones(3, requires_grad=True)
    hvd.allreduce(mine, compression=hvd.Compression.bf16, op=hvd.Sum).sum().backward()
    assert mine.grad.tolist() == [size] * 3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_equal_those_of_one_process(run_ranks, n):
    run_ranks(n, rank_gradients)


def rank_complex_gradients(dtype):
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    shared = torch.complex(torch.arange(12.0), torch.arange(12.0) - 5).to(dtype).reshape(6, 2)

    def gradient(result, mine):
        """Each rank weighs the elements: the first 1 times, the second 2 times as much, ..."""
        weights = (rank + 1) * shared[: result.numel() // 2].reshape(result.shape)
        (weights * result).real.sum().backward()
        assert mine.grad.dtype == dtype and mine.grad.shape == mine.shape
        return mine.grad

    # the gradient of Re(w z) is the conjugate of w; here w is the mean of 1, ..., size times shared
    want = (size + 1) / 2 * shared.conj()
    for gather in (hvd.allgather, lambda x: hvd.grouped_allgather([x])[0]):
        mine = torch.full((1 + rank, 2), 1j, dtype=dtype, requires_grad=True)
        start = rank * (rank + 1) // 2
        assert torch.equal(gradient(gather(mine), mine), want[start : start + 1 + rank])
    for root in range(size):
        mine = torch.full((3, 2), 1j, dtype=dtype, requires_grad=True)
        here = want[:3] if rank == root else torch.zeros(3, 2, dtype=dtype)
        assert torch.equal(gradient(hvd.broadcast(mine, root), mine), here)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_gradients_of_complex_numbers(run_ranks, n, dtype):
    run_ranks(n, rank_complex_gradients, dtype)


def rank_version():
    hvd.init()
    x = torch.ones(2, requires_grad=True)
    y = x * 1.0
    z = (y * y).sum()  # saves y
    hvd.allreduce_(y, op=hvd.Sum)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "increment_version"),
    reason="this torch has no way to tell autograd",
)
def test_autograd_notices_what_is_changed_in_place(run_ranks):
    run_ranks(2, rank_version)


def rank_start_on():
    hvd.init()
    size = hvd.size()
    context = _world.context()
    operation = context.operation(0, "again", hvd.Sum)
    with pytest.raises(ValueError, match="never started"):
        operation.wait()
    for tensor in (torch.ones(3), torch.ones(3), torch.ones(2, 2), torch.ones(5).double()):
        for n in (1, 2):
            assert operation.start_on(tensor)
            operation.wait()
            assert (tensor == size**n).all()
        for start in (operation.start, lambda: _horon.start_all([operation])):
            with pytest.raises(ValueError, match="start_on"):  # the tensor may be gone
                start()
    assert not operation.start_on(torch.ones(4, 4).t()[1:])
    assert not operation.start_on([1.0])
    if hvd.rank() == 0:
        assert operation.start_on(torch.ones(1))
        with pytest.raises(ValueError, match="in flight"):
            operation.start_on(torch.ones(1))
        hvd.barrier()
        operation.wait()
    else:
        hvd.barrier()
        assert operation.start_on(torch.ones(1))
        operation.wait()
    with pytest.raises(ValueError, match="bytes"):
        context.operation(0, "n" * 600)


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no exchange API"
)
def test_operation_on_tensors_that_move(run_ranks):
    run_ranks(2, rank_start_on)


def rank_without_exchange():
    """torch versions without DLPack's exchange API pass addresses."""
    from horon.torch import staging

    staging._HAS_EXCHANGE = False
    hvd.init()
    x = torch.arange(6.0).reshape(2, 3)
    assert hvd.allreduce(x, op=hvd.Sum).equal(x * hvd.size())
    assert hvd.allgather(x).shape == (2 * hvd.size(), 3)
    assert hvd.broadcast(x.t(), 0).equal(x.t())
    assert hvd.grouped_allreduce([x, x], op=hvd.Sum)[1].equal(x * hvd.size())


def test_addresses_when_there_is_no_exchange_api(run_ranks):
    run_ranks(2, rank_without_exchange)
