# SPDX-License-Identifier: Apache-2.0
"""Verbs of a framework that minds ranks which have joined, as Horovod does, and of numpy."""

import pytest

numpy = pytest.importorskip("numpy")

import horon  # noqa: E402
from horon import _world  # noqa: E402
from horon._arrays import _integers, _stage  # noqa: E402
from horon._verbs import ROWS, Verbs  # noqa: E402


class HorovodVerbs(Verbs):
    joins_as_horovod = True


verbs = HorovodVerbs(_stage, _integers)
ones = numpy.ones(2)


def rank_joins():
    horon.init()
    rank, size = horon.rank(), horon.size()
    if rank != 0:
        horon.join()
        return
    refused = {
        "allgather": lambda: verbs.allgather(ones, name="a"),
        "alltoall": lambda: verbs.alltoall(numpy.ones(size), name="a"),
        "broadcast": lambda: verbs.in_place.grouped_broadcast([ones.copy()], 0, name="g"),
        "reducescatter": lambda: verbs.grouped_reducescatter([numpy.ones(size)], name="g"),
        "allgather_object": lambda: horon.allgather_object(0, name="a"),
        "broadcast_object": lambda: horon.broadcast_object(0, name="a"),
    }
    hosts = _world.context().hosts
    ends = {"broadcast": "g[0]", "reducescatter": "g[0]", "broadcast_object": "a.size"}
    for name, call in refused.items():
        verb = name.removesuffix("_object")
        with pytest.raises(
            horon.HorovodInternalError,
            match=f"^{verb} is not supported with join, .* {size - 1} of",
        ) as caught:
            call()
        error, name = caught.value, f"{name}.{ends.get(name, 'a')}"
        assert (error.status_name, error.cause, error.name) == ("ERR_MISMATCH", "JOINED", name)
        assert (error.rank, error.host) == (1, hosts[1])
    assert verbs.allreduce(ones, op=horon.Sum).tolist() == [1, 1]
    team = _world.context()
    handle = verbs.stage_group(team, ROWS, ["rows"], [ones]).begin()
    assert handle.wait()[0].tolist() == [1, 1]
    assert handle.rows() == [(2, *[0] * (size - 1))]
    assert horon.allgather(ones).tolist() == [1, 1]
    horon.join()


def rank_one_of_three_joins(joiner):
    """What joined ranks have not given is told, where that they have joined cannot be told apart
    from that they had nothing."""
    horon.init()
    rank = horon.rank()
    if rank != joiner:
        with pytest.raises(horon.HorovodInternalError, match="1 of the ranks") as caught:
            verbs.allgather(ones, name="a")
        assert (caught.value.cause, caught.value.rank, caught.value.host) == ("JOINED", None, "")
        with pytest.raises(horon.HorovodInternalError, match="1 of the ranks") as caught:
            horon.allgather_object(0, name="a")
        assert (caught.value.cause, caught.value.rank) == ("JOINED", joiner)
    horon.join()


@pytest.mark.parametrize("joiner", range(3))
def test_a_rank_that_has_joined_is_named_where_it_is_known(run_ranks, joiner):
    run_ranks(3, rank_one_of_three_joins, joiner)


@pytest.mark.parametrize("n", [2, 3])
def test_verbs_mind_ranks_that_have_joined_if_their_framework_does(run_ranks, n):
    run_ranks(n, rank_joins)
