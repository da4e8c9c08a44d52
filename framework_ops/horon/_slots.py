# SPDX-License-Identifier: Apache-2.0
"""The gradients' places in an exchange (_gradients.py), and how one is on its way.

A framework derives its slot from Slot and says how a gradient is sent. It has two ways to do so: a
prepared operation, which starts at once where the gradient lies in the next step as it lay in the
last, and staging, as of any tensor.

Hooks know their slot weakly, and a slot its exchange and its group: without a cycle, all of it goes
with the exchange, at once.
"""

import weakref

from horon._names import member_names, operation_name
from horon._verbs import ALLREDUCE
from horon.exceptions import HoronInternalError


class Slot:
    """One gradient's place in the exchange. A framework's class says what the methods do."""

    __slots__ = (
        "__weakref__",
        "begun",
        "delay",
        "exchange",
        "group",
        "handle",
        "name",
        "operation",
        "started",
        "team",
        "was_wanted",
        "wire_name",
    )

    def __init__(self, exchange, name):
        self.exchange = weakref.ref(exchange)
        self.name = name
        self.wire_name = operation_name("allreduce", name, None)
        self.operation = None  # the prepared one, ...
        self.team = None  # ... and what it belongs to
        self.group = None  # a weak proxy, if it is in one
        self.delay = exchange.passes  # backward passes until the gradient goes on its way
        self.started = False
        self.was_wanted = False  # when the first gradient of this step was computed, or its own
        self.begun = []  # requests of this step
        self.handle = None  # of them, if there is something to do with what comes of them

    def send(self):
        """Begins the exchange of the gradient in `begun`; raises, with nothing begun, if it cannot.

        `handle` is there before anything begins.
        """
        raise NotImplementedError

    def send_nothing(self):
        """As send(), with a gradient of zeros that nobody looks at, for the other ranks' sake."""
        raise NotImplementedError

    def start_prepared(self, exchange, gradient, keep):
        """Begins the allreduce of a gradient where it lies. keep: what keeps its elements there.

        -> False, with nothing begun, if the extension does not take this tensor as it is
        """
        if self.team is not exchange.team:  # the slot is new, or horon was initialised again
            how = (exchange.how[0], 0, *exchange.how[1:])
            self.operation = exchange.team.operation(ALLREDUCE.code, self.wire_name, *how)
            self.team = exchange.team
        return self.operation.start_on(gradient, self.begun, keep)

    def stage(self, verbs, tensor):
        """-> the Handle of the allreduce of what stands for the gradient, which has not begun"""
        exchange = self.exchange()
        op, *scales = exchange.how
        return verbs.stage(exchange.team, ALLREDUCE, self.wire_name, tensor, op, 0, *scales)

    def is_wanted(self):
        """Whether it takes part in a step though no pass here has computed it."""
        raise NotImplementedError

    def takes_part(self):
        """Whether it is sent in this step. What is wanted no more since the step began still is:
        other ranks may have sent theirs, and a gradient may be there that all have to apply."""
        return self.was_wanted or self.is_wanted()

    def is_on_its_way(self):
        return bool(self.begun or (self.group is not None and self.group.begun))

    def has_changed(self):
        """Whether the gradient that was sent has been written or replaced since."""
        raise NotImplementedError

    def refused(self):
        """-> why no rank can take what has ended well, or None; all ranks find the same"""
        try:
            if self.handle is not None:
                self.handle.raise_refused()
        except HoronInternalError as error:
            error.args = (f"the gradient of {self.name}: {error}", *error.args[1:])
            return error
        return None

    def finish(self, result):
        """Takes what came of the handle; the second time, after an interruption, does no harm."""
        raise NotImplementedError

    def forget(self):
        """The step is over."""
        self.handle = None
        self.begun.clear()
        self.started = self.was_wanted = False

    def fire(self):
        """One more backward pass has computed this gradient."""
        exchange = self.exchange()
        if exchange is None:  # another thread has just dropped the exchange
            return
        try:
            exchange.on_fired(self)
        except Exception as error:
            exchange.note_failure(error, self)
            raise


class Group:
    """Gradients that are sent together, once the last of them is there; the exchange owns it."""

    def __init__(self, slots):
        self.slots = slots
        self.forget()

    def stage(self, exchange, verbs, tensors):
        """-> the Handle of the allreduces of what stands for the gradients"""
        op, *scales = exchange.how
        names = self.wire_names()
        return verbs.stage_group(exchange.team, ALLREDUCE, names, tensors, op, 0, *scales)

    def wire_names(self):
        return member_names(self.slots[0].wire_name, len(self.slots))

    def forget(self):
        self.ready = set()
        self.begun = []
        self.handle = None


def about_gradient(error, slot):
    """-> the error, whose text names the gradient of the slot"""
    error.gradient_name = slot.name
    return error
