# SPDX-License-Identifier: Apache-2.0
"""More elements than an int counts, by every verb that MPI carries, of either family."""

import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tools"), str(HERE.parent / "drift")]

import jobs  # noqa: E402
import launchers  # noqa: E402
import tap  # noqa: E402

LARGE = os.environ.get("LARGE")
VERBS = 8
GIB = 1 << 30
NEEDED = 14 * GIB  # two buffers of two ranks, what MPI makes for a piece, and some to spare


def available():
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(r"MemAvailable: +(\d+)", text)[1]) * 1024


def test_more_than_an_int_counts_is_right_by_every_verb():
    there = available()
    tap.need(there >= NEEDED, f"it takes {NEEDED // GIB} GiB, and {there // GIB} are available")
    jobs.DEADLINE = 1200
    for launch in launchers.mpirun, launchers.hydra:
        with launch(2, LARGE, HORON_BACKEND="mpi", HORON_STALL_WARN="0") as job:
            status, out, err = job.end()
        job.assert_nothing_left()
        assert status == 0, (launch.__name__, out, err)
        assert len(re.findall(r"^rank \d: \w+ by mpi is right$", out, re.M)) == 2 * VERBS, out


tap.run(dict(vars()))
