# SPDX-License-Identifier: Apache-2.0
"""The gradients' way through horon, step after step, whatever framework computes them.

Each gradient has a slot. When backward has computed it, its slot fires; after as many passes as
wanted, it sends the gradient on its way while backward goes on. synchronize() sends what no pass
here has computed (other ranks' may have), and waits for all.

A step succeeds on all ranks or on none. What goes wrong on one rank alone (a gradient that cannot
be sent, or that was changed while it was on its way) is told by the *verdict*, one number that all
ranks reduce beside the gradients: with it every rank raises, and names the rank and the cause. A
rank that fails still sends something under every name, so that no other waits for it and none takes
its next step's gradient for this one's.

A framework derives its slot from Slot and says how a gradient is sent; horon.torch does so. Hooks
know their slot weakly, and a slot its exchange and its group: without a cycle, all of it goes with
the exchange, at once.
"""

import weakref
from array import array
from contextlib import suppress

from horon import _horon, _world
from horon._names import fit, part_name
from horon._objects import CAUSE_CHARACTERS_MAX, begin_allgather_texts, texts_of
from horon.exceptions import HoronInternalError, text_of


class Slot:
    """One gradient's place in the exchange. A framework's class says what the methods do."""

    __slots__ = ("__weakref__", "delay", "exchange", "group", "handle", "name", "started")

    def __init__(self, exchange, name):
        self.exchange = weakref.ref(exchange)
        self.name = name
        self.group = None  # a weak proxy, if it is in one
        self.delay = exchange.passes  # backward passes until the gradient goes on its way
        self.started = False
        self.handle = None  # of what send() or send_nothing() has begun

    def send(self):
        """Begins the exchange of the gradient; raises, with nothing begun, if that cannot be."""
        raise NotImplementedError

    def send_nothing(self):
        """Takes part with a gradient of zeros that nobody looks at, for the other ranks' sake."""
        raise NotImplementedError

    def is_wanted(self):
        """Whether it takes part in a step though no pass here has computed it."""
        raise NotImplementedError

    def has_changed(self):
        """Whether the gradient that was sent has been written or replaced since."""
        raise NotImplementedError

    def finish(self, result):
        """Takes what came of it."""
        raise NotImplementedError

    def forget(self):
        """The step is over."""
        self.started = False
        self.handle = None

    def fire(self):
        """One more backward pass has computed this gradient."""
        exchange = self.exchange()
        if exchange is None:  # another thread has just dropped the exchange
            return
        try:
            exchange.on_fired(self)
        except Exception as error:
            _explain(error)
            exchange.note_failure(error)
            raise


class Group:
    """Gradients that are sent together, once the last of them is there; the exchange owns it."""

    def __init__(self, slots):
        self.slots = slots
        self.ready = 0
        self.handle = None


class _Verdict:
    """Whether a rank has failed in this step: one number, the largest of the ranks'."""

    def __init__(self, context, name):
        self.context = context
        self.name = name
        self.number = array("q", [0])
        self.request = context.prepare(_horon.ALLREDUCE, name, self.number, self.number, _horon.MAX)

    def start(self, failed):
        self.number[0] = failed
        self.request.start()

    def wait(self):
        """-> whether any rank has failed"""
        self.request.wait()
        return bool(self.number[0])


