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


def rank_output_after_shutdown():
    horon.init()
    size = horon.size()
    context = horon._world._context
    request = context.submit(_horon.ALLGATHER, "a", numbers(3), None)
    request.wait()
    horon.shutdown()
    output, rows = request.output()
    assert rows == (3,) * size
    assert memoryview(output).tolist() == expected(size, 3)


@pytest.mark.parametrize("n", [1, 2])
def test_output_can_be_asked_for_after_the_shutdown(run_ranks, n):
    run_ranks(n, rank_output_after_shutdown)


# ---- Outputs whose size the ranks decide ----


def rank_gather_into(room):
    """-> how it ended; nothing may be written behind the first `room` elements."""
    horon.init()
    context = horon._world._context
    memory = array.array("q", [-1] * (8 * LARGE))
    output = memoryview(memory)[:room]
    request = context.submit(_horon.ALLGATHER, "into", numbers(LARGE), output)
    try:
        request.wait()
    except horon.HoronInternalError as error:
        ended = error.status_name
    else:
        ended = "OK"
        assert output[: LARGE * horon.size()].tolist() == expected(horon.size(), LARGE)
    used = min(room, LARGE * horon.size()) if ended == "OK" else 0
    assert set(memory[used:]) == {-1}, f"{ended}, but written beyond element {used}"
    return ended


@pytest.mark.parametrize("shm", [1, 0])
@pytest.mark.parametrize("room", [1, LARGE, 2 * LARGE - 1])
def test_gather_into_too_small_an_output_fails_and_writes_nothing(run_ranks, room, shm):
    assert run_ranks(2, rank_gather_into, room, HORON_SHM=shm) == ["ERR_MEMORY"] * 2


@pytest.mark.parametrize("room", [2 * LARGE, 2 * LARGE + 1])
def test_gather_into_an_output_with_room(run_ranks, room):
    assert run_ranks(2, rank_gather_into, room) == ["OK"] * 2


def rank_gather_in_place():
    horon.init()
    context = horon._world._context
    memory = array.array("q", [-1] * (4 * LARGE))
    buffer = memoryview(memory)[:LARGE]
    request = context.submit(_horon.ALLGATHER, "in place", buffer, buffer)
    with pytest.raises(horon.HoronInternalError, match="room for"):
        request.wait()
    assert set(memory) == {-1}


def test_gather_in_place_does_not_write_beyond_its_input(run_ranks):
    run_ranks(2, rank_gather_in_place)


def rank_refused_buffers():
    horon.init()
    context = horon._world._context
    source, address = numbers(4), numbers(99).buffer_info()[0]
    dtype = _horon.DTYPES["int64"]
    typed = (0, 0, 1.0, 1.0, 0, dtype, (4,))
    for output, text, more in (
        (array.array("q"), "must be a tensor with room", ()),
        (array.array("d", [0] * 99), "differ in dtype", ()),
        (address, "cannot be an address", typed),
    ):
        with pytest.raises(ValueError, match=text):
            context.submit(_horon.ALLGATHER, "a", source, output, *more)
    for verb in (_horon.ALLREDUCE, _horon.BROADCAST):
        for output in (numbers(3), numbers(5), array.array("d", [0] * 4)):
            with pytest.raises(ValueError, match="differ in size or dtype"):
                context.submit(verb, "a", source, output)
    for buffers in ((source, None), (None, source), (source, source)):
        with pytest.raises(ValueError, match="a barrier moves nothing"):
            context.submit(_horon.BARRIER, "a", *buffers)
    for verb in (_horon.ALLGATHER, _horon.BARRIER):
        with pytest.raises(ValueError, match="cannot be done in place"):
            context.operation(verb, "a")


def test_buffers_that_do_not_fit_their_verb_are_refused(run_ranks):
    run_ranks(1, rank_refused_buffers)


def rank_refused_numbers():
    """None is cut to 32 bits, and the first wrong one is told, also if there are two."""
    horon.init()
    context = horon._world._context
    good = [_horon.ALLREDUCE, "a", numbers(1), numbers(1), 0, 0, 1.0, 1.0, 0]
    for place, bad in (
        (0, (2**32, -1, 99, 2**80, None, 1.5)),
        (1, ("\ud800", "a\0b", 7)),
        (4, (2**32, -1, 9, "x")),
        (5, (2**32, -(2**31) - 1, None)),
        (6, ("x", None)),
        (7, ("x", None)),
        (8, (2**32, -1, None)),
    ):
        for value in bad:
            arguments = [*good[:place], value, *good[place + 1 :]]
            for second in (None, "\ud800"):
                if second and place > 1:
                    arguments[1] = second
                with pytest.raises((ValueError, TypeError)):
                    context.submit(*arguments)
            with pytest.raises((ValueError, TypeError)):
                context.submit_group([tuple(arguments)])
            if place not in (2, 3):
                with pytest.raises((ValueError, TypeError)):
                    context.operation(*arguments[:2], *arguments[4:])


def test_numbers_out_of_range_are_refused(run_ranks):
    run_ranks(1, rank_refused_numbers)
