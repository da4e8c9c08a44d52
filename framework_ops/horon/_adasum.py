# SPDX-License-Identifier: Apache-2.0
"""Adasum: a sum of gradients in which what several ranks have in common counts once.

Two tensors a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: their sum if they are at
right angles, their average if they are equal. More are combined along horon's tree: neighbours in
rank order, then pairs of pairs; one that is left over goes up by itself. So any number of ranks
will do, and for a power of two it is the tree of the published algorithm (Maleki et al., 2020).

Every rank is given all tensors and computes the same: that takes memory for as many tensors as
there are ranks, and moves as many bytes. Only operations on single elements are used, and sums in
halves, so that the bits are the same on all ranks, whatever their processors and threads.

Tensors here are flat, of any framework whose slices can be added, also in place: numpy's, torch's.
"""

import sys

_TINY = sys.float_info.min**0.5  # a square below it says nothing
_PIECE = 1 << 20  # elements whose products are there at a time


def _total(values):
    """-> a number; each addition is one of two numbers"""
    while len(values) > 1:
        half = len(values) // 2
        rest = values[2 * half :]
        values = values[:half] + values[half : 2 * half]
        values[: len(rest)] += rest
    return values[0].item()


def _products(a, b, double):
    """-> a.b, a.a and b.b, in double precision"""
    ab = aa = bb = 0.0
    for start in range(0, len(a), _PIECE):
        x, y = (double(whole[start : start + _PIECE]) for whole in (a, b))
        ab, aa, bb = ab + _total(x * y), aa + _total(x * x), bb + _total(y * y)
    return ab, aa, bb


def _share(dot, square):
    return 1.0 - dot / square / 2 if not square < _TINY else 1.0


def _pair(a, b, double):
    """None: the zeros of a rank that has joined, which are neutral."""
    if a is None or b is None:
        return a if b is None else b
    if len(a) == 0:
        return a
    dot, aa, bb = _products(a, b, double)
    return a * _share(dot, aa) + b * _share(dot, bb)


def combine(rows, given, double, prescale=1.0, postscale=1.0):
    """-> the Adasum of the rows, in their dtype, which has 32 bits or more

    given: how many rows are each rank's: 1, or 0 of one that has joined. double(tensor) -> the
    tensor in double precision.
    """
    there = iter(rows if prescale == 1.0 else [row * prescale for row in rows])
    parts = [next(there) if n else None for n in given]
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [_pair(*pair, double) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0] if postscale == 1.0 else parts[0] * postscale
