# SPDX-License-Identifier: Apache-2.0
"""Requests of the extension: what they keep, and for how long."""

import array

import horon
import pytest
from horon import _horon

# Memory of this size goes back to the system when it is freed: a late look at it ends the process
LARGE = 1 << 20


def numbers(count):
    return array.array("q", range(count))


def expected(size, count):
    return list(range(count)) * size


def rank_output_outlives_release(count, ends):
    horon.init()
    context = horon._world._context
    request = context.submit(_horon.ALLGATHER, "a", numbers(count), None)
    request.wait()
    first, rows = request.output()
    assert rows == (count,) * horon.size()
    second, _ = request.output()
    view = memoryview(first)
    request.release()
    request.release()
    del first
    with pytest.raises(ValueError, match="the request was released"):
        request.output()
    if ends:
        horon.shutdown()
    assert view.tolist() == expected(len(rows), count)
    del view
    assert memoryview(second).tolist() == expected(len(rows), count)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("count", [3, LARGE])
def test_output_outlives_the_release(run_ranks, n, count, ends):
    run_ranks(n, rank_output_outlives_release, count, ends)


def rank_output_in_a_buffer():
    horon.init()
    context = horon._world._context
    for begin in (context.submit, context.prepare):
        output = array.array("q", bytes(8 * LARGE * horon.size()))
        request = begin(_horon.ALLGATHER, "into", numbers(LARGE), output)
        del output
        if begin == context.prepare:
            request.start()
        request.wait()
        view = memoryview(request.output()[0])
        request.release()
        assert view.tolist() == expected(horon.size(), LARGE)


@pytest.mark.parametrize("n", [1, 2])
def test_output_outlives_the_buffer_it_is_in(run_ranks, n):
    run_ranks(n, rank_output_in_a_buffer)


def rank_output_outlives_start(count):
    horon.init()
    context = horon._world._context
    source = numbers(count)
    request = context.prepare(_horon.ALLGATHER, "a", source, None)
    other = context.prepare(_horon.BARRIER, "b", None, None)
    for start in (request.start, lambda: _horon.start_all([request])):
        start()
        request.wait()
        output, _ = request.output()
        view = memoryview(output)
        del output
        for refused in (request.start, lambda: _horon.start_all([other, request])):
            with pytest.raises(ValueError, match="the output of this request is in use"):
                refused()
        assert view.tolist() == expected(horon.size(), count)
        del view
    other.start()  # it was not begun with the one that was refused
    other.wait()
    request.start()
    request.wait()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("count", [3, LARGE])
def test_request_does_not_start_while_its_output_is_used(run_ranks, n, count):
    run_ranks(n, rank_output_outlives_start, count)
