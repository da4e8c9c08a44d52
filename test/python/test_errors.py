# SPDX-License-Identifier: Apache-2.0
"""What a script sees when ranks disagree, die, wait or are interrupted."""

import array
import gc
import os
import re
import signal
import socket
import sys
import threading
import time
import weakref

import horon
import pytest
from horon import _horon
from horon.exceptions import about_of


def numbers(n, letter="d"):
    return array.array(letter, [1] * n)


MISMATCHES = {
    "dtype": lambda rank: horon.allreduce_(numbers(4, "df"[rank]), name="m", op=horon.Sum),
    "shape": lambda rank: horon.allreduce_(numbers(4 + rank), name="m", op=horon.Sum),
    "op": lambda rank: horon.allreduce_(numbers(4), name="m", op=(horon.Sum, horon.Max)[rank]),
    "root": lambda rank: horon.broadcast_(numbers(4), rank, name="m"),
    "scale": lambda rank: horon.allreduce_(
        numbers(4), name="m", op=horon.Sum, prescale_factor=1.0 + rank
    ),
}


def rank_mismatch(kind):
    horon.init()
    with pytest.raises(horon.HoronInternalError) as caught:
        MISMATCHES[kind](horon.rank())
    assert caught.value.status_name == "ERR_MISMATCH"
    assert horon.allreduce(1.0, op=horon.Sum) == horon.size()  # the job goes on
    return str(caught.value), caught.value.about


@pytest.mark.parametrize("kind", MISMATCHES)
def test_mismatch_fails_on_every_rank_with_a_text_that_names_both(run_ranks, kind):
    for text, about in run_ranks(2, rank_mismatch, kind):
        assert "m" in text and "rank 0" in text and "rank 1" in text, text
        _, cause, rank, other_rank, host, name = about
        assert (cause, rank, other_rank) == ("DESCRIPTION", 0, 1)
        assert f"rank 0 ({host})" in text and "m" in name and name in text, about


def rank_verb_mismatch():
    horon.init()
    context = horon._world.context()
    verb = (_horon.ALLREDUCE, _horon.BROADCAST)[horon.rank()]
    buffer = numbers(3)
    request = context.submit(verb, "same name", buffer, buffer)
    with pytest.raises(horon.HoronInternalError) as caught:
        request.wait()
    return str(caught.value), caught.value.about


def test_different_verbs_under_one_name_fail(run_ranks):
    for text, about in run_ranks(2, rank_verb_mismatch):
        assert "same name" in text and "rank 0" in text and "rank 1" in text, text
        assert about[1:4] == ("VERB", 0, 1) and about[5] == "same name"


REFUSALS = {
    "root": (lambda: horon.broadcast(numbers(2), 7, name="w"), "root 7 is no rank of 0..1"),
    "no such root": (lambda: horon.reduce(1.0, 2**40, name="w"), f"root {2**40} is not in"),
    "type of a root": (lambda: horon.reduce(1.0, "x", name="w"), "root 'x' is no whole number"),
    "type of a scale": (
        lambda: horon.allreduce(1.0, name="w", postscale_factor="x"),
        "postscale factor 'x' is no number",
    ),
    "root of a set": (
        lambda: horon.broadcast(1.0, 1, name="w", process_set=horon._world.process_set_by_id(1)),
        "rank 1 is no member of process set 1",
    ),
    "number of splits": (lambda: horon.alltoall(numbers(2), [2], name="w"), "1 splits are given"),
    "sum of splits": (lambda: horon.scatter(numbers(2), 0, [1, 2], name="w"), "add up to 3 rows"),
    "dtype": (
        lambda: horon.allgather(memoryview(bytes(8)).cast("P"), name="w"),
        "buffer format 'P' is none of horon's element types",
    ),
    "reduction": (
        lambda: horon.allreduce(numbers(2), name="w", op=horon.BitAnd),
        "float64 has no bit_and",
    ),
    "tensor": (lambda: horon.allreduce(None, name="w"), "offers neither a buffer nor __dlpack__"),
    "share": (lambda: horon.reducescatter(1.0, name="w"), "a scalar has no rows"),
    "capacity": (
        lambda: horon.prepare("allreduce", numbers(2), numbers(3), name="w"),
        "output and input differ in size or dtype",
    ),
}


