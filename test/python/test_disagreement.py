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
        with pytest.raises(RuntimeError, match="tastes bad") as caught:
            horon.broadcast_object(None, 0, "drink")
        assert any("rank 0" in note and "drink" in note for note in caught.value.__notes__)
    else:
        horon.broadcast_object(Bitter(), 0, "drink")
    assert horon.broadcast_object(rank, 2) == 2


def test_what_cannot_be_unpickled_fails_where_it_is(run_ranks):
    run_ranks(3, rank_bitter)
