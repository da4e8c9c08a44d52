# SPDX-License-Identifier: Apache-2.0
"""The gradients' way through horon, step after step, whatever framework computes them.

Each gradient has a slot. When backward has computed it, its slot fires; after as many passes as
wanted, it sends the gradient on its way while backward goes on. synchronize() sends what no pass
here has computed (other ranks' may have), and waits for all.

A step succeeds on all ranks or on none. What goes wrong on one rank alone (a gradient that cannot
be sent, or that was changed while it was on its way) is told by the *verdict*, one number that all
ranks reduce with the gradients: with it every rank raises, and names the rank and the cause. A
rank that fails still sends something under every name, so that no other waits for it and none takes
its next step's gradient for this one's.

Which gradients take part may change from step to step, as parameters are frozen or added, and has
to change on all ranks at once. A rank on which it has changed, as in its first step, says so with
the verdict as well. Then all ask each other which do; where they differ, all ranks take back what
is on its way, and the step fails.

A signal's handler may raise between any two lines (Ctrl-C does). Nothing is begun twice then: the
extension itself puts each request into a list, `begun`, as it begins, so the lists tell the truth
whenever they are read. Each stage of a step can be entered again, and ends with one assignment. So
synchronize() that was interrupted can be called again, and goes on where it was.

A framework derives its slot from Slot (_slots.py) and says how a gradient is sent.
"""

import weakref
from array import array
from contextlib import suppress
from itertools import pairwise
from operator import index

from horon import _horon
from horon._names import fit, part_name
from horon._objects import (
    CAUSE_CHARACTERS_MAX,
    allgather_plain,
    begin_allgather_texts,
    texts_of,
)
from horon._parts import CLEARED, difference, text_of_part
from horon._slots import Group, about_gradient
from horon._world import Average, Max, Sum, place_of_this_rank, team_of
from horon.exceptions import (
    HoronInternalError,
    about_of,
    describe,
    operation_of,
    tell_about,
    text_of,
)


class _Verdict:
    """Whether a rank has failed in this step, or has to ask the others: one number, not 0 then.

    It is combined as the gradients are, so that it travels in one batch with the last of them.
    """

    def __init__(self, team, name, how):
        op, *scales = how if how[0] in (Sum, Average) else (Max, 1.0, 1.0)
        self.team = team
        self.name = fit(f"gradients.{name}")
        self.begun = []
        self.number = array("f", [0.0])
        self.request = team.prepare(
            _horon.ALLREDUCE, self.name, self.number, self.number, op, 0, *scales
        )

    def start(self, asks):
        self.number[0] = asks
        self.request.start(self.begun)

    def asks(self):
        return self.request.status == 0 and self.number[0] != 0


# Where a step is.
OPEN = "open"  # backward computes gradients, and hooks send them
SENT = "sent"  # all that other ranks wait for is on its way, the verdict too
EXPLAINING = "explaining"  # a rank has failed or asks; the ranks tell each other why, and what
AGREED = "agreed"  # the gradients are there on all ranks: what came of them may be taken
FAILED = "failed"  # no rank takes anything

_MOVES = {
    OPEN: (OPEN, SENT, FAILED),
    SENT: (EXPLAINING, AGREED, FAILED),
    EXPLAINING: (AGREED, FAILED),
    AGREED: (OPEN,),
    FAILED: (OPEN,),
}


_WITHDRAWN = (_horon.STATUSES["ERR_CANCELLED"], "CANCELLED", None, None, "", "")
_AFTER_NAME = "\n"  # in what a rank tells the others about its failure

LOOK_S = 0.25  # between two looks whether a rank asks
NAMES_MAX = 8  # of the gradients that one text is about
PREDIVIDE_MAX = 2.0**126  # float32 has the inverse without a loss


def _split(items, n):
    """n runs of nearly equal length."""
    size, longer = divmod(len(items), n)
    bounds = [i * size + min(i, longer) for i in range(n + 1)]
    return [items[a:b] for a, b in pairwise(bounds) if a < b]


