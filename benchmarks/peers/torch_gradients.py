# SPDX-License-Identifier: Apache-2.0
"""Replays gradients: every tensor is submitted asynchronously in the file's order, then all are
awaited. Started on every rank by benchmarks/gradients; rank 0 prints one JSON line.

    torch_gradients.py --library gloo|horon|optimizer --set FILE|COUNTxBYTES [--steps 6]
                       [--warmup 2] [--pin]
"""

import argparse
import json
import re
from pathlib import Path

import torch
import torch_rank


def read_set(text):
    """[(name, elements)] of a file of `name shape` lines, or of COUNTxBYTES equal tensors."""
    equal = re.fullmatch(r"(\d+)x(\d+)", text)
    if equal:
        n, size = int(equal[1]), int(equal[2])
        return [(f"tensor.{i}", size // 4) for i in range(n)]
    tensors = []
    for line in Path(text).read_text().splitlines():
        if line and not line.startswith("#"):
            name, shape = line.split()
            count = 1
            for length in shape.split("x"):
                count *= int(length)
            tensors.append((name, count))
    return tensors


def value_of(rank, index, turn):
    """What a rank's tensor is filled with: small whole numbers, so that sums are exact."""
    return float((index * 5 + rank * 3 + turn) % 16)


def wrong_of(library, tensors, turn):
    wrong = 0
    for index, tensor in enumerate(tensors):
        want = sum(value_of(rank, index, turn) for rank in range(library.size))
        wrong += int((tensor != want).sum())
    return int(library.maximum([float(wrong)])[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=sorted(torch_rank.LIBRARIES), required=True)
    parser.add_argument("--set", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--pin", action="store_true")
    arguments = parser.parse_args()
    library, meeting = torch_rank.open_library(arguments.library, arguments.pin)
    named = read_set(arguments.set)
    tensors = [torch.empty(count, dtype=torch.float32) for _, count in named]
    turn = 0

    def prepare():
        nonlocal turn
        turn += 1
        for index, tensor in enumerate(tensors):
            tensor.fill_(value_of(library.rank, index, turn))

    call = library.exchange({name: t for (name, _), t in zip(named, tensors, strict=True)})
    steps = arguments.steps
    times = torch_rank.timed(library, meeting, prepare, call, steps, arguments.warmup)
    wrong = wrong_of(library, tensors, turn)
    if library.rank == 0:
        line = {
            "peer": library.name,
            "version": library.version,
            "set": arguments.set,
            "tensors": len(tensors),
            "elements": sum(count for _, count in named),
            "np": library.size,
            **torch_rank.summary(times),
            "wrong": wrong,
        }
        print(json.dumps(line), flush=True)
    library.close()


if __name__ == "__main__":
    main()
