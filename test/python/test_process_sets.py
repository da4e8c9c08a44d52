# SPDX-License-Identifier: Apache-2.0
"""Process sets of Python: one test a behaviour of Horovod's, and what horon adds."""

import copy
import os
import pickle

import horon
import numpy
import pytest
from horon import _horon
from horon._world import team_of


def ids():
    return horon._world._get_process_set_ids_and_ranks()


# ---- Adding and removing ----


def rank_adds_and_removes():
    horon.init()
    size = horon.size()
    assert ids() == {0: list(range(size))}
    one = horon.add_process_set([0])
    rest = horon.add_process_set(range(1, size))
    assert ids() == {0: list(range(size)), 1: [0], 2: list(range(1, size))}
    assert [str(s) for s in (horon.global_process_set, one, rest)] == [
        f"ProcessSet(process_set_id=0, ranks={list(range(size))}, mpi_comm=None)",
        "ProcessSet(process_set_id=1, ranks=[0], mpi_comm=None)",
        f"ProcessSet(process_set_id=2, ranks={list(range(1, size))}, mpi_comm=None)",
    ]
    found = horon.allgather(numpy.array([one.process_set_id, rest.process_set_id]))
    assert found.tolist() == [1, 2] * size
    assert horon.remove_process_set(one) is True
    assert one.process_set_id is None and one.ranks == [0]
    assert horon.remove_process_set(one) is False
    assert ids() == {0: list(range(size)), 2: list(range(1, size))}
    assert horon.add_process_set(one) is one and one.process_set_id == 1
    assert horon.process_set_by_id(1) is one
    assert horon.remove_process_set(one)
    with pytest.raises(ValueError, match='backends "mpi": the setting BACKEND gives the job'):
        horon.add_process_set(one, backend="mpi")
    assert horon.add_process_set(one, backend="native").process_set_id == 1
    assert horon.remove_process_set(one)
    if size > 2:
        assert horon.add_process_set([0, size - 1]).process_set_id == 1  # used again
    for ranks in (range(size - 1, 0, -1), range(size), [0, 0], [size], [-1], []):
        with pytest.raises(ValueError, match=r"already|twice|no rank|one rank at least"):
            horon.add_process_set(ranks)
    with pytest.raises(ValueError, match="has been added"):
        horon.add_process_set(rest)
    assert horon.remove_process_set(horon.global_process_set) is False
    for wrong in (0, 2, None, [0], "dynamic"):
        with pytest.raises(ValueError, match=r"a process set is needed, .*, not "):
            horon.remove_process_set(wrong)
    with pytest.raises(ValueError, match="no process set has the id 1"):
        horon.remove_process_set(horon.process_set_by_id(1)) if size > 2 else None
        horon.process_set_by_id(1)
    assert horon.process_set_by_id(0) is horon.global_process_set


@pytest.mark.parametrize("n", [2, 3])
def test_process_sets_come_and_go(run_ranks, n):
    run_ranks(n, rank_adds_and_removes)


def rank_pickles():
    """Members or not: what is read is the set that was added here, or one that may be added."""
    some = horon.ProcessSet([1, 0])
    new = pickle.loads(pickle.dumps(some))
    assert new is not some and new.ranks == [0, 1] and new.process_set_id is None
    horon.init()
    horon.add_process_set(some)
    for one in (some, horon.global_process_set):
        assert pickle.loads(pickle.dumps(one)) is one
        assert copy.copy(one) is one and copy.deepcopy([one]) == [one]
    assert horon.broadcast_object(some, 2) is some
    data = pickle.dumps(some)
    horon.remove_process_set(some)
    again = horon.add_process_set(pickle.loads(data))
    assert again is not some and again.included() is (horon.rank() < 2)
    if again.included():
        assert horon.allreduce(horon.rank(), op=horon.Sum, process_set=again) == 1


def test_process_sets_are_pickled_as_their_ranks(run_ranks):
    run_ranks(3, rank_pickles)


def rank_asks():
    horon.init()
    everyone = horon.global_process_set
    assert (everyone.rank(), everyone.size(), everyone.included()) == (horon.rank(), 3, True)
    some = horon.ProcessSet([2, 1])
    assert (some.included(), some.rank(), some.size()) == (horon.rank() > 0, None, None)
    assert horon.add_process_set(some).ranks == [1, 2] and some.size() == 2
    if horon.rank() == 0:
        assert not some.included()
        with pytest.raises(
            ValueError, match=r"rank 0 is no member of ProcessSet\(process_set_id=1"
        ):
            some.rank()
    else:
        assert some.included() and some.rank() == horon.rank() - 1
    assert horon.remove_process_set(some) and not horon.remove_process_set(some)
    assert (some.included(), some.rank(), some.size()) == (horon.rank() > 0, None, None)
    assert some.ranks == [1, 2]