def rank_refused():
    horon.init(process_sets=[[0]])
    if horon.rank() == 0:
        for call, text in REFUSALS.values():
            with pytest.raises((TypeError, ValueError, horon.HoronInternalError)) as caught:
                call()
            told = rf"(\w+) '\1\.w' was refused: .*{re.escape(text)}"
            assert re.match(told, str(caught.value)), str(caught.value)
            about = about_of(caught.value)
            assert about is None or about[-1].endswith(".w")
    return horon.allreduce(1.0, name="w", op=horon.Sum)


def test_what_is_refused_on_one_rank_is_told_by_verb_and_name(run_ranks):
    assert run_ranks(2, rank_refused) == [2.0, 2.0]


def rank_duplicate():
    horon.init()
    if horon.rank() == 0:
        first = horon.allreduce_async(1.0, name="twice", op=horon.Sum)
        with pytest.raises(ValueError, match="twice") as caught:
            horon.allreduce_async(1.0, name="twice", op=horon.Sum)
        assert caught.value.status == _horon.STATUSES["ERR_DUPLICATE"]
        assert (caught.value.cause, caught.value.rank) == ("ARGUMENT", None)
        assert caught.value.name in str(caught.value)
        horon.barrier()
        return first.wait()
    horon.barrier()
    return horon.allreduce(1.0, name="twice", op=horon.Sum)


def test_name_in_flight_is_refused_and_the_first_goes_on(run_ranks):
    assert run_ranks(2, rank_duplicate) == [2.0, 2.0]


def rank_interrupted_init(directory):
    """Rank 1 comes only when rank 0 has been interrupted waiting for it."""
    marker = directory / "interrupted"
    settings = {"STORE": f"tcp://127.0.0.1:{(directory / 'port').read_text()}"}
    if int(os.environ["HORON_RANK"]) == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            horon.init(settings=settings)
        assert not horon.is_initialized()
        marker.touch()
    while not marker.exists():
        time.sleep(0.005)
    horon.init(settings=settings)
    return horon.allreduce(1.0, op=horon.Sum)


def test_interrupt_ends_init_that_waits_for_a_rank(run_ranks, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(free.getsockname()[1]))
    assert run_ranks(2, rank_interrupted_init, tmp_path) == [2.0, 2.0]


class _Stop(Exception):
    pass


def rank_handler_raises():
    def stop(number, frame):
        raise _Stop

    signal.signal(signal.SIGTERM, stop)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(_Stop):
        _horon.Context(rank=1, size=2, settings=("STORE=tcp://127.0.0.1:9", f"JOB_KEY={'5a' * 16}"))
    horon.init()  # of this world of one
    return horon.size()


def test_exception_of_a_signal_handler_ends_joining(run_ranks):
    assert run_ranks(1, rank_handler_raises) == [1]


def rank_dies(victim):
    horon.init()
    if horon.rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(horon.HoronInternalError) as caught:
        while True:
            horon.allreduce(1.0, name="loop")
    with pytest.raises(horon.HoronInternalError):
        horon.allreduce(1.0, name="later")
    horon.shutdown()
    return str(caught.value), time.monotonic() - start


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_fails_the_others_with_its_name(start_ranks, victim):
    ranks = start_ranks(3, rank_dies, victim)
    codes = ranks.wait()
    assert codes[victim] == -signal.SIGKILL, ranks.logs()
    for rank in {0, 1, 2} - {victim}:
        assert codes[rank] == 0, ranks.logs()
        text, _ = ranks.result(rank)
        assert f"rank {victim}" in text, text


def rank_interrupt(kind):
    horon.init()
    if horon.rank() == 1:
        horon.allreduce(0.0, name="end")
        return None
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        if kind == "one":
            horon.allreduce(1.0, name="never")
        else:
            horon.grouped_allreduce([1.0, 2.0], name="never")
    assert horon.allreduce(0.0, name="end") == 0.0
    return True


