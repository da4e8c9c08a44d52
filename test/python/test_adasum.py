# SPDX-License-Identifier: Apache-2.0
"""Adasum of numpy arrays, against the published formula."""

import pytest

numpy = pytest.importorskip("numpy")

import horon  # noqa: E402

BOUNDS = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3}


def pair(a, b):
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b


def model(arrays):
    """The ranks split at the largest power of two below their number."""
    if len(arrays) == 1:
        return arrays[0]
    half = 1 << (len(arrays) - 1).bit_length() - 1
    return pair(model(arrays[:half]), model(arrays[half:]))


def numbers(rank, shape, dtype):
    return numpy.random.default_rng(rank).standard_normal(shape).astype(dtype)


def close(got, want, dtype):
    assert got.dtype == dtype and got.shape == want.shape
    bound = BOUNDS[dtype] * max(1.0, abs(want).max(initial=0.0))
    assert (abs(got.astype("float64") - want) <= bound).all(), (got, want)


def rank_formula():
    horon.init()
    size, rank = horon.size(), horon.rank()
    bits = []
    for dtype in BOUNDS:
        for shape in ((), (0,), (1,), (2, 1, 3), (1025,), (1, 2, 1, 2, 1, 1, 1, 2)):
            ranks = [numbers(r, shape, "float64").astype(dtype) for r in range(size)]
            want = model([array.astype("float64") for array in ranks])
            mine = numpy.array(ranks[rank])
            got = horon.allreduce(mine, op=horon.Adasum)
            close(got, numpy.asarray(want), dtype)
            assert (mine == ranks[rank]).all()
            assert horon.allreduce_(mine, op=horon.Adasum) is mine and (mine == got).all()
            bits.append(got.tobytes())
    return bits


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_adasum_of_arrays_is_the_published_formula(run_ranks, n):
    results = run_ranks(n, rank_formula)
    assert all(result == results[0] for result in results)


def rank_other_forms():
    horon.init()
    size, rank = horon.size(), horon.rank()
    same = numpy.array([3.0, -4.0], "float32")
    scaled = horon.allreduce(same, op=horon.Adasum, prescale_factor=2.0, postscale_factor=0.25)
    assert scaled.dtype == "float32" and (scaled == same / 2).all()
    apart = numpy.zeros((2, size))
    apart[0, rank] = rank + 1.0
    strided = apart.T
    assert horon.allreduce_(strided, op=horon.Adasum) is strided
    assert apart.tolist() == [[r + 1.0 for r in range(size)], [0.0] * size]
    one, two = horon.grouped_allreduce([same, apart], op=horon.Adasum)
    assert (one == same).all() and (two == apart).all()
    assert horon.grouped_allreduce([], op=horon.Adasum) == []
    scalar = horon.allreduce(numpy.float32(7), op=horon.Adasum)
    assert type(scalar) is numpy.float32 and scalar == 7
    for wrong, error, text in (
        (numpy.ones(1, int), ValueError, "floating-point arrays, not int64"),
        (1.0, NotImplementedError, "no ADASUM of float"),
        (bytearray(4), NotImplementedError, "no ADASUM of bytearray"),
    ):
        with pytest.raises(error, match=text):
            horon.allreduce(wrong, op=horon.Adasum)
    with pytest.raises(TypeError, match="a number cannot be changed"):
        horon.allreduce_(numpy.float32(7), op=horon.Adasum)
    same.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        horon.allreduce_(same, op=horon.Adasum)
    if rank != 0:
        same = numpy.zeros(2, "float32")
        horon.join()
    else:
        assert horon.allreduce(same, op=horon.Adasum, name="left").tolist() == [3, -4]
        horon.join()


@pytest.mark.parametrize("n", [2, 3])
def test_adasum_of_arrays_in_other_forms(run_ranks, n):
    run_ranks(n, rank_other_forms)


def rank_brain_floats():
    bfloat16 = numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    horon.init()
    same = numpy.array([3.0, -4.0], bfloat16)
    got = horon.allreduce(same, op=horon.Adasum)
    assert got.dtype == bfloat16 and (got == same).all()


def test_adasum_of_brain_floats(run_ranks):
    pytest.importorskip("ml_dtypes")
    run_ranks(2, rank_brain_floats)