def test_process_sets_tell_what_horovods_do(run_ranks):
    run_ranks(3, rank_asks)


def test_process_sets_are_made_of_ranks():
    for wrong in (3, None, ["a"], [0.5]):
        with pytest.raises(ValueError, match="made of"):
            horon.ProcessSet(wrong)
    assert horon.ProcessSet(range(3, 0, -1)).ranks == [1, 2, 3]
    some = horon.ProcessSet(numpy.arange(0, 4, 2))
    assert str(some) == "ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)"


def rank_differs():
    horon.init()
    with pytest.raises(horon.HoronInternalError, match=r"rank 0 .* and rank 2 .*ranks 0, 2"):
        horon.add_process_set([0, 2] if horon.rank() == 2 else [0, 1])
    assert ids() == {0: [0, 1, 2]}
    assert horon.add_process_set([0, 2]).process_set_id == 1


def test_process_sets_that_ranks_see_differently_are_named(run_ranks):
    run_ranks(3, rank_differs)


# ---- From the start ----


def rank_has_static(long):
    odd, even = horon.ProcessSet([1, 3]), horon.ProcessSet([2, 0])
    more = [[i] for i in range(4)] if long else []
    horon._world._SETTING_CHARACTERS_MAX = 0 if long else 1000
    horon.init(process_sets=[odd, even, *more])
    assert (odd.process_set_id, even.process_set_id) == (1, 2)
    assert len(ids()) == 3 + len(more)
    mine = odd if horon.rank() % 2 else even
    assert horon.allgather(numpy.array([horon.rank()]), process_set=mine).tolist() == mine.ranks
    horon.shutdown()
    assert odd.process_set_id is None
    for wrong in ([odd, horon.ProcessSet([3, 1])], [horon.ProcessSet([0, 1, 2, 3])]):
        with pytest.raises(ValueError, match=r"duplicate|already"):
            horon.init(process_sets=wrong)
        assert not horon.is_initialized()
    horon.init(process_sets=[even, odd])
    assert (odd.process_set_id, even.process_set_id) == (2, 1)


@pytest.mark.parametrize("long", [False, True])
def test_process_sets_may_be_there_from_the_start(run_ranks, long):
    run_ranks(4, rank_has_static, long)


def rank_may_not_add():
    horon.init(settings={"DYNAMIC_PROCESS_SETS": 0})
    with pytest.raises(ValueError, match="DYNAMIC_PROCESS_SETS"):
        horon.add_process_set([0])
    horon.shutdown()
    horon.init(process_sets="Dynamic")
    assert horon.add_process_set([0]).process_set_id == 1
    with pytest.raises(ValueError, match="dynamic"):
        horon.init(process_sets="static")


def test_process_sets_need_to_be_dynamic_if_that_is_set(run_ranks):
    run_ranks(2, rank_may_not_add)


# ---- Operations ----


def rank_uses_all_verbs():
    horon.init()
    rank = horon.rank()
    some = horon.add_process_set([1, 2])
    if rank == 0:
        for call in (horon.allreduce, horon.allgather):
            with pytest.raises(ValueError, match="rank 0 is no member"):
                call(numpy.ones(2), process_set=some)
        with pytest.raises(ValueError, match="rank 0 is no member"):
            horon.barrier(process_set=some)
    else:
        x = numpy.array([rank, 10.0 * rank])
        assert horon.allreduce(x, process_set=some).tolist() == [1.5, 15]
        assert horon.allreduce(x, op=horon.Sum, process_set=some).tolist() == [3, 30]
        pair = horon.grouped_allreduce([x, x + 1], op=horon.Max, process_set=some)
        assert [one.tolist() for one in pair] == [[2, 20], [3, 21]]
        assert horon.allgather(x[:rank], process_set=some).tolist() == [1, 2, 20]
        assert horon.broadcast(x, 2, process_set=some).tolist() == [2, 20]  # the job's rank
        with pytest.raises(ValueError, match="rank 0 is no member of process set 1"):
            horon.broadcast(x, 0, process_set=some)
        pair = horon.grouped_broadcast([x, 7 * rank], 2, process_set=some)
        assert (pair[0].tolist(), pair[1]) == ([2, 20], 14)
        with pytest.raises(ValueError, match="rank 0 is no member of process set 1"):
            horon.grouped_broadcast([x], 0, process_set=some)
        assert horon.broadcast_object({"from": rank}, 2, process_set=some) == {"from": 2}
        assert horon.allgather_object(rank, process_set=some) == [1, 2]
        rows = numpy.arange(3.0) + 10 * rank
        assert horon.alltoall(rows[:2], process_set=some).tolist() == [9 + rank, 19 + rank]
        got, received = horon.alltoall(rows, splits=[1, 2], process_set=some)
        assert got.tolist() == ([10, 20] if rank == 1 else [11, 12, 21, 22])
        assert list(received) == [rank, rank]
        got = horon.gather(rows[:rank], 2, process_set=some)
        assert got is None if rank == 1 else got.tolist() == [10, 20, 21]
        assert horon.scatter(rows, 2, process_set=some).tolist() == (
            [20, 21] if rank == 1 else [22]
        )
        got = horon.reducescatter(rows[:2], op=horon.Sum, process_set=some)
        assert got.tolist() == [28 + 2 * rank]
        got = horon.reduce(rows, 2, op=horon.Sum, process_set=some)
        assert got is None if rank == 1 else got.tolist() == [30, 32, 34]
        horon.barrier(process_set=some)
        handle = horon.allreduce_async_(x, op=horon.Sum, process_set=some, name="x")
        assert horon.synchronize(handle) is x and x.tolist() == [3, 30]
    # unnamed operations of the job: rank 0 has made others on no set, and more were refused
    assert horon.allreduce(numpy.array([1.0]), op=horon.Sum).tolist() == [3]
    assert horon.allgather_object(rank) == [0, 1, 2]
    assert horon.reducescatter(numpy.arange(3.0), op=horon.Sum).tolist() == [3 * rank]
    got = horon.reduce(numpy.array([1.0]), 0, op=horon.Sum)
    assert got.tolist() == [3] if rank == 0 else got is None
    assert horon.remove_process_set(some)
    with pytest.raises(ValueError, match="has not been added, or was removed"):
        horon.allreduce(numpy.ones(2), process_set=some)
    other = horon.add_process_set([0, 1])  # the same id, and other ranks have counted on it
    if rank < 2:
        assert horon.allreduce(numpy.array([rank]), op=horon.Sum, process_set=other).tolist() == [1]


