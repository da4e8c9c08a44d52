# SPDX-License-Identifier: Apache-2.0
"""
Results over several hosts are the bits of one process that computes the same tree. One layout a
run: the argument says on which host each rank is.

Under a sanitizer all of it takes minutes. There each algorithm has one run, as how its operations
come changes nothing that it does; under the thread sanitizer two have: which one is chosen changes
what is sent, not which threads meet. With --full there are all.
"""

import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent)]

import ranks  # noqa: E402
import tap  # noqa: E402

SANITIZER = "none" if os.environ.get("HORON_TEST_FULL") else os.environ["SANITIZER"]
ALGORITHMS = ("flat", "doubling", "direct", "halving", "chain")
IN_ORDER = ("auto",) if SANITIZER == "thread" else ("auto", *ALGORITHMS)
NAMED = ("auto",) if SANITIZER != "none" else IN_ORDER
GROUPED = ("chain",) if SANITIZER != "none" else ALGORITHMS
SMALL_CHUNKS = {"SHM_CHUNK_BYTES": 4096, "NET_CHUNK_BYTES": 4096, "NET_EAGER_BYTES": 1000}


def compare(layout, mode, settings, expected, net):
    with ranks.Job(
        net, layout, mode, sys.argv[1], "{folder}", settings={"LOG_LEVEL": "warn", **settings}
    ) as job:
        job.end_well()
        for rank in range(len(layout)):
            lines, all_right = job.out(rank).splitlines(), expected[rank]
            wrong = [line for line, right in zip(lines, all_right, strict=False) if line != right]
            assert lines == all_right, (
                f"{mode} {settings}: rank {rank} got {len(lines)} of {len(all_right)} results, "
                f"{len(wrong)} are wrong: {wrong[:8]}"
            )
            assert not job.err(rank), job.err(rank)


def test_layouts_results_are_those_of_one_process():
    layout = [int(host) for host in sys.argv[1].split(",")]
    expected = ranks.expected(sys.argv[1])
    assert all(len(lines) > 480 for lines in expected)
    with ranks.hosts(max(layout) + 1) as net:
        for mode, algorithms in (("in-order", IN_ORDER), ("named", NAMED)):
            for algorithm in algorithms:
                compare(layout, mode, {"NET_ALGORITHM": algorithm}, expected, net)
        for algorithm in GROUPED:
            compare(layout, "grouped", {"NET_ALGORITHM": algorithm, **SMALL_CHUNKS}, expected, net)
        compare(layout, "in-order", {"SHM_SMALL_BYTES": 0, **SMALL_CHUNKS}, expected, net)
        compare(layout, "named", {"FUSION_BYTES": 0, "CACHE_ENTRIES": 0}, expected, net)
        compare(layout, "named", {"FUSION_BYTES": "64k", "SHM_SMALL_BYTES": 0}, expected, net)


tap.run(dict(vars()))
