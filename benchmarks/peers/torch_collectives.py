# SPDX-License-Identifier: Apache-2.0
"""Blocking float32 sums of one tensor in place, through torch. Started on every rank by
benchmarks/compare; rank 0 writes horon-perf's JSON lines on standard output.

    torch_allreduce.py --library gloo|horon --sizes 8,65536 --iterations 20,20 [--warmup 5] [--pin]
"""

import argparse
import json
import time

import torch
import torch_rank


def rewrite(tensor, base, turn):
    torch.add(base, float(turn % 5), out=tensor)


def measure(library, meeting, size, iterations, warmup):
    count = max(size // 4, 1)
    base = (torch.arange(count, dtype=torch.float32) + library.rank * 3) % 8
    tensor = torch.empty_like(base)
    turn = 0

    def prepare():
        nonlocal turn
        turn += 1
        rewrite(tensor, base, turn)

    def call():
        library.allreduce(tensor, "tensor")

    cell = torch_rank.summary(torch_rank.timed(library, meeting, prepare, call, iterations, warmup))
    want = sum(
        (torch.arange(count, dtype=torch.float32) + rank * 3) % 8 + float(turn % 5)
        for rank in range(library.size)
    )
    wrong = library.maximum([float((tensor != want).sum())])[0]
    tensor.zero_()
    meeting.meet()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    b2b = library.maximum([(time.perf_counter() - start) * 1e6 / iterations])[0]
    return {
        "peer": library.name,
        "version": library.version,
        "verb": "allreduce",
        "path": "torch",
        "size": count * 4,
        "count": count,
        "type": "float",
        "redop": "sum",
        "np": library.size,
        "in_place": True,
        **cell,
        "b2b_us": b2b,
        "algbw": count * 4 / cell["time_us"] * 1e-3,
        "busbw": count * 4 / cell["time_us"] * 1e-3 * 2 * (library.size - 1) / library.size,
        "wrong": int(wrong),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=sorted(torch_rank.LIBRARIES), required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--iterations", required=True)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--pin", action="store_true")
    arguments = parser.parse_args()
    library, meeting = torch_rank.open_library(arguments.library, arguments.pin)
    sizes = [int(word) for word in arguments.sizes.split(",")]
    iterations = [int(word) for word in arguments.iterations.split(",")]
    for size, n in zip(sizes, iterations, strict=True):
        cell = measure(library, meeting, size, n, arguments.warmup)
        if library.rank == 0:
            print(json.dumps(cell), flush=True)
    library.close()


if __name__ == "__main__":
    main()
