# SPDX-License-Identifier: Apache-2.0
"""PlainTensors of the extension: what it declines, and what it does if the framework raises."""

import sys
import threading
import weakref

import horon
import pytest
from horon import _horon

torch = pytest.importorskip("torch")


LARGE = 1 << 24  # so large that a late look at it, once it is freed, ends the process
LIMIT = 1000  # operations that another one may take to end


class Subclass(torch.Tensor):
    pass


class Sulks(Exception):
    pass


def sulk(_):
    raise Sulks


def plain_tensors(**other):
    hooks = {
        "types": (torch.Tensor,),
        "is_marked": torch.Tensor.is_neg,
        "memory_of": torch.Tensor.untyped_storage,
        "make_room": torch.empty_like,
        "changed": lambda _: None,
    }
    return _horon.PlainTensors(**{**hooks, **other})


def begin(plain, tensor, verb=_horon.ALLREDUCE, name="a", numbers=(_horon.SUM, 0, 1.0, 1.0)):
    return plain.begin(horon._world.context(), verb, name, tensor, *numbers)


def rank_declines():
    horon.init()
    plain, ones = plain_tensors(), torch.ones(4)
    others = (
        [1.0],
        ones.as_subclass(Subclass),
        ones.to_sparse(),
        ones.to("meta"),
        torch.ones(4, 4).t(),
        torch.zeros(2, dtype=torch.complex64),
        torch.view_as_complex(torch.ones(3, 2)).conj().imag,
    )
    for tensor in others:
        assert begin(plain, tensor) is None
    assert begin(plain, ones, verb=_horon.ALLGATHER) is None
    assert begin(plain, ones, verb=77) is None
    for name in (7, "a\0b", "\ud800"):
        assert begin(plain, ones, name=name) is None
    for numbers in ((_horon.ADASUM, 0, 1.0, 1.0), (-1, 0, 1.0, 1.0), (0, "root", 1.0, 1.0)):
        assert begin(plain, ones, numbers=numbers) is None
    for room in (lambda _: torch.ones(3), lambda tensor: tensor.double(), lambda _: None):
        assert begin(plain_tensors(make_room=room), ones) is None
    with pytest.raises(TypeError, match=r"neither a horon\.Context nor a horon\.Team"):
        plain.begin(None, _horon.ALLREDUCE, "a", ones, 0, 0, 1.0, 1.0)
    with pytest.raises(TypeError, match="takes 8 arguments"):
        plain.begin(horon._world.context())
    assert begin(plain, ones).wait().tolist() == [horon.size()] * 4  # no name is in use


def test_what_is_declined_has_not_begun(run_ranks):
    run_ranks(2, rank_declines)


def rank_raises():
    horon.init()
    assert begin(plain_tensors(memory_of=sulk), torch.ones(4)) is None  # a kind that has none
    for hook in ("is_marked", "make_room"):
        with pytest.raises(Sulks):
            begin(plain_tensors(**{hook: sulk}), torch.ones(4))
    tensor = torch.ones(4)
    in_place = plain_tensors(make_room=None)
    with pytest.raises(Sulks):
        begin(plain_tensors(make_room=None, changed=sulk), tensor)
    for _ in range(LIMIT):  # it goes on, and nobody holds its handle
        assert begin(in_place, torch.ones(1), name="b").wait().tolist() == [horon.size()]
        if tensor.tolist() == [horon.size()] * 4:
            break
    assert tensor.tolist() == [horon.size()] * 4


def test_what_the_framework_raises_comes_through(run_ranks):
    run_ranks(2, rank_raises)


def rank_given_other_elements(hook, in_place):
    horon.init()

    def give(tensor):
        tensor.data = torch.zeros(LARGE)  # as another thread may, where torch lets go of the GIL
        return False if hook == "is_marked" else torch.empty(LARGE)

    hooks = ({"make_room": None} if in_place else {}) | {hook: give}
    tensor = torch.ones(LARGE)
    result = begin(plain_tensors(**hooks), tensor).wait()
    if not in_place:
        assert (result == horon.size()).all()
    assert (tensor == 0).all()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("hook", "in_place"), [("is_marked", True), ("is_marked", False), ("make_room", False)]
)
def test_elements_stay_where_they_were_seen(run_ranks, n, hook, in_place):
    run_ranks(n, rank_given_other_elements, hook, in_place)


def rank_closed_meanwhile():
    horon.init()

    def leave(tensor):
        horon.shutdown()
        return tensor.untyped_storage()

    with pytest.raises(horon.HorovodInternalError, match="horon has been shut down"):
        begin(plain_tensors(memory_of=leave), torch.ones(4))


def test_the_framework_may_close_the_context(run_ranks):
    run_ranks(1, rank_closed_meanwhile)


class Kept:
    """What an operation keeps alive."""


def begin_to_wait(operation):
    waits = threading.Event()
    waiter = threading.Thread(target=lambda: (waits.set(), operation.wait()))
    waiter.start()
    waits.wait()
    return waiter


def rank_starts_again_before_a_waiter_has_looked():
    """A thread hears that a run has ended, and needs the interpreter's lock to see to what the run
    has kept. Before it gets that another thread begins the next run."""
    horon.init()
    context = horon._world.context()
    operation = context.operation(_horon.ALLREDUCE, "again", _horon.SUM)
    tensor = torch.ones(1000)
    sys.setswitchinterval(5)  # seconds: nobody takes the lock from this thread
    for _ in range(20):
        if horon.rank() > 0:
            for _ in range(2):
                horon.barrier()
                operation.start_on(tensor)
                operation.wait()
            continue
        operation.start_on(tensor, None, Kept())
        waiter = begin_to_wait(operation)
        horon.barrier()
        while not operation.test():
            pass
        kept = Kept()
        seen = weakref.ref(kept)
        operation.start_on(tensor, None, kept)
        del kept
        waiter.join(0.05)  # it looks meanwhile, mostly
        assert seen() is not None, "the other rank has not begun it"
        horon.barrier()
        operation.wait()
        waiter.join()


def test_a_waiter_takes_nothing_from_the_next_run(run_ranks):
    run_ranks(2, rank_starts_again_before_a_waiter_has_looked)
