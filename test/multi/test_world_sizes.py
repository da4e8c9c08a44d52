# SPDX-License-Identifier: Apache-2.0
"""Worlds at the edges of what one host holds, as real processes: every verb is right there, in
order and, for a sum, by name. A rank has a few hundred bytes for each other one."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "drift"), str(HERE.parent / "tools")]

import jobs  # noqa: E402
import tap  # noqa: E402

PERF = os.environ["HORON_TEST_PERF"]
SIZES = (65, 129, 256)  # one above what a word of bits holds, one above two, and the most
VERBS = ("allreduce", "broadcast", "allgather", "barrier", "alltoall", "gather", "scatter",
         "reducescatter", "reduce", "sendrecv")  # fmt: skip
MIB_A_RANK = 16  # more than a rank's arena, its share of the segment, and the program's own

jobs.DEADLINE = 180.0  # two cores start 256 processes; only a hang reaches it


def available_mib():
    words = pathlib.Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()
    return int(words[0]) >> 10


def run(size, *words):
    bytes_given = str(size * 264)  # 66 floats for each rank: more than a cache line, and no power
    once = ["-b", bytes_given, "-n", "1", "-w", "0", "-c", "1"]
    status, out, err = jobs.run("-np", str(size), PERF, *words, *once)
    assert status == 0, f"{size} ranks, {' '.join(words)}: status {status}\n{out[-2000:]}{err}"
    assert f"{size} ranks" in out, out


def test_world_sizes_every_verb_is_right():
    for size in SIZES:
        if available_mib() < size * MIB_A_RANK:
            raise tap.Skip(f"{size} ranks need {size * MIB_A_RANK} MiB")
        for verb in VERBS:
            run(size, verb)
        run(size, "allreduce", "--named")


def test_world_sizes_one_more_than_a_host_holds_is_refused():
    status, out, err = jobs.run("-np", "257", PERF, "barrier")
    assert status == 3, f"status {status}\n{out[-2000:]}{err[-2000:]}"
    assert "256 are the most that can share its memory" in err, err[-2000:]


if __name__ == "__main__":
    tap.run(vars())
