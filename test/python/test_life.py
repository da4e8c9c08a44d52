# SPDX-License-Identifier: Apache-2.0
"""Before init(), a second init(), after shutdown(), and leaving with operations in flight."""

import subprocess
import sys
import threading

import horon
import pytest
from conftest import LIMIT_SECONDS, clean_environment

QUESTIONS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "barrier")


def rank_too_early():
    for _ in range(2):
        for name in QUESTIONS:
            with pytest.raises(ValueError, match=r"has not been initialized; use hvd.init\(\)"):
                getattr(horon, name)()
        for call in (horon.allreduce, horon.allgather, horon.allgather_object):
            with pytest.raises(ValueError, match="initialized"):
                call(1.0)
        with pytest.raises(ValueError, match="initialized"):
            horon.broadcast_object(1)
        horon.shutdown()  # does nothing
        horon.init()
        horon.init()  # nor does this
        assert horon.allreduce(1.0, op=horon.Sum) == horon.size()
        horon.shutdown()
    return True


@pytest.mark.parametrize("n", [1, 2])
def test_calls_outside_of_init_and_shutdown_say_so(run_ranks, n):
    assert all(run_ranks(n, rank_too_early))


def rank_pending():
    horon.init()
    rank = horon.rank()
    handle = horon.allreduce_async(1.0, name=f"only on {horon.rank()}")
    group = horon.grouped_allreduce_async([1.0, 2.0], name=f"group only on {horon.rank()}")
    assert not handle.poll() and not group.poll()
    horon.barrier()  # neither leaves before both have begun
    horon.shutdown()
    texts = []
    for begun in (handle, group):
        assert begun.poll()
        with pytest.raises(horon.HoronInternalError) as caught:
            begun.wait()
        texts.append((caught.value.status_name, str(caught.value)))
        blame = (caught.value.cause, caught.value.rank)
        assert blame in (("CLOSED", rank), ("LEFT", 1 - rank)), blame  # whichever was first
    horon.init()
    assert horon.allreduce(1.0, op=horon.Sum) == horon.size()
    return texts


def test_what_is_pending_fails_at_shutdown(run_ranks):
    for texts in run_ranks(2, rank_pending):
        for status, text in texts:
            assert status == "ERR_CLOSED" and "shut down" in text, (status, text)


LEAVING = """
import sys, threading
import horon
horon.init()
handle = horon.allreduce_async(1.0, name=f"only on {horon.rank()}")
"""
ENDS = {
    "end": "",
    "exit": "sys.exit(0)",
    "thread": "threading.Thread(target=handle.wait, daemon=True).start()",
    "global": "del handle; import gc; gc.collect()",
}


@pytest.mark.parametrize("end", ENDS)
def test_script_may_end_with_operations_in_flight(horonrun, end):
    done = subprocess.run(
        [horonrun, "-np", "2", sys.executable, "-c", LEAVING + ENDS[end]],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Fatal" not in done.stderr and "assert" not in done.stderr, done.stderr


def rank_two_inits():
    """Threads that call init() at once get one world."""
    failures = []

    def join():
        try:
            horon.init()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=join) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return horon.allreduce(1.0, op=horon.Sum)


def test_threads_that_join_at_once_join_once(run_ranks):
    assert run_ranks(2, rank_two_inits) == [2.0, 2.0]
