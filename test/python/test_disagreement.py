# SPDX-License-Identifier: Apache-2.0
"""Calls that one rank makes otherwise than the others: what fails fails everywhere, and the calls
after it meet again."""

import os
import pickle
import threading

import horon
import pytest


def size_and_rank():
    horon.init()
    return horon.size(), horon.rank()


# ---- Objects ----


def failing_object(kind):
    if kind == "lock":
        return threading.Lock()

    class Odd:
        def __reduce__(self):
            raise RuntimeError("no \udcff way " + "x" * 5000)

    return Odd()


def rank_broadcast_unpicklable(kind, name):
    size, rank = size_and_rank()
    root = size - 1
    with pytest.raises(pickle.PicklingError) as caught:
        horon.broadcast_object(failing_object(kind) if rank == root else None, root, name)
    assert (caught.value.__cause__ is not None) == (rank == root)
    assert horon.broadcast_object(rank, 0) == 0  # the automatic names are in step
    return str(caught.value)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", [None, "settings"])
@pytest.mark.parametrize("kind, cause", [("lock", "cannot pickle '_thread.lock'"), ("odd", "way")])
def test_broadcast_of_what_cannot_be_pickled_fails_everywhere(run_ranks, n, name, kind, cause):
    for text in run_ranks(n, rank_broadcast_unpicklable, kind, name):
        assert f"rank {n - 1} cannot pickle its object" in text and cause in text
        assert (name or "noname") in text and len(text) < 2000


def rank_allgather_unpicklable():
    size, rank = size_and_rank()
    with pytest.raises(pickle.PicklingError) as caught:
        horon.allgather_object(threading.Lock() if rank else "fine")
    assert horon.allgather_object(rank) == list(range(size))
    return str(caught.value)


def test_allgather_of_what_cannot_be_pickled_fails_everywhere(run_ranks):
    for text in run_ranks(3, rank_allgather_unpicklable):
        assert "rank 0" not in text and "rank 1 cannot" in text and "rank 2 cannot" in text


class Bitter:
    """Cannot be unpickled on rank 1."""

    def __setstate__(self, state):
        if os.environ["HORON_RANK"] == "1":
            raise RuntimeError("tastes bad")

    def __getstate__(self):
        return {"a": 1}


def rank_bitter():
    _, rank = size_and_rank()
    if rank == 1:
        with pytest.raises(
            pickle.UnpicklingError, match=r"drink.* rank 0 cannot .*: RuntimeError: tastes bad"
        ) as caught:
            horon.broadcast_object(None, 0, "drink")
        assert isinstance(caught.value.__cause__, RuntimeError)
    else:
        horon.broadcast_object(Bitter(), 0, "drink")
    assert horon.broadcast_object(rank, 2) == 2


def test_what_cannot_be_unpickled_fails_where_it_is(run_ranks):
    run_ranks(3, rank_bitter)


# ---- Automatic names ----


REFUSED = {
    "allreduce": lambda: horon.allreduce("no tensor"),
    "allreduce ": lambda: horon.allreduce_(1.0),
    "allgather": lambda: horon.allgather(1.0, process_set=9),
    "broadcast": lambda: horon.broadcast(1.0, 99),
    "broadcast ": lambda: horon.broadcast_("no tensor", 0),
    "grouped_allreduce": lambda: horon.grouped_allreduce(5),
    "grouped_allreduce ": lambda: horon.grouped_allreduce_([1.0]),
    "grouped_allgather": lambda: horon.grouped_allgather([1.0, "no tensor"]),
    "grouped_broadcast": lambda: horon.grouped_broadcast([1.0], 99),
    "grouped_broadcast ": lambda: horon.grouped_broadcast_([1.0], 0),
    "grouped_reduce": lambda: horon.grouped_reduce([1.0], 99),
    "broadcast_object": lambda: horon.broadcast_object(1, 99),
    "allgather_object": lambda: horon.allgather_object(1, process_set=9),
}


def rank_refused():
    horon.init()
    for verb, call in REFUSED.items():
        before = horon._names.auto_name(verb.strip())
        with pytest.raises((TypeError, ValueError)):
            call()
        after = horon._names.auto_name(verb.strip())
        count = int(after.rpartition(".")[2]) - int(before.rpartition(".")[2])
        assert count == 2, (verb, before, after)


def test_call_that_is_refused_counts(run_ranks):
    run_ranks(1, rank_refused)


def rank_refused_alone():
    """Rank 0's first call is refused; its second is the others' second, and not their first."""
    _, rank = size_and_rank()
    if rank == 0:
        with pytest.raises(TypeError):
            horon.allreduce("no tensor")
    else:
        first = horon.allreduce_async(100.0)
    assert horon.allreduce(1.0, op=horon.Sum) == horon.size()
    waits = rank == 0 or not first.poll()
    horon.barrier()  # rank 0 stays until the other has looked
    return waits


def test_call_that_one_rank_is_refused_meets_no_later_one(run_ranks):
    assert all(run_ranks(2, rank_refused_alone))


# ---- Groups ----


def rank_groups_differ(verb, sizes):
    _, rank = size_and_rank()
    call = {
        "allreduce": horon.grouped_allreduce,
        "allgather": horon.grouped_allgather,
        "broadcast": lambda tensors, name: horon.grouped_broadcast(tensors, 1, name=name),
    }[verb]
    with pytest.raises(horon.HoronInternalError) as caught:
        call([float(i) for i in range(sizes[rank])], name="g")
    assert caught.value.status_name == "ERR_MISMATCH"
    assert call([1.0, 2.0], name="g") is not None
    return str(caught.value)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 1), (1, 2), (70, 3)])
@pytest.mark.parametrize("verb", ["allreduce", "allgather", "broadcast"])
def test_groups_of_different_sizes_fail(run_ranks, verb, sizes):
    for text in run_ranks(2, rank_groups_differ, verb, sizes):
        assert f"{verb}.g[" in text and "groups differ" in text
        assert "rank 0" in text and "rank 1" in text
