# SPDX-License-Identifier: Apache-2.0
"""horon.prepare(): every verb, by name and in order, begun again and again."""

import re
from pathlib import Path

import horon
import pytest
from horon import _horon, _requests

numpy = pytest.importorskip("numpy")


def whole(rank, rows):
    return numpy.full((rows, 3), rank + 1, "float32")


def cases(rank, size, rows, root):
    """-> {verb: (what the rank has, where the result goes, the result)}; None: horon's own memory,
    or no result"""
    every = [whole(r, rows) for r in range(size)]
    parts = [numpy.array_split(tensor, size) for tensor in every]
    total, joined = sum(every), numpy.concatenate(every)
    share = numpy.array_split(total, size)[rank]
    mine, is_root = every[rank], rank == root
    room = numpy.zeros_like(total)
    made = {
        "allreduce": (mine, room, total),
        "broadcast": (mine, room, every[root]),
        "allgather": (mine, None, joined),
        "gather": (mine, None, joined if is_root else None),
        "scatter": (mine, None, parts[root][rank]),
        "reducescatter": (mine, numpy.zeros_like(share), share),
        "reduce": (mine, room if is_root else None, total if is_root else None),
        "barrier": (None, None, None),
    }
    if rows % size == 0:
        made["alltoall"] = (mine, None, numpy.concatenate([part[rank] for part in parts]))
    return made


def submitted(verb, src, dst, name, in_order, op, root_rank):
    """As horon.prepare(), begun once."""
    flags = _horon.IN_ORDER if in_order else 0
    code = getattr(_horon, verb.upper())
    return horon._world.context().submit(code, name, src, dst, op, root_rank, 1.0, 1.0, flags)


def check(request, dst, wanted, what):
    request.wait()
    if wanted is None:
        return
    got = numpy.asarray(request.output()[0]) if dst is None else dst
    assert got.size == wanted.size, what
    assert (got.reshape(-1) == wanted.reshape(-1)).all(), what


def rank_every_verb(in_order, starts):
    horon.init()
    size, rank = horon.size(), horon.rank()
    for rows in (0, 1, 4 * size, 4 * size + 1):
        for root in range(size):
            for verb, (src, dst, wanted) in cases(rank, size, rows, root).items():
                what = (verb, rows, root)
                name = None if in_order else str(what)
                how = (verb, src, dst, name, in_order, horon.Sum, root)
                if not starts:
                    check(submitted(*how), dst, wanted, what)
                    continue
                request = horon.prepare(*how)
                for _ in range(starts):
                    if dst is not None:
                        dst[...] = -1
                    request.start()
                    check(request, dst, wanted, what)


@pytest.mark.parametrize("n, shm", [(1, 1), (2, 1), (3, 1), (3, 0)])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("starts", [0, 3])
def test_every_verb_by_name_and_in_order_once_and_again(run_ranks, n, shm, in_order, starts):
    run_ranks(n, rank_every_verb, in_order, starts, HORON_SHM=shm)


def rank_in_place():
    horon.init()
    size, rank = horon.size(), horon.rank()
    for in_order in (False, True):
        tensor = whole(rank, 7)
        sum_up = horon.prepare("allreduce", tensor, tensor, in_order=in_order, op=horon.Sum)
        cast = horon.prepare("broadcast", tensor, tensor, in_order=in_order, root_rank=size - 1)
        place = tensor if rank == 0 else None
        reduce = horon.prepare("reduce", tensor, place, in_order=in_order)
        for step in range(1, 4):  # each start reads what is there then
            tensor[...] = step * whole(rank, 7)
            for request in (sum_up, cast, reduce):
                request.start()
                request.wait()
            assert (tensor == step * size * (size + 1) / 2).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_each_start_takes_what_its_tensors_hold(run_ranks, n):
    run_ranks(n, rank_in_place)


def rank_torch_tensors(in_order):
    """They are used where they lie: what each start reads and writes is the tensor's own."""
    import torch

    horon.init()
    size, rank = horon.size(), horon.rank()
    for root in range(size):
        for verb, (src, dst, wanted) in cases(rank, size, 4 * size, root).items():
            what = (verb, root)
            src, dst = (None if a is None else torch.from_numpy(a.copy()) for a in (src, dst))
            how = (src, dst, None if in_order else str(what), in_order, horon.Sum, root)
            request = horon.prepare(verb, *how)
            for factor in (1, 3):
                if src is not None:
                    src.mul_(factor)
                if dst is not None:
                    dst.fill_(-1)
                request.start()
                room = None if dst is None else dst.numpy()
                check(request, room, None if wanted is None else factor * wanted, what)
    weight = torch.nn.Parameter(torch.full((5003,), 1.0 + rank, dtype=torch.bfloat16))
    with pytest.raises(BufferError, match=r"use tensor\.detach"):
        horon.prepare("allreduce", weight, weight)
    half = weight.detach()
    request = horon.prepare("allreduce", half, half, in_order=in_order, op=horon.Max)
    for step in range(2):
        request.start()
        request.wait()
        assert weight.tolist() == [size + step] * 5003
        half.add_(1 if rank == 0 else -1)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("in_order", [False, True])
