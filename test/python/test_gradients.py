# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients for a framework of arrays that nobody changes, as README.md tells."""

import pytest

numpy = pytest.importorskip("numpy")

import horon  # noqa: E402
from horon import _horon, _world  # noqa: E402
from horon._arrays import _integers, _stage  # noqa: E402
from horon._gradients import GradientExchange  # noqa: E402
from horon._slots import Slot  # noqa: E402
from horon._verbs import Verbs  # noqa: E402
from horon.exceptions import about_of  # noqa: E402

verbs = Verbs(_stage, _integers)


class ArraySlot(Slot):
    __slots__ = ("gradient", "mean")

    def begin(self, gradient):
        self.handle = self.stage(verbs, gradient)
        self.handle.begin(self.begun)

    def send(self):
        if self.gradient is None:
            raise ValueError("no \x1bgradient")
        # as a framework's tensors go that have DLPack's exchange API
        assert not self.start_prepared(self.exchange(), self.gradient, self.gradient)
        assert not self.begun
        self.begin(self.gradient)

    def send_nothing(self):
        self.begin(numpy.zeros(3))

    def is_wanted(self):
        return True

    def has_changed(self):
        return False

    def finish(self, result):
        self.mean = result


class ArrayExchange(GradientExchange):
    def send_group(self, group, nothing):
        gradients = [numpy.zeros(3) if nothing else slot.gradient for slot in group.slots]
        group.handle = group.stage(self, verbs, gradients)
        group.handle.begin(group.begun)


def rank_steps(passes, groups):
    horon.init()
    rank, size = horon.rank(), horon.size()
    exchange = ArrayExchange(passes, _world.global_process_set)
    for name in "abc":
        exchange.add(name, ArraySlot(exchange, name))
    if groups:
        exchange.split_into_groups(groups)
    for step in range(3):
        for _ in range(passes):
            for i, slot in enumerate(exchange.slots.values()):
                slot.gradient = numpy.full(3, float(rank + i + step))
                slot.fire()
        exchange.synchronize()
        for i, slot in enumerate(exchange.slots.values()):
            assert slot.mean.tolist() == [(size - 1) / 2 + i + step] * 3
    if groups:
        return
    for slot in exchange.slots.values():
        slot.gradient = None if rank == 0 else numpy.ones(3)
    with pytest.raises(
        RuntimeError, match=r"failed( on rank 0)?: the gradient of a: no .gradient"
    ) as caught:
        exchange.synchronize()
    assert ("?" in str(caught.value)) == (rank != 0)  # no control of another rank's
    assert isinstance(caught.value, horon.HoronInternalError) == (rank != 0)
    host = _world.context().hosts[0]
    about = (_horon.STATUSES["ERR_CANCELLED"], "CANCELLED", 0, None, host, "allreduce.a")
    assert about_of(caught.value) == about


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("groups", [0, 2])
def test_gradients_of_another_framework(run_ranks, n, passes, groups):
    run_ranks(n, rank_steps, passes, groups)
