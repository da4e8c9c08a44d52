# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/compare measures through torch is right. Its launches: test/benchmarks."""

import sys
from pathlib import Path

import pytest

PEERS = str(Path(__file__).parents[2] / "benchmarks" / "peers")

pytest.importorskip("torch")


def rank_measures_every_verb():
    sys.path.insert(0, PEERS)
    import torch_collectives
    import torch_rank

    library, meeting = torch_rank.open_library("horon", pin=False)
    cells = [
        torch_collectives.measure(library, meeting, verb, 4000, iterations=2, warmup=1)
        for verb in torch_rank.VERBS
    ]
    library.close()
    return [(cell["verb"], cell["asked"], cell["size"], cell["wrong"]) for cell in cells]


@pytest.mark.parametrize("n", [1, 3])
def test_collectives_through_torch_are_right(run_ranks, n):
    for measured in run_ranks(n, rank_measures_every_verb):
        assert len(measured) == 8
        for verb, asked, size, wrong in measured:
            assert (asked, wrong) == (4000, 0), verb
            assert size == 4000 // (4 * n) * 4 * n or verb in ("allreduce", "broadcast", "reduce")
