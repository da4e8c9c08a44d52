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
        "allgather": lambda: verbs.allgather(ones),
        "alltoall": lambda: verbs.alltoall(numpy.ones(size)),
        "broadcast": lambda: verbs.in_place.grouped_broadcast([ones.copy()], 0),
        "reducescatter": lambda: verbs.grouped_reducescatter([numpy.ones(size)]),
    }
    for verb, call in refused.items():
        with pytest.raises(
            horon.HorovodInternalError,
            match=f"^{verb} is not supported with join, .* {size - 1} of",
        ):
            call()
    assert verbs.allreduce(ones, op=horon.Sum).tolist() == [1, 1]
    team = _world.context()
    handle = verbs.stage_group(team, ROWS, ["rows"], [ones]).begin()
    assert handle.wait()[0].tolist() == [1, 1]
    assert handle.rows() == [(2, *[0] * (size - 1))]
    assert horon.allgather(ones).tolist() == [1, 1]
    horon.join()


@pytest.mark.parametrize("n", [2, 3])
def test_verbs_mind_ranks_that_have_joined_if_their_framework_does(run_ranks, n):
    run_ranks(n, rank_joins)
