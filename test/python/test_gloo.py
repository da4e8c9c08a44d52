# SPDX-License-Identifier: Apache-2.0
"""A job of ranks of torch, by torch.distributed's backend gloo, and of horon."""

import os
import socket

import horon
import numpy
import pytest
from horon import _horon

torch = pytest.importorskip("torch")

PREFIX = "default_pg/0//cpu//0"  # of torch 2.13's first process group
PREFIX_OF_NEXT = "default_pg/0//1//cpu//0"  # and of the first that its new_group() makes


def rank_of_torch(store, rank, size):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    total = torch.full((5,), rank + 1.0)
    dist.all_reduce(total)
    parts = [torch.zeros(3, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), rank, dtype=torch.int64))
    dist.barrier()
    to, tag = (rank + 1) % size, 40 + rank
    dist.send(torch.full((4,), float(rank)), to, tag=tag)
    dist.recv(total[:4], (rank - 1) % size, tag=40 + (rank - 1) % size)
    dist.destroy_process_group()
    return total.tolist(), torch.cat(parts).tolist()


def run(verb, src=None, dst=None, **more):
    request = horon.prepare(verb, src, dst, in_order=True, **more)
    request.start()
    request.wait()
    return request


def rank_of_horon(store, rank, size):
    settings = {"GLOO_STORE": f"c10d-file:{store}", "GLOO_PREFIX": PREFIX}
    horon.init(rank=rank, size=size, settings=settings)
    assert (horon.rank(), horon.size()) == (rank, size)
    total = numpy.full(5, rank + 1, dtype=numpy.float32)
    run("allreduce", total, total, op=horon.Sum)
    parts = numpy.empty(3 * size, dtype=numpy.int64)
    run("allgather", numpy.full(3, rank, dtype=numpy.int64), parts)
    with pytest.raises(ValueError, match=r"horon\.prepare\(\.\.\., in_order=True\)"):
        horon.allreduce(total, name="named")
    run("barrier")
    sent = horon.send_async(numpy.full(4, rank, dtype=numpy.float32), (rank + 1) % size, 40 + rank)
    horon.recv(total[:4], (rank - 1) % size, 40 + (rank - 1) % size)
    sent.wait()
    horon.shutdown()
    return total.tolist(), parts.tolist()


def rank_of_either(store):
    rank, size = int(os.environ["HORON_RANK"]), int(os.environ["HORON_SIZE"])
    return (rank_of_torch if rank == 0 else rank_of_horon)(store, rank, size)


def test_gloo_ranks_of_torch_and_horon_are_one_job(run_ranks, tmp_path):
    size = 3
    gathered = [rank for rank in range(size) for _ in range(3)]
    expected = [([float((rank - 1) % size)] * 4 + [6.0], gathered) for rank in range(size)]
    assert run_ranks(size, rank_of_either, str(tmp_path / "meet")) == expected


def torch_in_two_groups(store, rank, size):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    group = dist.new_group([0, 2])
    totals = [torch.full((5,), rank + 1.0) for _ in range(2)]
    dist.all_reduce(totals[0])
    if rank in (0, 2):
        dist.all_reduce(totals[1], group=group)
    dist.barrier()
    dist.destroy_process_group()
    return [total.tolist() for total in totals]


def horon_in_two_groups(store, rank, size):
    def sum_up(context, total):
        more = (_horon.SUM, 0, 1.0, 1.0, _horon.IN_ORDER)
        context.submit(_horon.ALLREDUCE, None, total, total, *more).wait()

    def join(prefix, rank, size):
        settings = (f"GLOO_STORE={store}", f"GLOO_PREFIX={prefix}")
        return horon.Context(rank=rank, size=size, settings=settings)

    totals = [numpy.full(5, rank + 1, dtype=numpy.float32) for _ in range(2)]
    job = join(PREFIX, rank, size)
    group = join(PREFIX_OF_NEXT, (0, 2).index(rank), 2) if rank in (0, 2) else None
    sum_up(job, totals[0])
    if group:
        sum_up(group, totals[1])
        group.close()
    job.submit(_horon.BARRIER, None, None, None, 0, 0, 1.0, 1.0, _horon.IN_ORDER).wait()
    job.close()
    return [total.tolist() for total in totals]


def rank_in_two_groups(store, kinds):
    rank, size = int(os.environ["HORON_RANK"]), int(os.environ["HORON_SIZE"])
    is_torch = kinds[rank] == "torch"
    return (torch_in_two_groups if is_torch else horon_in_two_groups)(store, rank, size)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("kinds", [("torch", "horon", "horon"), ("horon", "torch", "torch")])
def test_gloo_a_group_of_torchs_is_one_more_job(run_ranks, kinds):
    """Below a prefix of its own, in the store of the first, which rank 0 serves."""
    store = f"tcp://127.0.0.1:{free_port()}"
    among, beside = [[6.0] * 5, [4.0] * 5], [[6.0] * 5, [2.0] * 5]
    assert run_ranks(3, rank_in_two_groups, store, kinds) == [among, beside, among]