def test_prepared_operations_on_torch_tensors(run_ranks, n, in_order):
    pytest.importorskip("torch")
    run_ranks(n, rank_torch_tensors, in_order)


def rank_barriers():
    horon.init()
    barrier = horon.prepare("barrier")
    for turn in range(4):
        if (horon.rank() + turn) % 2:
            horon.barrier()
        else:
            barrier.start()
            barrier.wait()


@pytest.mark.parametrize("n", [1, 2])
def test_barrier_meets_one_of_its_own_function(run_ranks, n):
    run_ranks(n, rank_barriers)


def rank_process_sets():
    """In order on each set; the root is a rank of the job, and splits say which rank gets what."""
    horon.init(process_sets=[horon.ProcessSet([1, 2]), horon.ProcessSet([0, 2])])
    rank = horon.rank()
    for number in (2, 1):
        some = horon.process_set_by_id(number)
        if not some.included():
            continue
        how = {"in_order": True, "process_set": some}
        tensor, share = whole(rank, 5), numpy.zeros((5 if rank == 2 else 0, 3), "float32")
        cast = horon.prepare("broadcast", tensor.copy(), tensor, root_rank=2, **how)
        shares = horon.prepare("reducescatter", tensor, share, splits=[0, 5], op=horon.Sum, **how)
        for request in (cast, shares, cast, shares):
            request.start()
            request.wait()
        assert (tensor == 3).all() and (share == 6).all()


def test_prepared_operations_of_process_sets(run_ranks):
    run_ranks(3, rank_process_sets)


def rank_messages():
    horon.init()
    rank, other = horon.rank(), 1 - horon.rank()
    mine, got = whole(rank, 7), whole(rank, 7)
    send = horon.prepare("send", mine, root_rank=other, tag=5)
    recv = horon.prepare("recv", got, got, root_rank=other, tag=5)
    for step in range(3):
        mine[...] = 10 * step + rank
        recv.start()
        send.start()
        send.wait()
        recv.wait()
        assert (got == 10 * step + other).all()


def rank_only_writes():
    """What reads nothing needs no src."""
    horon.init()
    rank, last = horon.rank(), horon.size() - 1
    x = whole(rank, 7)
    broadcast = horon.prepare("broadcast", x if rank == last else None, x, root_rank=last)
    requests = [(broadcast, last)]
    if rank == 0:
        requests.append((horon.prepare("send", x, root_rank=1), 0))
    elif rank == 1:
        requests.append((horon.prepare("recv", None, x, root_rank=0), 0))
    with pytest.raises(ValueError, match="every rank gives an input, if of no rows"):
        horon.prepare("scatter", None, x, root_rank=last)
    with pytest.raises(ValueError, match="differ"):
        horon.prepare("broadcast", None, x, root_rank=rank)
    for step in range(3):
        for request, root in requests:
            x[...] = 10 * step + rank
            request.start()
            request.wait()
            assert (x == 10 * step + root).all()


def test_prepared_operations_that_only_write_need_no_source(run_ranks):
    run_ranks(3, rank_only_writes)


def test_prepared_messages(run_ranks):
    run_ranks(2, rank_messages)


def rank_out_of_order():
    """What differs between the ranks' sequences is found without negotiation."""
    horon.init()
    tensor = numpy.ones(3 + horon.rank(), "float32")
    request = horon.prepare("allreduce", tensor, tensor, in_order=True)
    request.start()
    with pytest.raises(horon.HoronInternalError) as caught:
        request.wait()
    return caught.value.status_name


def test_ranks_that_differ_in_order_fail(run_ranks):
    assert "ERR_MISMATCH" in run_ranks(2, rank_out_of_order)


def rank_refused():
    horon.init()
    ones = numpy.ones(4, "float32")
    for wrong in (
        lambda: horon.prepare("sum", ones, ones),
        lambda: horon.prepare("allreduce", ones, ones[:2]),
        lambda: horon.prepare("allreduce", ones[::2], ones[::2]),
        lambda: horon.prepare("broadcast", ones, ones, root_rank=9),
        lambda: horon.prepare("alltoall", ones, splits=[1, 2, 3]),
        lambda: horon.prepare("barrier", ones),
        lambda: horon.prepare("allreduce", ones, ones, op=horon.Adasum),
        lambda: horon.prepare("allreduce", ones, ones, process_set=9),
    ):
        with pytest.raises((BufferError, NotImplementedError, ValueError)):
            wrong()
    with pytest.raises(ValueError, match="prepared and never started"):
        horon.prepare("allreduce", ones, ones).wait()


def test_what_cannot_be_prepared_is_refused(run_ranks):
    run_ranks(1, rank_refused)


def test_every_verb_of_the_library_can_be_prepared():
    header = (Path(__file__).parents[2] / "include/horon/horon.h").read_text()
    count = int(re.search(r"#define HORON_VERB_COUNT (\d+)", header).group(1))
    assert sorted(verb.code for verb in _requests._VERBS.values()) == list(range(count))
