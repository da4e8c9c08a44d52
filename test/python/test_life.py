# SPDX-License-Identifier: Apache-2.0
"""Before init(), a second init(), after shutdown(), and leaving with operations in flight."""

import os
import subprocess
import sys
import threading

import horon
import pytest
from conftest import LIMIT_SECONDS, clean_environment

QUESTIONS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "barrier")


def rank_too_early():
    place = tuple(int(os.environ[name]) for name in ("HORON_RANK", "HORON_SIZE"))
    for _ in range(2):
        assert not horon.is_initialized()
        for name in QUESTIONS:
            with pytest.raises(ValueError, match=r"has not been initialized; use hvd.init\(\)"):
                getattr(horon, name)()
        for call in (horon.allreduce, horon.allgather, horon.allgather_object):
            with pytest.raises(ValueError, match="initialized"):
                call(1.0)
            with pytest.raises(horon.HorovodInternalError, match="initialized"):
                call(1.0)
        with pytest.raises(ValueError, match="initialized"):
            horon.broadcast_object(1)
        horon.shutdown()  # does nothing
        horon.init()
        horon.init()  # nor does this
        assert horon.is_initialized() and (horon.rank(), horon.size()) == place
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


SETS = ([0, 1], [1])


def rank_inits_again():
    """-> what each second init() that asks for something else is told"""
    first = {"comm": [1, 0, 2], "process_sets": SETS, "settings": {"FUSION_BYTES": "1m"}}
    horon.init(**first)
    horon.init(**first)
    horon.init(settings={"HORON_FUSION_BYTES": "1m"})
    horon.init()
    horon.init(
        rank=horon.rank(), size=3, process_sets="dynamic", settings={"FUSION_BYTES": 1 << 20}
    )
    horon.remove_process_set(horon.process_set_by_id(2))
    horon.init(process_sets=[[1, 0], [1]], settings={"NET_EAGER_BYTES": 65536})
    texts = []
    for other in (
        {"rank": 5, "size": 6},
        {"comm": [0, 1, 2]},
        {"settings": {"FUSION_BYTES": "nonsense"}},
        {"settings": {"NO_SUCH": 1}},
        {"process_sets": [[0, 2]]},
    ):
        with pytest.raises(ValueError) as caught:
            horon.init(**other)
        texts.append(str(caught.value))
    assert horon.allreduce(1.0, op=horon.Sum) == 3
    horon.shutdown()
    horon.init()  # another job, and nothing of the first
    horon.init(comm=range(3), rank=horon.rank())
    with pytest.raises(ValueError, match="FUSION_BYTES is '67108864', not '1m'"):
        horon.init(settings={"FUSION_BYTES": "1m"})
    return texts


def test_second_init_with_other_arguments_names_what_differs(run_ranks):
    for rank, texts in zip((1, 0, 2), run_ranks(3, rank_inits_again), strict=True):
        assert all("initialized" in text for text in texts if "no setting" not in text), texts
        place, ranks, size, unknown, sets = texts
        assert f"rank is {rank}, not 5; size is 3, not 6" in place
        assert "RANKS is '1,0,2', not '0-2'" in ranks
        assert "FUSION_BYTES is '1048576', not 'nonsense'" in size
        assert "no setting is called 'NO_SUCH'" in unknown
        assert "no process set has the ranks [0, 2]" in sets
