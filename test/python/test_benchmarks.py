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
    cells = []
    for verb in torch_rank.VERBS:
        size = 0 if verb == "barrier" else 4000
        if verb != "sendrecv" or library.size > 1:
            cells.append(torch_collectives.measure(library, meeting, verb, size, 2, warmup=1))
    library.close()
    assert all(cell["wrong"] == 0 for cell in cells), cells
    return {cell["verb"]: (cell["asked"], cell["size"]) for cell in cells}


@pytest.mark.parametrize("n", [1, 3])
def test_collectives_through_torch_are_right(run_ranks, n):
    for measured in run_ranks(n, rank_measures_every_verb):
        assert measured.pop("barrier") == (0, 0)
        assert len(measured) == (9 if n > 1 else 8)
        for verb, sizes in measured.items():
            whole = verb in ("allreduce", "broadcast", "reduce", "sendrecv")
            assert sizes == (4000, 4000 if whole else 4000 // (4 * n) * 4 * n), verb