class GradientExchange:
    def __init__(self, passes):
        self.passes = passes
        self.slots = {}  # by the framework's key of the parameter
        self.groups = []
        self.fired = []  # slots whose gradient was computed since the last step
        self.failure = None  # of this rank in this step: class and arguments of what to raise
        self.context = None  # that this step began in
        self.verdict = None

    # ---- Setting up ----

    def add(self, key, slot):
        self.slots[key] = slot
        self.verdict = None  # its name changes

    def set_groups(self, lists):
        """Groups the slots: lists of them. `send_group` of the framework sends one."""
        self.groups = [Group(slots) for slots in lists if slots]
        for group in self.groups:
            for slot in group.slots:
                slot.group = weakref.proxy(group)

    def set_passes(self, passes):
        self.passes = passes
        for slot in self.slots.values():
            slot.delay = passes

    def send_group(self, group, nothing):
        """As Slot.send(), or send_nothing(), for all slots of a group: returns their handle."""
        raise NotImplementedError

    # ---- Starting ----

    def on_fired(self, slot):
        if slot.delay <= 0 or slot.started:
            if self.failure is not None:
                raise self.failed()
            raise AssertionError(
                f"The gradient of {slot.name} was computed more than backward_passes_per_step "
                "times before step(). Increase backward_passes_per_step to accumulate gradients "
                "locally."
            )
        if slot.delay == self.passes:
            self.fired.append(slot)
        slot.delay -= 1
        if slot.delay == 0:
            self.start(slot)

    def start(self, slot):
        """The gradient is complete on this rank."""
        if self.context is None:
            self.context = _world.context()
        group = slot.group
        if group is None:
            slot.send()
        elif group.ready + 1 == len(group.slots):
            group.handle = self.send_group(group, nothing=False)
        if group is not None:
            group.ready += 1
        slot.started = True  # now, and not if it failed

    def start_missing(self):
        for slot in self.slots.values():
            if not slot.started and (slot.group is not None or slot.is_wanted()):
                self.start(slot)

    def start_nothing(self):
        """What is not on its way yet goes as zeros: the other ranks wait for it."""
        for slot in self.slots.values():
            if not slot.started and slot.group is None and slot.is_wanted():
                with suppress(Exception):  # the name is in use on this rank
                    slot.send_nothing()
                    slot.started = True
        for group in self.groups:
            if group.handle is None:
                with suppress(Exception):
                    group.handle = self.send_group(group, nothing=True)

    # ---- Ending ----

    def synchronize(self):
        """Sends what is missing and waits; the slots then have finished with what came of it."""
        if not self.slots:
            return
        if self.context is None:
            self.context = _world.context()
        try:
            self.complete()
            self.agree()
            self.wait()
        except Exception as error:
            _explain(error)
            self.drain()
            self.reset()
            raise
        self.reset()

    def complete(self):
        """What the other ranks wait for is on its way after it, if only as zeros."""
        try:
            if self.failure is None:
                self.check_unchanged()
                self.start_missing()
        except Exception as error:
            _explain(error)
            self.note_failure(error)
        if self.failure is not None:
            self.start_nothing()

    def check_unchanged(self):
        for slot in self.slots.values():
            if slot.started and slot.has_changed():
                raise _changed(slot, "changed")

    def refuse_change(self, how):
        """Ends the step, as synchronize() does when it finds that a gradient was changed."""
        if self.failure is None:
            self.note_failure(_changed(self.fired[0], how))
        self.synchronize()

    def agree(self):
        """Raises on every rank if the step of one has failed."""
        if self.verdict is None or self.verdict.context is not self.context:
            name = min(slot.name for slot in self.slots.values())  # ranks may have other orders
            self.verdict = _Verdict(self.context, fit(f"gradients.{name}"))
        self.verdict.start(self.failure is not None)
        if not self.verdict.wait():
            return
        own = self.failure[1][:CAUSE_CHARACTERS_MAX] if self.failure else ""
        begun = []
        begin_allgather_texts(self.context, part_name(self.verdict.name, "causes"), own, begun)
        causes = texts_of(begun[0])
        if self.failure is not None:
            raise self.failed()
        rank = next(rank for rank, cause in enumerate(causes) if cause)
        raise HoronInternalError(
            f"the exchange of this step's gradients failed on rank {rank}: {causes[rank]}",
            _horon.STATUSES["ERR_CANCELLED"],
        )

    def wait(self):
        slots = [slot for slot in self.slots.values() if slot.handle is not None]
        _horon.wait_all([slot.handle for slot in slots if type(slot.handle) is _horon.Request])
        for slot in slots:
            if type(slot.handle) is not _horon.Request:
                slot.finish(slot.handle.wait())
        for group in self.groups:
            for slot, result in zip(group.slots, group.handle.wait(), strict=True):
                slot.finish(result)

    def drain(self):
        """Nothing is in flight when it returns.

        What has begun is finished, not withdrawn: a rank that is late, or steps, has no part in the
        withdrawal, and would take the gradient that this rank sends next for this step's.
        """
        for holder in (*self.slots.values(), *self.groups):
            if holder.handle is not None:
                with suppress(HoronInternalError):
                    holder.handle.wait()

    def reset(self):
        """Forgets this step."""
        for slot in self.slots.values():
            slot.delay = self.passes
            slot.forget()
        for group in self.groups:
            group.ready = 0
            group.handle = None
        self.fired.clear()
        self.failure = None
        self.context = None

    # ---- Giving up ----

    def has_begun(self):
        """Whether other ranks may wait for this one in this step."""
        return self.failure is not None or any(slot.started for slot in self.slots.values())

    def abandon(self):
        """As reset(), also in the middle of a step.

        Other ranks may step: they get what this one has computed, or its failure, if it has failed.
        """
        if self.has_begun() and self.context is not None and self.context is _world._context:
            self.complete()
            with suppress(HoronInternalError, RuntimeError):
                self.agree()
            self.drain()
        self.reset()

    def note_failure(self, error):
        """A hook raises it; were it caught, a step would take gradients that nobody exchanged.

        The error itself leads to the frames of the hook, and would keep all of it alive.
        """
        if isinstance(error, HoronInternalError):
            self.failure = (HoronInternalError, str(error), error.status)
        else:
            self.failure = (RuntimeError, text_of(error))

    def failed(self):
        """-> what to raise because of it, anew"""
        kind, text, *more = self.failure
        return kind(f"the exchange of this step's gradients failed: {text}", *more)


def _changed(slot, how):
    return RuntimeError(
        f"the gradient of {slot.name} was {how} after backward, while it was on its way to the "
        "other ranks: call optimizer.synchronize() before gradients are clipped, unscaled or "
        "cleared, and step() in optimizer.skip_synchronize()"
    )


def _explain(error):
    """Adds to its text what only the exchange knows."""
    status = getattr(error, "status", 0)
    if status == _horon.STATUSES["ERR_DUPLICATE"]:
        more = (
            "another optimizer, or a step that was not finished, uses the name. Give each "
            "optimizer names of its own, such as named_parameters="
            "[(f'generator.{name}', p) for name, p in generator.named_parameters()]"
        )
    elif status == _horon.STATUSES["ERR_MISMATCH"]:
        more = (
            "a dense gradient goes by allreduce, a sparse one by allgather, and a rank whose "
            "passes have never used the parameter takes its gradient for dense. Use it on every "
            "rank in the first step, or pass sparse_as_dense=True"
        )
    else:
        return
    error.args = (f"{error}: {more}", *error.args[1:])