@pytest.mark.parametrize("kind", ["one", "group"])
def test_interrupt_ends_a_wait(run_ranks, kind):
    assert run_ranks(2, rank_interrupt, kind)[0]


def rank_releases():
    horon.init()
    number = array.array("d", [1.0])
    if horon.rank() == 1:
        horon.barrier()
    request = horon._world.context().submit(_horon.ALLREDUCE, "late", number, number)
    if horon.rank() == 1:
        request.wait()
        return number[0]
    signal.signal(signal.SIGALRM, lambda *_: request.release())
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(ValueError, match="a thread waits for this request"):
        request.wait()
    horon.barrier()
    request.wait()
    return number[0]


def test_a_signals_handler_cannot_release_what_is_waited_for(run_ranks):
    assert run_ranks(2, rank_releases) == [2.0, 2.0]


def rank_timeout():
    horon.init()
    if horon.rank() == 0:
        handle = horon.allreduce_async(1.0, name="late", op=horon.Sum)
        assert not handle.poll()
        with pytest.raises(TimeoutError, match=r"late' is still in flight: .* rank 1 ") as caught:
            horon.synchronize(handle, 0.06)
        assert (caught.value.cause, caught.value.name) == ("TIME_LIMIT", "allreduce.late")
        assert (caught.value.rank, caught.value.other_rank) == (0, 1)
        for timeout in (0.01, 0, -1.0, float("-inf")):  # what is left of a limit may be below 0
            with pytest.raises(TimeoutError, match="the operation is still in flight") as caught:
                horon.synchronize(handle, timeout)
            assert caught.value.cause == "TIME_LIMIT"
        long = horon.allreduce_async(1.0, name="\u00e9" * 200, op=horon.Sum)
        with pytest.raises(TimeoutError, match="is still in flight"):  # cut within a character
            horon.synchronize(long, 0.06)
        with pytest.raises(ValueError, match="not a number of seconds"):
            horon.synchronize(handle, float("nan"))
        assert not handle.poll()
        horon.barrier()
        horon.synchronize(long, timeout=60)
        return horon.synchronize(handle, timeout=60)
    horon.barrier()
    horon.allreduce(1.0, name="\u00e9" * 200, op=horon.Sum)
    return horon.allreduce(1.0, name="late", op=horon.Sum)


def test_timeout_leaves_the_operation_in_flight(run_ranks):
    assert run_ranks(2, rank_timeout) == [2.0, 2.0]


def rank_stalls():
    """Each of two ranks waits for what the other one does not have."""
    horon.init()
    name = "ab"[horon.rank()]
    for text in ("failed: ", "was refused: "):  # it was in flight, and comes after
        with pytest.raises(horon.HoronInternalError, match=text + ".* ends the job, as ") as caught:
            horon.allreduce(1.0, name=name)
        error = caught.value
        assert (error.status_name, error.cause) == ("ERR_TIMEOUT", "TIME_LIMIT")
        assert error.name == f"allreduce.{name}"
    with pytest.raises(horon.HoronInternalError, match="ends the job, as "):
        horon.join()
    with pytest.raises(horon.HoronInternalError, match="ends the job, as "):
        horon.add_process_set([0])


def test_a_job_that_a_stall_ended_is_no_time_limit_of_a_call(run_ranks):
    run_ranks(2, rank_stalls, HORON_STALL_SHUTDOWN_TIME="300ms")


def rank_cancel():
    horon.init()
    context = horon._world.context()
    if horon.rank() == 0:
        buffer = numbers(3)
        request = context.submit(_horon.ALLREDUCE, "withdrawn", buffer, buffer)
        assert request.status == _horon.STATUSES["IN_PROGRESS"]
        assert request.cancel()
        with pytest.raises(horon.HoronInternalError) as caught:
            request.wait()
        assert caught.value.status_name == "ERR_CANCELLED"
        assert request.test() and not request.cancel()
    horon.barrier()
    return horon.allreduce(1.0, name="withdrawn", op=horon.Sum)


def test_cancelled_operation_frees_its_name(run_ranks):
    assert run_ranks(2, rank_cancel) == [2.0, 2.0]


