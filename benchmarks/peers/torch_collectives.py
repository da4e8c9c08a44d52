# SPDX-License-Identifier: Apache-2.0
"""Blocking collectives of one float32 tensor, through torch. Started on every rank by
benchmarks/compare; rank 0 writes horon-perf's JSON lines on standard output, and sizes are
horon-perf's: of the largest tensor that a rank gives or gets.

    torch_collectives.py --library gloo|horon --verbs VERB,... --sizes 8,65536 --iterations 20,20
                         [--warmup 5] [--pin]
"""

import argparse
import json
import time

import torch
import torch_rank

ROOT = 0
# What a rank gives and gets: "all" elements of the size, or its "part" of them.
GIVES = dict.fromkeys(("allgather", "gather"), "part")
GETS = dict.fromkeys(("scatter", "reducescatter"), "part")
BUSBW_FACTOR = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "sendrecv": lambda n: 1,
}


def value(rank, count, turn):
    return (torch.arange(count, dtype=torch.float32) + rank * 3) % 8 + float(turn % 5)


def expected(verb, rank, size, count, turn):
    """-> what this rank gets; None: nothing. @p count  elements that it gives"""
    inputs = [value(other, count, turn) for other in range(size)]
    mine = slice(rank * count // size, (rank + 1) * count // size)
    if verb == "barrier" or (verb in ("gather", "reduce") and rank != ROOT):
        return None
    if verb == "sendrecv":
        return inputs[rank - 1]
    if verb in ("broadcast", "scatter"):
        return inputs[ROOT] if verb == "broadcast" else inputs[ROOT][mine]
    if verb in ("allgather", "gather"):
        return torch.cat(inputs)
    if verb == "alltoall":
        return torch.cat([given[mine] for given in inputs])
    return sum(inputs)[mine] if verb == "reducescatter" else sum(inputs)


def measure(library, meeting, verb, size, iterations, warmup):
    ranks = library.size
    divided = verb not in torch_rank.WHOLE
    part = max(size // 4 // (ranks if divided else 1), min(size, 1))  # a barrier is of nothing
    whole = part * ranks if divided else part
    given = part if GIVES.get(verb) else whole
    base = value(library.rank, given, 0)
    source = torch.empty_like(base)
    target = torch.empty(part if GETS.get(verb) else whole)
    operation = library.operation(verb, source, target, ROOT)
    turn, output = 0, None

    def prepare():
        nonlocal turn
        turn += 1
        torch.add(base, float(turn % 5), out=source)

    def call():
        nonlocal output
        output = operation()

    cell = torch_rank.summary(torch_rank.timed(library, meeting, prepare, call, iterations, warmup))
    want = expected(verb, library.rank, ranks, given, turn)
    wrong = 0.0 if want is None else float((output != want).sum())
    wrong = library.maximum([wrong])[0]
    source.zero_()
    meeting.meet()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    b2b = library.maximum([(time.perf_counter() - start) * 1e6 / iterations])[0]
    algbw = whole * 4 / cell["time_us"] * 1e-3
    factor = BUSBW_FACTOR.get(verb, lambda n: (n - 1) / n)
    return {
        "peer": library.name,
        "version": library.version,
        "verb": verb,
        "path": "torch",
        "size": whole * 4,
        "asked": size,
        "count": whole,
        "type": "float",
        "redop": "sum",
        "np": ranks,
        "in_place": verb in torch_rank.IN_PLACE,
        **cell,
        "b2b_us": b2b,
        "algbw": algbw,
        "busbw": algbw * factor(ranks),
        "wrong": int(wrong),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=sorted(torch_rank.LIBRARIES), required=True)
    parser.add_argument("--verbs", required=True, help=", ".join(torch_rank.VERBS))
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--iterations", required=True)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--pin", action="store_true")
    arguments = parser.parse_args()
    library, meeting = torch_rank.open_library(arguments.library, arguments.pin)
    sizes = [int(word) for word in arguments.sizes.split(",")]
    iterations = [int(word) for word in arguments.iterations.split(",")]
    for verb in arguments.verbs.split(","):
        for size, n in zip(sizes, iterations, strict=True):
            cell = measure(library, meeting, verb, size, n, arguments.warmup)
            if library.rank == 0:
                print(json.dumps(cell), flush=True)
    library.close()


if __name__ == "__main__":
    main()
