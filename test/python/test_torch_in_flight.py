# SPDX-License-Identifier: Apache-2.0
"""What an operation on its way uses stays where it is, whatever becomes of the tensor."""

import gc
import sys
import threading
import weakref

import pytest
from conftest import LIMIT_SECONDS

torch = pytest.importorskip("torch")

import horon  # noqa: E402
import horon.torch as hvd  # noqa: E402
from horon import _horon, _world  # noqa: E402


def rank_given_other_elements(grouped):
    """What is in flight stays where it is, though the tensor be given other elements."""
    import numpy

    hvd.init()
    memory = numpy.ones(4, "f")
    reference = weakref.ref(memory)
    tensor = torch.from_numpy(memory)
    if hvd.rank() == 1:
        hvd.barrier()
    if grouped:
        handle = hvd.grouped_allreduce_async_([tensor], name="t", op=hvd.Sum)
    else:
        handle = hvd.allreduce_async_(tensor, name="t", op=hvd.Sum)
    del memory
    if hvd.rank() == 0:
        tensor.data = torch.zeros(2)
        assert reference() is not None
        hvd.barrier()
    handle.wait()
    if hvd.rank() == 0:
        assert tensor.tolist() == [0.0, 0.0]
        del handle
        assert reference() is None
    else:
        assert tensor.tolist() == [2.0] * 4


@pytest.mark.parametrize("grouped", [False, True])
def test_a_tensor_given_other_elements_in_flight(run_ranks, grouped):
    pytest.importorskip("numpy")
    run_ranks(2, rank_given_other_elements, grouped)


def rank_given_other_elements_meanwhile():
    """Another thread gives them just when the tensor is staged."""
    numpy = pytest.importorskip("numpy")
    from horon.torch import staging

    def give(tensor):
        tensor.data = torch.zeros(4)

    hvd.init()
    memory = numpy.ones(4, "f")
    tensor = torch.from_numpy(memory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "increment_version", give)
        handle = hvd.grouped_allreduce_async_([tensor], name="t", op=hvd.Sum)
    (result,) = handle.wait()
    assert result is tensor and tensor.tolist() == [0.0] * 4
    assert memory.tolist() == [2.0] * 4  # where it was, which is what is kept


def test_a_tensor_given_other_elements_as_it_begins(run_ranks):
    run_ranks(2, rank_given_other_elements_meanwhile)


def tensors_alive():
    """Those that may be in flight: another one is staged through a copy."""
    tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    return {id(one): one for one in tensors if one.is_contiguous()}


def rank_collected_in_flight(way):
    """What nobody holds but a cycle, in which the handle is, the collector clears."""
    hvd.init()
    source = torch.ones(8, 8)
    begin = {
        "allreduce": lambda: hvd.allreduce_async(source, name="t", op=hvd.Sum),
        "grouped": lambda: hvd.grouped_allreduce_async([source], name="t", op=hvd.Sum),
        "broadcast": lambda: hvd.broadcast_async(source, 1, name="t"),
        "reduce": lambda: hvd.reduce_async(source, 0, name="t", op=hvd.Sum),
        "strided": lambda: hvd.allreduce_async(source[:, ::2], name="t", op=hvd.Sum),
        "dropped": lambda: hvd.allreduce_async(source, name="t", op=hvd.Sum),
    }[way]
    if hvd.rank() == 1:
        hvd.barrier()
        begin().wait()
    else:
        gc.collect()
        before = tensors_alive()
        handle = begin()
        made = [weakref.ref(one) for key, one in tensors_alive().items() if key not in before]
        if way != "dropped":
            handle = [handle]
            handle.append(handle)
        del handle
        gc.collect()
        assert made and all(reference() is not None for reference in made)
        hvd.barrier()
    hvd.barrier()


@pytest.mark.parametrize(
    "way", ["allreduce", "grouped", "broadcast", "reduce", "strided", "dropped"]
)
def test_an_output_in_flight_is_not_collected(run_ranks, way):
    run_ranks(2, rank_collected_in_flight, way)


def rank_conjugates():
    """horon itself knows no torch: what DLPack cannot say of a tensor, torch refuses."""
    horon.init()
    turned = torch.tensor([1 + 2j]).conj()
    with pytest.raises(BufferError, match="conj"):
        horon.broadcast(turned, 0, name="turned")
    negative = turned.imag
    for call in (
        lambda: horon.allgather(negative),
        lambda: horon.allreduce_(negative),
        lambda: horon.prepare("allreduce", negative, torch.zeros(1), name="a"),
        lambda: horon.prepare("allreduce", torch.zeros(1), negative, name="a"),
    ):
        with pytest.raises(ValueError, match=r"resolve_neg\(\)"):
            call()
    result = horon.broadcast(turned.resolve_conj(), 0, name="turned")
    return torch.from_dlpack(result).tolist()


def test_a_tensor_that_reads_otherwise_than_it_lies_is_refused(run_ranks):
    assert run_ranks(2, rank_conjugates) == [[1 - 2j]] * 2


def rank_moves_while_waited_for():
    hvd.init()
    context = _world.context()
    operation = context.operation(_horon.ALLREDUCE, "moving", hvd.Sum)
    first, second = torch.ones(4), torch.ones(4)
    if hvd.rank() > 0:
        context.submit(_horon.BARRIER, "go", None, None).wait()
        operation.start_on(first)
        operation.wait()
        operation.start_on(second)
        operation.wait()
        return
    entered = threading.Event()

    def wait():
        entered.set()
        operation.wait()

    waiter = threading.Thread(target=wait)
    # A thread keeps the interpreter until it waits: the other one until it is inside wait(), and
    # this one from then on, so that the other does not get out
    interval = sys.getswitchinterval()
    sys.setswitchinterval(LIMIT_SECONDS)
    operation.start_on(first)
    waiter.start()
    entered.wait()
    go = context.submit(_horon.BARRIER, "go", None, None)
    while not operation.test():
        pass
    with pytest.raises(ValueError, match="a thread waits for this request"):
        operation.start_on(second)
    sys.setswitchinterval(interval)
    waiter.join()
    go.wait()
    assert operation.start_on(second)
    operation.wait()
    assert (first == 2).all() and (second == 2).all()


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no exchange API"
)
def test_operation_does_not_move_while_a_thread_waits(run_ranks):
    run_ranks(2, rank_moves_while_waited_for)
