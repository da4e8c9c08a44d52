# SPDX-License-Identifier: Apache-2.0
"""What an operation on one host takes at least if its outputs are made by copying: the bytes that
come to be where they were not before are shared out evenly among the cores that the ranks have, and
each copies its share as fast as one core alone does. Pure, but for copy_us()."""

import ctypes
import mmap
import time

import harness

FIRST_SIZE = 256 << 10  # below it a call, and the word that ranks exchange, take longer than a copy

# Bytes that are written into outputs, of all ranks, per byte of size: `compare` measures allreduce,
# broadcast and reduce in place, and a broadcast's root has its output. What is reduced is read more
# than once, and counted once.
OUTPUTS = {
    "allreduce": lambda np: np,
    "broadcast": lambda np: np - 1,
    "allgather": lambda np: np,
    "alltoall": lambda np: np,
    "gather": lambda np: 1,
    "scatter": lambda np: 1,
    "reducescatter": lambda np: 1,
    "reduce": lambda np: 1,
    "sendrecv": lambda np: np,
}


def share_bytes(verb, np, size, cores):
    """What one of the cores has to copy."""
    return OUTPUTS[verb](np) * size / min(np, cores)


def copy_us(n_bytes, times):
    """The fastest of some copies of as many bytes, from caches if they fit."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # as horon-perf has its buffers
    with mmap.mmap(-1, n_bytes, private) as source, mmap.mmap(-1, n_bytes, private) as target:
        ends = [ctypes.c_char.from_buffer(memory) for memory in (target, source)]
        to, start = (ctypes.addressof(end) for end in ends)
        ctypes.memset(start, 1, n_bytes)  # until then it is all one page of zeros
        ctypes.memset(to, 2, n_bytes)
        taken = []
        for _ in range(times):
            begun = time.perf_counter_ns()
            ctypes.memmove(to, start, n_bytes)
            taken.append((time.perf_counter_ns() - begun) * 1e-3)
        copied = target[:1] == target[-1:] == b"\1"
        del ends
    if not copied:
        raise harness.HarnessError(f"{n_bytes} bytes were not copied")
    return min(taken)


def cell(verb, np, size, cores, times):
    """A cell as of a library: of a share that is larger than the size a part is copied."""
    share = share_bytes(verb, np, size, cores)
    copied = max(1, min(size, int(share)))
    return {"time_us": copy_us(copied, times) * share / copied, "size": size, "np": np}