def rank_gil():
    horon.init()
    if horon.rank() == 1:
        time.sleep(1)
        return horon.allreduce(1.0, name="late", op=horon.Sum) * 1000
    count = 0
    running = True

    def spin():
        nonlocal count
        while running:
            count += 1

    thread = threading.Thread(target=spin)
    thread.start()
    horon.allreduce(1.0, name="late", op=horon.Sum)
    running = False
    thread.join()
    return count


def test_other_threads_run_while_one_waits(run_ranks):
    assert run_ranks(2, rank_gil)[0] > 10_000


def rank_threads():
    """Operations of many threads, submitted and awaited in any order."""
    horon.init()
    results = {}

    def work(n):
        for i in range(20):
            results[n, i] = horon.allreduce(float(n), name=f"t{n}", op=horon.Sum)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads if horon.rank() else threads[::-1]:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(total == n * horon.size() for (n, _), total in results.items())
    return len(results)


@pytest.mark.parametrize("n", [1, 2])
def test_threads_share_a_context(run_ranks, n):
    assert run_ranks(n, rank_threads) == [100] * n


def rank_shutdown_during_wait():
    horon.init()
    if horon.rank() == 1:
        horon.barrier()
        horon.shutdown()
        return True
    failure = []

    def wait():
        try:
            horon.allreduce(1.0, name="never")
        except horon.HoronInternalError as error:
            failure.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    horon.barrier()
    horon.shutdown()
    thread.join()
    return bool(failure)


def test_shutdown_ends_the_waits_of_other_threads(run_ranks):
    assert run_ranks(2, rank_shutdown_during_wait) == [True, True]


def rank_peer_leaves():
    horon.init()
    if horon.rank() == 1:
        horon.shutdown()
        return ""
    with pytest.raises(horon.HoronInternalError) as caught:
        horon.allreduce(1.0, name="alone")
    return str(caught.value)


def test_shutdown_of_a_peer_fails_what_needs_it(run_ranks):
    assert "rank 1" in run_ranks(2, rank_peer_leaves)[0]


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def rank_rounds(rounds):
    usage = []
    for i in range(rounds):
        horon.init()
        assert horon.allreduce(float(i), op=horon.Sum) == i * horon.size()
        horon.shutdown()
        if i in (10, rounds - 1):
            gc.collect()
            usage.append(
                (open_descriptors(), threading.active_count(), len(os.listdir("/proc/self/task")))
            )
    return usage


@pytest.mark.parametrize("n", [1, 2])
def test_200_rounds_of_init_and_shutdown_leak_nothing(run_ranks, n):
    for early, late in run_ranks(n, rank_rounds, 200):
        assert early == late


class Weak(bytearray):
    """A buffer that tells when it is gone."""


def rank_references(next_call):
    horon.init()
    context = horon._world.context()
    if horon.rank() == 1:
        horon.barrier()
        for name in ("kept", "dropped", "twice"):
            horon.allreduce(array.array("B", [1] * 8), name=name, op=horon.Sum)
        horon.barrier()
        return True
    buffers = [Weak(8) for _ in range(3)]
    gone = [weakref.ref(buffer) for buffer in buffers]
    kept = context.submit(_horon.ALLREDUCE, "allreduce.kept", buffers[0], buffers[0])
    context.submit(_horon.ALLREDUCE, "allreduce.dropped", buffers[1], buffers[1])
    released = context.submit(_horon.ALLREDUCE, "allreduce.twice", buffers[2], buffers[2])
    released.release()
    released.release()
    with pytest.raises(ValueError):
        released.wait()
    buffers.clear()
    gc.collect()
    assert all(ref() is not None for ref in gone), "horon still uses them"
    horon.barrier()
    kept.wait()
    assert gone[0]() is None, "a request that has ended keeps its buffer"
    horon.barrier()  # the others have ended by now; the next submission lets them go
    end = (_horon.ALLREDUCE, "local end", bytearray(1), bytearray(1))
    if next_call == "submit":
        context.submit(*end)
    else:
        context.submit_group([end])
    assert gone[1]() is None and gone[2]() is None
    assert sys.getrefcount(kept) == 2
    return True


