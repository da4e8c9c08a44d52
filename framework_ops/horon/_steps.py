# SPDX-License-Identifier: Apache-2.0
"""Where an optimizer is between two updates of its parameters, whatever framework it is of.

A step exchanges the gradients, unless synchronize() did before, and updates the parameters with
them. What of it has happened is known here, also after an exception in the middle: gradients are
exchanged once, and an update of which nobody knows how far it came is not built upon.

An optimizer has one of these, and its step() calls synchronize_for_step() and update(). Nothing
here refers to the optimizer, so that it goes as soon as its last user drops it.
"""

from contextlib import contextmanager, suppress

from horon._parts import CLEARED, STEPPED
from horon._world import ranks_beside, warn


class Steps:
    """One optimizer's."""

    def __init__(self, options=None, others=False):
        """options: the exchange that its user asked for, which a copy of an optimizer has not;
        others: there are other ranks, so that it is used."""
        self.options = options
        self.exchange = options if others else None
        self.exchanged_by = None  # what has exchanged the gradients that are there: a method's name
        self.cleared = False  # those that synchronize() gave, and nothing was exchanged since
        self.updating = False  # the user's optimizer has begun to update parameters, and not ended
        self.should_synchronize = True

    def has_fired(self):
        """Whether there are gradients that are not exchanged."""
        return self.exchange is not None and bool(self.exchange.fired)

    # ---- Exchanging ----

    def synchronize(self):
        if self.exchange is None:
            self.check_alone()
        else:
            self.exchange.synchronize()
        self.exchanged_by = "synchronize"
        self.cleared = False

    def check_alone(self):
        with suppress(ValueError):  # without a job, or the process set, it is alone
            if self.options is not None and ranks_beside(self.options.process_set):
                raise RuntimeError(
                    "this optimizer was wrapped when there was no other rank to exchange gradients "
                    "with, and now there is: wrap the optimizer in it in a new DistributedOptimizer"
                )

    @contextmanager
    def skip_synchronize(self):
        """In it, step() takes the gradients as they are: synchronize() was called before."""
        before, self.should_synchronize = self.should_synchronize, False
        try:
            yield
        finally:
            self.should_synchronize = before

    def synchronize_for_step(self, synchronize):
        """synchronize: the optimizer's, which is called unless the gradients are exchanged."""
        fired = self.has_fired()
        if not self.should_synchronize:
            if fired:
                raise RuntimeError(
                    "optimizer.step() was called in optimizer.skip_synchronize() with gradients "
                    "that are not exchanged: call optimizer.synchronize() before"
                )
            return
        if self.exchanged_by is None or fired:
            if self.cleared and not fired:
                self.exchange.made_of_last = CLEARED
            synchronize()
            self.exchanged_by = "step"
        elif self.exchanged_by == "synchronize":
            warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(); the gradients are not exchanged again."
            )

    def forget_gradients(self):
        """They are cleared, also those that an exchange has given all ranks."""
        if self.exchange is not None and self.exchanged_by == "synchronize":
            self.cleared = True
        self.exchanged_by = None

    # ---- Updating ----

    def check_update(self):
        """Nobody knows which parameters an update that was interrupted has changed."""
        if self.updating:
            self.updating = False
            if self.exchange is not None:
                why = (
                    "an earlier optimizer.step() was interrupted while it updated parameters, so "
                    "those of this rank may be others than on the other ranks; "
                    "broadcast_parameters() and broadcast_optimizer_state() make ranks alike"
                )
                self.exchange.abandon(why)
                raise RuntimeError(why)

    def update(self, step, /, *args, **kwargs):
        """-> what step() gives, the user's optimizer's"""
        self.updating = True
        try:
            result = step(*args, **kwargs)
        except Exception:
            self.updating = False
            raise
        self.updating = False
        if self.exchange is not None and self.exchanged_by == "synchronize":
            self.exchange.made_of_last = STEPPED
        self.exchanged_by = None
        return result

    # ---- Giving up ----

    def give_up(self, error):
        """The gradients that are there are of no use: no rank takes this step."""
        if self.has_fired():
            self.exchange.note_failure(error)

    def forget(self, why):
        """Another state is loaded."""
        if self.exchange is not None:
            self.exchange.abandon(why)
            self.exchange.missed = False  # as for an update that was interrupted
        self.exchanged_by = None
        self.cleared = False
        self.updating = False
        self.should_synchronize = True
