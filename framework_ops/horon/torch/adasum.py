# SPDX-License-Identifier: Apache-2.0
"""Adasum: a sum of gradients in which what several ranks have in common counts once.

Two tensors a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: their sum if they are at
right angles, their average if they are equal. More are combined along horon's tree: neighbours in
rank order, then pairs of pairs; one that is left over goes up by itself. So any number of ranks
will do, and for a power of two it is the tree of the published algorithm (Maleki et al., 2020).

Every rank is given all tensors and computes the same: that takes memory for as many tensors as
there are ranks, and moves as many bytes. Only operations on single elements are used, and sums in
halves, so that the bits are the same on all ranks, whatever their processors and threads.
"""

import sys

import torch

_TINY = sys.float_info.min**0.5  # a square below it says nothing
_PIECE = 1 << 20  # elements whose products are there at a time


def _total(values):
    """-> one element; each addition is one of two numbers"""
    while values.numel() > 1:
        half = values.numel() // 2
        halves, rest = values[: 2 * half].view(2, half), values[2 * half :]
        values = halves[0] + halves[1]
        values[: rest.numel()] += rest
    return values


def _products(a, b):
    """-> a.b, a.a and b.b, in double precision"""
    totals = torch.zeros(3, dtype=torch.float64, device=a.device)
    for x, y in zip(a.split(_PIECE), b.split(_PIECE), strict=True):
        x, y = x.double(), y.double()
        totals += torch.cat([_total(x * y), _total(x * x), _total(y * y)])
    return totals.tolist()


def _share(dot, square):
    return 1.0 - dot / square / 2 if not square < _TINY else 1.0


def _pair(a, b):
    """None: the zeros of a rank that has joined, which are neutral."""
    if a is None or b is None:
        return a if b is None else b
    if a.numel() == 0:
        return a
    dot, aa, bb = _products(a, b)
    return a * _share(dot, aa) + b * _share(dot, bb)


def combine(rows, given, prescale=1.0, postscale=1.0):
    """-> the Adasum of the rows, in their dtype; 16 bits are computed with in 32, rounded once

    given: how many rows are each rank's: 1, or 0 of one that has joined.
    """
    wide = rows if rows.dtype == torch.float64 else rows.float()
    there = (row.reshape(-1) for row in (wide if prescale == 1.0 else wide * prescale))
    parts = [next(there) if n else None for n in given]
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [_pair(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    result = parts[0] if postscale == 1.0 else parts[0] * postscale
    return result.to(rows.dtype)