class GradientExchange:
    def __init__(self, passes, process_set, op=Average, predivide=1.0):
        """predivide: with Average, gradients are divided by it before the sum."""
        if predivide != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor needs op == Average")
        if not 1.0 / PREDIVIDE_MAX <= predivide <= PREDIVIDE_MAX:
            raise ValueError(
                f"gradient_predivide_factor {predivide!r} is not in 2**-126..2**126, in which "
                "float32 can divide by it"
            )
        self.process_set = process_set
        # how gradients are combined; the average is split: 1/f before the sum, f/size after it
        self.how = (op, 1.0 / predivide, predivide)
        self.slots = {}  # by the framework's key of the parameter
        self.set_passes(passes)
        self.groups = []
        self.fired = []  # slots whose gradient was computed since the last step
        self.stage = OPEN
        self.failure = None  # of this rank in this step: class, text and data of what to raise
        self.error = None  # of a failed step: what synchronize() raises
        self.made_of_last = ""  # of what the last exchange gave: see _parts.py
        self.missed = False  # this rank has dropped a step that the others may have taken
        self.causes = []  # the request that tells why ranks have failed, ...
        self.parts = []  # ... and the one that tells which gradients take part
        self.left_out = []  # names of gradients that take no part in this step
        self.known_part = None  # this rank's own_part(), as all ranks know it
        self.over = []  # the request that tells that all ranks have taken back what differs
        self.team = None  # that this step began in
        self.verdict_name = None
        self.verdict = None

    # ---- Setting up ----

    def add(self, key, slot):
        self.slots[key] = slot

    def name_verdict(self, names):
        """names: of all parameters, as ranks may have frozen others; they may have other orders.
        It stays, whatever is added later to one that had some."""
        if self.verdict_name is None:
            self.verdict_name = min(names, default=None)

    def set_groups(self, lists):
        """Groups the slots: lists of them. `send_group` of the framework sends one."""
        self.groups = [Group(slots) for slots in lists if slots]
        for group in self.groups:
            for slot in group.slots:
                slot.group = weakref.proxy(group)

    def split_into_groups(self, n):
        """As set_groups(), with n groups of nearly equal length, in the order of the first rank."""
        slots = {slot.name: slot for slot in self.slots.values()}
        orders = allgather_plain(team_of(self.process_set), list(slots), "gradients.groups")
        first, order = next(iter(orders.items()))
        for rank, names in orders.items():
            odd = sorted(set(names) ^ set(order))
            if odd:  # found by every rank
                raise ValueError(f"rank {rank} and rank {first} differ in the parameter {odd[0]!r}")
        self.set_groups(_split([slots[name] for name in order], n))

    def set_passes(self, passes):
        """How many backward passes a step has from now on."""
        passes = index(passes)
        if passes < 1:
            raise ValueError("backward_passes_per_step must be at least 1")
        self.passes = passes
        for slot in self.slots.values():
            slot.delay = passes

    def send_group(self, group, nothing):
        """As Slot.send(), or send_nothing(), for all slots of a group, in the group's `begun`."""
        raise NotImplementedError

    # ---- Starting ----

    def on_fired(self, slot):
        if slot.delay <= 0 or slot.started or self.stage is not OPEN:
            if self.failure is not None:
                raise self.failed()
            error = AssertionError(
                f"The gradient of {slot.name} was computed more than backward_passes_per_step "
                "times before step(). Increase backward_passes_per_step to accumulate gradients "
                "locally."
            )
            raise about_gradient(error, slot)
        if not self.fired:
            for one in self.slots.values():
                one.was_wanted = one.is_wanted()
        if slot.delay == self.passes:
            self.fired.append(slot)
            slot.was_wanted = True
        slot.delay -= 1
        if slot.delay == 0:
            self.start(slot)

    def start(self, slot):
        """The gradient is complete on this rank."""
        if self.team is None:
            self.team = team_of(self.process_set)
        group = slot.group
        if group is None:
            if not slot.begun:
                slot.send()
        elif not group.begun:
            group.ready.add(slot.name)
            if len(group.ready) == len(group.slots):
                self.send_group(group, nothing=False)
        slot.started = True  # now, and not if it failed

    def start_missing(self):
        left_out = []
        for slot in self.slots.values():
            if slot.started:
                continue
            if slot.group is None and not slot.takes_part():
                left_out.append(slot.name)
                continue
            try:
                self.start(slot)
            except Exception as error:
                self.note_failure(error, slot)
                raise
        self.left_out = left_out

    def start_nothing(self):
        """What is not on its way yet goes as zeros: the other ranks wait for it."""
        for slot in self.slots.values():
            if not slot.begun and slot.group is None and slot.takes_part():
                with suppress(Exception):  # the name is in use on this rank
                    slot.send_nothing()
        for group in self.groups:
            if not group.begun:
                with suppress(Exception):
                    self.send_group(group, nothing=True)

    # ---- Ending ----

    def synchronize(self):
        """Sends what is missing and waits; the slots then have finished with what came of it.

        If it is interrupted, it may be called again.
        """
        if not self.slots and self.verdict_name is None:
            return
        if self.team is None:
            self.team = team_of(self.process_set)
        self.settle()
        if self.stage is AGREED:
            self.take()
        self.reset()
        self.missed = False
        error, self.error = self.error, None
        if error is not None:
            raise error

    def settle(self):
        """Until it is decided what becomes of the step, from wherever it is."""
        if self.stage is OPEN:
            self.move(self.close())
        if self.stage is SENT:
            self.move(self.wait())
        if self.stage is EXPLAINING:
            self.move(self.ask_why())

    def move(self, stage):
        assert stage in _MOVES[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage

    def close(self):
        """Sends all that is missing, and the verdict last."""
        if self.verdict is None or not self.verdict.begun:
            self.complete()
            try:
                self.start_verdict()
            except (HoronInternalError, ValueError) as error:
                _explain(error)
                return self.fail(error)
        return SENT

    def complete(self):
        """What the other ranks wait for is on its way after it, if only as zeros."""
        try:
            if self.failure is None:
                self.check_not_missed()
                self.check_unchanged()
                self.start_missing()
        except Exception as error:
            self.note_failure(error)
        if self.failure is not None:
            self.start_nothing()

    def check_not_missed(self):
        if self.missed:
            raise RuntimeError(
                "this rank has dropped an earlier step that the other ranks may have taken, so its "
                "parameters may be others than theirs; broadcast_parameters() and "
                "broadcast_optimizer_state() make ranks alike"
            )

    def check_unchanged(self):
        changed = self.changed([slot for slot in self.slots.values() if slot.is_on_its_way()])
        if changed:
            raise _changed(changed, "changed")

    def changed(self, slots):
        """-> of these slots, which are on their way, those of which one has changed; or none.

        A framework that counts changes for several gradients at once cannot tell which."""
        return next(([slot] for slot in slots if slot.has_changed()), [])

    def refuse_change(self, how):
        """Ends the step, as synchronize() does when it finds that a gradient was changed."""
        self.note_failure(_changed(self.fired[:1], how))
        self.synchronize()

    def start_verdict(self):
        if self.verdict is None or self.verdict.team is not self.team:
            self.verdict = _Verdict(self.team, self.verdict_name, self.how)
        asks = self.failure is not None or self.made_of_last == CLEARED
        self.verdict.start(asks or self.own_part() != self.known_part)

    def own_part(self):
        """-> what differs from step to step if other gradients take part here; none is removed."""
        return len(self.slots), self.left_out

    def requests(self):
        holders = (*self.slots.values(), *self.groups)
        return [request for holder in holders for request in holder.begun]

    def wait(self):
        """Until nothing is in flight; or a rank asks, as not all may take part in each gradient."""
        lost, over = None, False
        while not over and not self.verdict.asks():
            try:
                lost = _lost([*self.requests(), *self.verdict.begun], LOOK_S)
                over = True
            except TimeoutError as error:
                if about_of(error) is None:  # not the limit here: a signal's handler raises it
                    raise
        return EXPLAINING if self.verdict.asks() else self.outcome(lost)

    def outcome(self, lost):
        """lost: the failure of what has ended, if one did."""
        if lost is None and self.failure is not None:  # since the verdict was sent
            lost = self.failed()
        if lost is None:  # a rank that has joined may have left gradients undone
            lost = next(filter(None, (slot.refused() for slot in self.slots.values())), None)
        return AGREED if lost is None else self.fail(lost)

    def ask_why(self):
        """Every rank gets the causes of all that have failed, and hears what takes part."""
        try:
            if not self.causes:
                self.tell("causes", self.cause() if self.failure else "", self.causes)
            if not self.parts:
                part = text_of_part(self.slots.values(), self.groups, self.made_of_last)
                self.tell("parts", part, self.parts)
            causes = texts_of(self.causes[0])
            odd = difference(self.team, texts_of(self.parts[0]))
            if odd is not None:  # on all ranks, as they have the same texts
                self.take_back()
        except HoronInternalError as error:
            return self.fail(error)
        if self.failure is not None:
            return self.fail(self.failed())
        if not any(causes):
            if odd is not None:
                return self.fail(odd)
            self.known_part = self.own_part()
            return self.outcome(_lost(self.requests()))
        place = next(place for place, cause in enumerate(causes) if cause)
        rank = self.team.ranks[place]
        name, _, cause = causes[place].partition(_AFTER_NAME)
        return self.fail(
            HoronInternalError(
                f"the exchange of this step's gradients failed on rank {rank}: {cause}",
                _horon.STATUSES["ERR_CANCELLED"],
                "CANCELLED",
                rank,
                host=self.team.hosts[place],
                name=name,
            )
        )

    def tell(self, what, text, begun):
        begin_allgather_texts(self.team, part_name(self.verdict.name, what), text, begun)

    def take_back(self):
        """Withdraws all that is on its way here; the other ranks do the same.

        Where gradients differ, one may meet nobody: another rank does not have it, or had it
        withdrawn with its group, which broke because of another member. No rank goes on before all
        have none on their way, so that nothing of this step meets what any of them sends next.
        """
        if not self.over:
            requests = self.requests()
            for request in requests:
                request.cancel()
            _lost(requests)
            self.tell("over", "", self.over)
        self.over[0].wait()

    def cause(self):
        """-> what the other ranks are told: the operation's name, or "", and why"""
        _, text, about = self.failure
        return about[-1].replace(_AFTER_NAME, " ") + _AFTER_NAME + text[:CAUSE_CHARACTERS_MAX]

    def fail(self, error):
        """What has begun is finished, not withdrawn: a rank that is late, or steps, has no part in
        the withdrawal, and would take the gradient that this rank sends next for this step's. Only
        take_back() withdraws, as all ranks do so, and wait for each other."""
        with suppress(HoronInternalError):
            _horon.wait_all(self.requests())
        self.error = error
        return FAILED

    def take(self):
        """Can be called again, whatever it has raised; other ranks have what they need."""
        for group in self.groups:
            if group.handle is not None:
                for slot, result in zip(group.slots, group.handle.wait(), strict=True):
                    _take(slot, result)
        for slot in self.slots.values():
            if slot.handle is not None:
                _take(slot, slot.handle.wait())

    def reset(self):
        """Forgets this step. Its outcome, `error`, stays."""
        for group in self.groups:  # first: to take what came of it needs its slots
            group.forget()
        for slot in self.slots.values():
            slot.delay = self.passes
            slot.forget()
        if self.verdict is not None:
            self.verdict.begun.clear()
        self.causes.clear()
        self.parts.clear()
        self.over.clear()
        self.fired.clear()
        self.made_of_last = ""
        self.failure = None
        self.team = None
        self.move(OPEN)

    # ---- Giving up ----

    def is_underway(self):
        """Whether other ranks may wait for this one in this step."""
        if self.stage is OPEN:
            return self.failure is not None or any(slot.started for slot in self.slots.values())
        return self.stage in (SENT, EXPLAINING)

    def abandon(self, why):
        """Forgets this step, also in the middle of it.

        It fails on the other ranks then; if they have all that they need of this one, the next one.
        """
        if self.is_underway():
            if self.stage is OPEN:
                self.note_failure(RuntimeError(why))
            if self.team is None:  # nothing is on its way yet
                with suppress(ValueError):  # horon was shut down
                    self.team = team_of(self.process_set)
            if self.team is not None and not self.team.closed:
                self.settle()
            else:  # all of it has ended
                self.move(FAILED)
        self.missed |= self.stage is AGREED
        self.reset()
        self.error = None

    def note_failure(self, error, slot=None):
        """A hook raises it; were it caught, a step would take gradients that nobody exchanged.

        The first one counts. slot: the error is about its gradient, which all ranks are told. The
        error itself leads to the frames of the hook, and would keep all of it alive.

        What is not the library's is told as on the other ranks: this one has the step withdrawn.
        """
        if self.failure is not None:
            return
        _explain(error)
        text = text_of(error)
        if slot is not None and not _tells_which(error):
            text = f"the gradient of {slot.name}: {text}"
        if isinstance(error, HoronInternalError):
            self.failure = (HoronInternalError, text, error.about)
            return
        status, cause, rank, other_rank, host, name = about_of(error) or _WITHDRAWN
        if rank is None:
            rank, host = place_of_this_rank()
        if not name and slot is not None:
            name = slot.wire_name
        self.failure = (RuntimeError, text, (status, cause, rank, other_rank, host, name))

    def failed(self):
        """-> what to raise because of it, anew"""
        kind, text, about = self.failure
        return tell_about(kind(f"the exchange of this step's gradients failed: {text}"), *about)


def _lost(requests, timeout=None):
    """Waits; -> the failure of one that has failed, or None"""
    try:
        _horon.wait_all(requests, timeout)
    except HoronInternalError as error:
        _explain(error)
        return error
    return None


def _tells_which(error):
    """Whether its text names a gradient, or the operation that it is of."""
    return hasattr(error, "gradient_name") or operation_of(error) != ""


def _take(slot, result):
    try:
        slot.finish(result)
    except Exception as error:  # of a decompressor, say
        raise RuntimeError(
            f"the gradient of {slot.name} was exchanged, but this rank cannot take it: "
            f"{describe(error)}; the others may have taken this step: step() tries again"
        ) from error


def _changed(slots, how):
    names = [slot.name for slot in slots[:NAMES_MAX]]
    if len(slots) > NAMES_MAX:
        names.append(f"one of {len(slots) - NAMES_MAX} more")
    which = " or ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]
    shared = ", which share a buffer," if names[1:] else ""
    error = RuntimeError(
        f"the gradient of {which}{shared} was {how} after backward, while it was on its way to the "
        "other ranks: call optimizer.synchronize() before gradients are clipped, unscaled or "
        "cleared, and step() in optimizer.skip_synchronize()"
    )
    name = "" if slots[1:] else slots[0].wire_name
    return tell_about(error, *_WITHDRAWN[:-1], name)


def _explain(error):
    """Adds to its text what only the exchange knows."""
    if getattr(error, "status", 0) == _horon.STATUSES["ERR_DUPLICATE"]:
        more = (
            "another optimizer, or a step that was not finished, uses the name. Give each "
            "optimizer names of its own, such as named_parameters="
            "[(f'generator.{name}', p) for name, p in generator.named_parameters()]"
        )
    elif getattr(error, "cause", "") == "VERB":
        more = (
            "a dense gradient goes by allreduce, a sparse one by allgather, and a rank whose "
            "passes have never used the parameter takes its gradient for dense. Use it on every "
            "rank in the first step, or pass sparse_as_dense=True"
        )
    else:
        return
    error.args = (f"{error}: {more}", *error.args[1:])
