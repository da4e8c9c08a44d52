# SPDX-License-Identifier: Apache-2.0
"""An optimizer's steps, on the exchange of arrays of test_gradients.py."""

import pytest

numpy = pytest.importorskip("numpy")

import horon  # noqa: E402
from horon import _world  # noqa: E402
from horon._steps import Steps  # noqa: E402
from test_gradients import ArrayExchange, ArraySlot  # noqa: E402


class Optimizer:
    """Adds the mean of the gradients to its only parameter, 0 at first."""

    def __init__(self):
        self.value = numpy.zeros(3)
        exchange = ArrayExchange(1, _world.global_process_set)
        self.slot = ArraySlot(exchange, "a")
        exchange.add("a", self.slot)
        self.steps = Steps(exchange, horon.size() > 1)

    def backward(self, gradient):
        self.slot.mean = self.slot.gradient = numpy.full(3, float(gradient))
        if self.steps.exchange is not None:
            self.slot.fire()

    def step(self, update=None):
        self.steps.check_update()
        self.steps.synchronize_for_step(self.steps.synchronize)
        return self.steps.update(update or self.add)

    def add(self):
        self.value = self.value + self.slot.mean
        return self.value.tolist()


def interrupt():
    raise KeyboardInterrupt


def fail():
    raise ZeroDivisionError


def rank_steps():
    horon.init()
    rank, size = horon.rank(), horon.size()
    mean = (size - 1) / 2
    optimizer = Optimizer()
    steps = optimizer.steps
    optimizer.backward(rank)
    assert steps.has_fired() == (size > 1)
    assert optimizer.step() == [mean] * 3

    optimizer.backward(rank)
    steps.synchronize()
    with steps.skip_synchronize():
        assert optimizer.step() == [2 * mean] * 3
    optimizer.backward(rank)
    steps.synchronize()
    with pytest.warns(UserWarning, match="gradients are not exchanged again"):
        assert optimizer.step() == [3 * mean] * 3
    return optimizer


def rank_exchanges_once():
    rank_steps()


def rank_ends_early():
    optimizer = rank_steps()
    rank, size = horon.rank(), horon.size()
    mean, steps = (size - 1) / 2, optimizer.steps
    optimizer.backward(rank)
    with steps.skip_synchronize(), pytest.raises(RuntimeError, match="that are not exchanged"):
        optimizer.step()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(fail)
    assert optimizer.step() == [4 * mean] * 3  # with the gradients that are there
    optimizer.backward(rank)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(interrupt)
    with pytest.raises(RuntimeError, match="interrupted while it updated parameters"):
        optimizer.step()
    optimizer.backward(rank)
    assert optimizer.step() == [5 * mean] * 3
    optimizer.backward(rank)
    steps.forget("another state")
    assert not steps.has_fired()
    optimizer.backward(rank)
    steps.give_up(ValueError("of no use"))
    with pytest.raises(RuntimeError, match="of no use"):
        optimizer.step()
    optimizer.backward(rank)
    assert optimizer.step() == [6 * mean] * 3


def rank_is_alone_first():
    horon.init(rank=0, size=1)
    optimizer = Optimizer()
    optimizer.backward(1)
    assert optimizer.step() == [1] * 3
    horon.shutdown()
    assert optimizer.step() == [2] * 3
    Steps().synchronize()
    horon.init()
    with pytest.raises(RuntimeError, match="wrapped when there was no other rank"):
        optimizer.step()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_steps_exchange_gradients_once(run_ranks, n):
    run_ranks(n, rank_exchanges_once)


def test_steps_know_what_did_not_end(run_ranks):
    run_ranks(2, rank_ends_early)


def test_steps_of_an_optimizer_that_was_alone(run_ranks):
    run_ranks(2, rank_is_alone_first)