@pytest.mark.parametrize("next_call", ["submit", "submit_group"])
def test_buffers_live_as_long_as_their_operation_and_no_longer(run_ranks, next_call):
    assert run_ranks(2, rank_references, next_call) == [True, True]


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rank_memory():
    os.environ["HORON_CACHE_ENTRIES"] = "256"  # full before the first mark: objects have new names
    horon.init()
    data = numbers(1000)
    marks = []
    for i in range(1200):
        horon.allreduce(data, name=f"a{i % 10}")
        horon.allgather(data, name=f"g{i % 10}")
        horon.broadcast_object(None)
        if i % 300 == 299:
            gc.collect()
            marks.append(resident_bytes())
    return marks


def test_steady_use_does_not_grow(run_ranks):
    for marks in run_ranks(2, rank_memory):
        assert marks[-1] - marks[0] < 2 << 20, marks


def rank_fork():
    horon.init()
    pid = os.fork()
    if pid == 0:
        try:
            horon.allreduce(1.0, name="in the child")
        except horon.HoronInternalError as error:
            os._exit(7 if error.status_name == "ERR_FORKED" else 8)
        os._exit(9)
    _, status = os.waitpid(pid, 0)
    pid = os.fork()
    if pid == 0:
        horon.shutdown()
        os._exit(0)
    _, status_of_shutdown = os.waitpid(pid, 0)
    total = horon.allreduce(1.0, op=horon.Sum)
    return os.waitstatus_to_exitcode(status), os.waitstatus_to_exitcode(status_of_shutdown), total


@pytest.mark.parametrize("n", [1, 2])
def test_forked_child_gets_a_named_error_and_harms_nothing(run_ranks, n):
    assert run_ranks(n, rank_fork) == [(7, 0, float(n))] * n


def rank_prepared():
    horon.init()
    context = horon._world.context()
    buffers = [numbers(n) for n in (1, 13, 1000)]
    requests = [
        context.prepare(_horon.ALLREDUCE, f"p{i}", b, b, horon.Sum) for i, b in enumerate(buffers)
    ]
    for _ in range(5):
        _horon.start_all(requests)
        _horon.wait_all(requests)
    with pytest.raises(ValueError):
        context.prepare(_horon.ALLREDUCE, "n" * 600, buffers[0], buffers[0])
    for request in requests:
        request.start()
        request.wait()
    assert all(list(b) == [float(horon.size() ** 6)] * len(b) for b in buffers)


@pytest.mark.parametrize("n", [1, 2])
def test_prepared_operations_run_again_and_again(run_ranks, n):
    run_ranks(n, rank_prepared)


def rank_large_settings():
    horon.init(settings={"FUSION_BYTES": "1m"})
    total = horon.allreduce(1.0, op=horon.Sum)
    horon.shutdown()
    with pytest.raises(ValueError, match="FUSION_BYTES"):
        horon.init(settings={"FUSION_BYTE": "1m"})
    with pytest.raises(ValueError, match="FUSION_BYTES"):
        horon.init(settings={"FUSION_BYTES": "much"})
    return total


def test_settings_go_before_the_environment(run_ranks):
    assert run_ranks(2, rank_large_settings, HORON_FUSION_BYTES="2m") == [2.0, 2.0]


def rank_loses_input(in_place):
    """Over links, where what rank 0 starts is under way without rank 1, which never comes."""
    horon.init()
    if horon.rank() == 1:
        with pytest.raises(horon.HoronInternalError) as caught:
            horon.barrier()
        return caught.value.input_lost
    source = numbers(300000, "f")
    target = source if in_place else numbers(300000, "f")
    request = horon.prepare("allreduce", source, target, in_order=True, op=horon.Sum)
    request.start()
    with pytest.raises(TimeoutError):
        request.wait(timeout=0.01)
    horon.shutdown()
    with pytest.raises(horon.HoronInternalError) as caught:
        request.wait()
    return caught.value.input_lost


@pytest.mark.parametrize("in_place", [False, True])
def test_a_failure_says_whether_the_input_may_be_lost(run_ranks, in_place):
    assert run_ranks(2, rank_loses_input, in_place, HORON_SHM=0) == [in_place, False]
