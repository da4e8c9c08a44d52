# SPDX-License-Identifier: Apache-2.0
"""Objects whose pickles are longer than a 32-bit number with a sign can tell.

One rank has such an object and the other a short one: rows that differ find more, and two would not
fit into a usual machine. A process holds up to four copies: the object, its pickle, what arrived,
and what that was unpickled to.
"""

import random
import re
from pathlib import Path

import horon
import pytest
from conftest import needs_full

LENGTH = (1 << 31) + 1
BLOCK = 4096 * 4099  # 4099 is prime: an offset that is cut to 32 bits meets another byte
MEMORY_GIB = 14  # four copies on the one rank, two on the other, and two to spare
WAIT_SECONDS = 500


def block():
    return random.Random(1).randbytes(BLOCK)


def large():
    once = block()
    return b"".join([once] * (LENGTH // BLOCK) + [once[: LENGTH % BLOCK]])


def is_large(data):
    once = block()
    return len(data) == LENGTH and all(
        data[at : at + BLOCK] == once[: LENGTH - at] for at in range(0, LENGTH, BLOCK)
    )


def rank_large_objects():
    horon.init()
    mine = large() if horon.rank() == 1 else "short"
    assert is_large(horon.broadcast_object(mine, 1))
    short, gathered = horon.allgather_object(mine)
    assert short == "short" and is_large(gathered)


@pytest.mark.timeout(WAIT_SECONDS + 100)
@needs_full
def test_objects_of_more_than_2_to_the_31_bytes(start_ranks):
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    available = int(re.search(r"^MemAvailable: +(\d+) kB", meminfo, re.M)[1]) >> 20
    if available < MEMORY_GIB:
        pytest.skip(f"needs {MEMORY_GIB} GiB of memory; {available} are available")
    start_ranks(2, rank_large_objects).results(WAIT_SECONDS)
