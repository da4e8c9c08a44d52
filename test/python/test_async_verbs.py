# SPDX-License-Identifier: Apache-2.0
"""Operations that are begun and waited for later, of the job and of a process set, on numpy's and
on torch's tensors."""

import horon
import pytest

numpy = pytest.importorskip("numpy")


def framework(kind):
    """-> its functions, and what makes a tensor of numbers"""
    if kind == "numpy":
        return horon, lambda rows: numpy.array(rows, "float32")
    import horon.torch as hvd
    import torch

    return hvd, lambda rows: torch.tensor(rows, dtype=torch.float32)


def rows_of(rank):
    """As many as differ from rank to rank."""
    return [[10.0 * rank + i, -1.0] for i in range(rank + 1)]


def begun(hvd, tensor, some, root):
    """-> [(handle, its result)] of every verb that gathers, gives or adds, with the same root"""
    mine, how = hvd.rank(), {"process_set": some}
    is_root, everyone = mine == root, some.ranks
    joined = [row for rank in everyone for row in rows_of(rank)]
    splits = [i + 1 for i in range(len(everyone))]
    table = [[float(root), float(i)] for i in range(sum(splits))]
    first = sum(splits[: everyone.index(mine)])
    share = table[first : first + splits[everyone.index(mine)]]
    total, n = [float(sum(everyone))] * 3, len(everyone)
    x, y = tensor([float(mine)] * 3), tensor([float(mine)] * 3)
    source = tensor(table if is_root else [[0.0, 0.0]])
    handles = [
        (hvd.gather_async(tensor(rows_of(mine)), root, name="g", **how), is_root and joined),
        (hvd.scatter_async(source, root, splits=splits, name="s", **how), share),
        (hvd.scatter_async(tensor([[float(root)]] * n), root, **how), [[float(root)]]),
        (hvd.reduce_async(x, root, name="r", op=hvd.Sum, **how), is_root and total),
        (hvd.broadcast_async_(y, root, name="b", **how), [float(root)] * 3),
    ]
    pair = [tensor(rows_of(mine)), tensor([-float(mine)])]
    group = hvd.grouped_allgather_async(pair, name="group", **how)
    return handles, y, (group, [joined, [-float(rank) for rank in everyone]])


def rank_begins(kind):
    hvd, tensor = framework(kind)
    hvd.init()
    some = hvd.add_process_set([0, 2])
    for team in (hvd.global_process_set, some):
        for root in team.ranks if team.included() else ():
            handles, y, (group, wanted) = begun(hvd, tensor, team, root)
            assert [one.tolist() for one in hvd.synchronize(group)] == wanted
            for handle, result in reversed(handles):  # they may be waited for in any order
                got = hvd.synchronize(handle)
                assert hvd.poll(handle)
                assert got is None if result is False else got.tolist() == result
            assert hvd.synchronize(handles[-1][0]) is y and y.tolist() == [float(root)] * 3


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_verbs_are_begun_and_waited_for_later(run_ranks, kind):
    if kind == "torch":
        pytest.importorskip("torch")
    run_ranks(3, rank_begins, kind)


def rank_waits(kind):
    """The functions that wait, and messages; a rank outside of the set is refused by each."""
    hvd, tensor = framework(kind)
    hvd.init()
    rank, some = hvd.rank(), hvd.add_process_set([2, 1])
    x = tensor([float(rank)] * 2)
    verbs = [hvd.gather, hvd.scatter, hvd.reduce, hvd.send, hvd.recv]
    if rank == 0:
        for verb in verbs:
            with pytest.raises(ValueError, match=r"rank 0 is no member of ProcessSet\("):
                verb(x, 1, process_set=some)
        return
    for verb in verbs:
        with pytest.raises(ValueError, match="rank 0 is no member of process set 1"):
            verb(x, 0, process_set=some)
    got = hvd.gather(x, 2, process_set=some)
    assert got is None if rank == 1 else got.tolist() == [1.0, 1.0, 2.0, 2.0]
    assert hvd.scatter(x, 1, splits=[2, 0], process_set=some).tolist() == [1.0] * 2 * (2 - rank)
    got = hvd.reduce(x, 1, process_set=some)
    assert got is None if rank == 2 else got.tolist() == [1.5, 1.5]
    here = tensor([0.0, 0.0])
    if rank == 1:  # the same tag means something else in the job
        hvd.send(x + 1, 2, tag=3)
        hvd.send(x, 2, tag=3, process_set=some)
    else:
        assert hvd.recv(here, 1, tag=3, process_set=some) is here and here.tolist() == [1.0, 1.0]
        assert hvd.recv(here, 1, tag=3).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_verbs_with_a_root_and_messages_of_a_process_set(run_ranks, kind):
    if kind == "torch":
        pytest.importorskip("torch")
    run_ranks(3, rank_waits, kind)