def test_process_sets_run_every_verb(run_ranks):
    run_ranks(3, rank_uses_all_verbs)


def rank_waits_at_barriers():
    """Rank 0 is the last at each barrier: it comes once the others have said that they wait."""
    horon.init()
    rank, some = horon.rank(), numpy.ones(1)
    even, odd = (horon.add_process_set(ranks) for ranks in ([0, 2], [1, 3]))
    for team in (even, horon.global_process_set):
        if rank == 0:
            for other in (1, 2, 3):
                horon.recv(some, other)
            horon.barrier(process_set=team)
            continue
        if team.included():
            barrier = team_of(team).submit(_horon.BARRIER, None, None, None)  # as barrier() does
            assert not barrier.test()
        else:
            horon.barrier(process_set=odd)  # does not wait for the others
        horon.send(some, 0)
        if team.included():
            barrier.wait()


def test_barriers_keep_the_ranks_of_their_set(run_ranks):
    run_ranks(4, rank_waits_at_barriers)


def rank_overlaps():
    horon.init()
    rank = horon.rank()
    ring = [horon.add_process_set([i, (i + 1) % 3]) for i in range(3)]
    mine = [one for one in ring if one.included()]
    if rank % 2:
        mine.reverse()
    for _ in range(20):
        handles = [
            horon.allreduce_async(
                numpy.full(5003, 1.0 + rank), name="same", op=horon.Sum, process_set=one
            )
            for one in mine
        ]
        for one, handle in zip(mine, handles, strict=True):
            assert horon.synchronize(handle)[-1] == sum(one.ranks) + 2


def test_process_sets_that_overlap_progress_in_any_order(run_ranks):
    run_ranks(3, rank_overlaps)


def rank_objects_name():
    horon.init()
    some = horon.add_process_set([0, 2])
    if some.included():
        bad = lambda: None if horon.rank() != 2 else (_ for _ in ())  # noqa: E731
        with pytest.raises(Exception, match="rank 2 cannot pickle"):
            horon.allgather_object(bad() if horon.rank() == 2 else 1, process_set=some)


def test_process_sets_name_ranks_of_the_job(run_ranks):
    run_ranks(3, rank_objects_name)


def rank_is_in_a_job_of_some(directory):
    mine = int(os.environ["HORON_RANK"])
    ranks = [3, 1] if mine % 2 else [0, 2]
    store = {"STORE": f"file:{directory / str(mine % 2)}"}
    horon.init(rank=ranks.index(mine), size=len(ranks), settings=store)
    assert (horon.rank(), horon.size()) == (ranks.index(mine), 2)
    assert horon.allgather(numpy.array([mine])).tolist() == ranks


def test_ranks_with_a_store_of_their_own_are_a_job(run_ranks, tmp_path):
    """Jobs of some of the ranks that were launched, without init(comm=[ranks])."""
    for half in "01":
        (tmp_path / half).mkdir(mode=0o700)
    run_ranks(4, rank_is_in_a_job_of_some, tmp_path)
