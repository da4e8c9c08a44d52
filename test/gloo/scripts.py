# SPDX-License-Identifier: Apache-2.0
"""What ranks beside Gloo are made to do: scripts, as script.h says."""

import itertools

SIZES = 2, 3, 5
MIB = 1 << 20
OPS = "sum", "product", "min", "max"
OF_BITS = "and", "or", "xor"  # Gloo itself has none; torch gives it functions for them
GLOO_DTYPES = "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64"
TORCH_DTYPES = "u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64"
OLD_TORCH_DTYPES = tuple(dtype for dtype in TORCH_DTYPES if dtype != "bf16")
DTYPES = {"gloo": GLOO_DTYPES, "torch": TORCH_DTYPES, "old-torch": OLD_TORCH_DTYPES}
ONLY_TORCH_DTYPES = "bool", "c32", "c64", "c128"  # complex: sums, and no gather
ROOTED = "broadcast", "reduce", "gather", "gatherv", "scatter"
ALL = "allreduce", "allgather", "allgatherv", "alltoall", "alltoallv"
NOT_TORCH = "gatherv", "allgatherv"  # torch calls no such
REDUCE = "reduce", "allreduce"


def counts_of(size):
    return 0, 1, size - 1, size, 1009


def moves(peer, size):
    """Each verb with each count and root; the element types take turns."""
    dtypes = itertools.cycle(DTYPES[peer])
    for count in dict.fromkeys(counts_of(size)):
        for verb in ROOTED + ALL:
            if peer != "gloo" and verb in NOT_TORCH:
                continue
            if peer != "torch" and count == 0 and verb in ("allgather", "allgatherv"):
                continue  # Gloo of 2022 divides by it
            for root in range(size) if verb in ROOTED else (0,):
                yield f"{verb} {next(dtypes)} {'sum' if verb in REDUCE else '-'} {count} {root}"
        yield "barrier"


def of_only_torch(size):
    """What torch alone has: more types, with each verb and root, and the reduce-scatter."""
    for count in counts_of(size):
        for dtype in ONLY_TORCH_DTYPES:
            for verb in ROOTED + ALL:
                if verb in NOT_TORCH or (verb == "gather" and dtype != "bool"):
                    continue
                for root in range(size) if verb in ROOTED else (0,):
                    yield f"{verb} {dtype} {'sum' if verb in REDUCE else '-'} {count} {root}"
        for dtype in TORCH_DTYPES + ONLY_TORCH_DTYPES:
            yield f"reducescatter {dtype} sum {count}"
        yield "barrier"
    for op in OPS + OF_BITS:
        for verb in *REDUCE, "reducescatter":
            yield f"{verb} bool {op} 1013 {size - 1 if verb == 'reduce' else 0}"
            if op in OPS:
                yield f"{verb} f32! {op} 1013"


def reductions(peer, size):
    """Each type with each reduction, floats also with all that a float can be."""
    for i, dtype in enumerate(DTYPES[peer]):
        bits = peer != "gloo" and "f" not in dtype
        for op in OPS + OF_BITS if bits else OPS:
            for mark in ("", "!") if "f" in dtype else ("",):
                yield f"allreduce {dtype}{mark} {op} 1013"
                yield f"reduce {dtype}{mark} {op} 1013 {i % size}"


def around_segments(size):
    """Where a segment more begins: 1 MiB for each rank; and more than two a rank."""
    for count in (size * MIB // 4 + more for more in (-1, 0, 1)):
        yield f"allreduce f32 sum {count}"
        yield f"reduce f32 sum {count} {size - 1}"
    yield f"allreduce f32 sum {5 * size * MIB // 8 + 1}"
    yield f"reduce f64 sum {5 * size * MIB // 16 + 1} 0"
    yield f"broadcast u8 - {size * MIB + 1} 1"
    yield f"allgather f32 - {MIB // 4 + 1}"
    yield f"alltoall f32 - {MIB // 4 + 1}"


def message(count, source, to, slot, first):
    """Both halves; @p first of them is begun, and all have met, before the other is."""
    halves = {verb: f"{verb} u8 - {count} {source} {to} {slot}" for verb in ("send", "recv")}
    second = halves.pop(first)
    return [f"+ {second}", "barrier", *(f"+ {half}" for half in halves.values()), "wait"]


def messages():
    for count in 0, 1, MIB:
        for source, to in (0, 1), (1, 0):
            for first in "send", "recv":
                yield from message(count, source, to, count, first)
    yield from message(64 * MIB, 0, 1, 7, "send")
    yield from message(64 * MIB, 1, 0, 7, "recv")
    for source, to in (0, 1), (1, 0):
        yield from (f"+ recv i32 - {slot % 7} {source} {to} {slot}" for slot in range(1000))
        yield from (f"+ send i32 - {slot % 7} {source} {to} {slot}" for slot in range(999, -1, -1))
        yield "wait"
    # Of one slot in order, and both ways at once.
    for i in range(20):
        yield from (f"+ {verb} i32 - {i} 0 1 5" for verb in ("send", "recv"))
        yield from (f"+ {verb} i32 - {100 * i} 1 0 5" for verb in ("recv", "send"))
    yield "wait"
