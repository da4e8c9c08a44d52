# SPDX-License-Identifier: Apache-2.0
"""The gradients' way through horon, for one optimizer.

Each parameter has a slot. Its hook fires when backward has accumulated the gradient; after as many
passes as wanted, the slot starts an allreduce in place, while backward goes on. synchronize()
starts what no hook has started (a parameter that this rank's pass did not use still meets the
others), and waits for all.

The quick way is an operation of the extension: it remembers where the gradient lay and, if the next
step's lies there again, only starts a prepared request. Compressed, sparse, strided and grouped
gradients go through ops.py.

Hooks know their slot weakly, and a slot its exchange and its group: without a cycle, all of it goes
with the optimizer, at once. Its hooks fall silent then, and nothing keeps a model alive.
"""

import weakref
from contextlib import suppress
from itertools import pairwise

import torch

from horon import _horon, _world
from horon._pickled import allgather_object
from horon._world import Average
from horon.exceptions import HoronInternalError
from horon.torch import ops
from horon.torch.compression import Compression

_HAS_POST_HOOK = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.1


class _Slot:
    __slots__ = (
        "__weakref__",
        "context",
        "ctx",
        "delay",
        "exchange",
        "group",
        "handle",
        "name",
        "operation",
        "param",
        "sparse_dim",
        "started",
    )

    def __init__(self, exchange, param, name):
        self.exchange = weakref.ref(exchange)
        self.param = param
        self.name = name
        self.group = None  # a weak proxy, if it is in one
        self.delay = exchange.passes  # backward passes until the gradient goes on its way
        self.started = False
        self.context = None  # what the operation belongs to
        self.operation = None  # of the extension; the quick way
        self.handle = None  # of ops.py, if this step's gradient goes that way
        self.ctx = None  # of the compressor
        self.sparse_dim = None  # of the gradients, once one was sparse

    def fire(self):
        """One more backward pass has accumulated this gradient."""
        exchange = self.exchange()
        if exchange is None:  # another thread has just dropped the optimizer
            return
        if self.delay <= 0 or self.started:
            if exchange.failure is not None:
                raise exchange.failed()
            raise AssertionError(
                f"The gradient of {self.name} was computed more than backward_passes_per_step "
                "times before step(). Increase backward_passes_per_step to accumulate gradients "
                "locally."
            )
        if self.delay == exchange.passes:
            exchange.fired.append(self)
        self.delay -= 1
        if self.delay == 0:
            try:
                exchange.start(self)
            except Exception as error:
                _explain(error)
                exchange.note_failure(error)
                raise

    def zeros(self):
        """The gradient of a pass that did not use the parameter, of the kind that others have."""
        param = self.param
        if self.sparse_dim is None:
            return torch.zeros_like(param)
        indices = torch.empty((self.sparse_dim, 0), dtype=torch.int64, device=param.device)
        values = param.new_empty((0, *param.shape[self.sparse_dim :]))
        return torch.sparse_coo_tensor(indices, values, param.shape)


class _Group:
    """Gradients that are reduced together, once the last of them is there; the exchange owns it."""

    def __init__(self, slots):
        self.slots = slots
        self.ready = 0
        self.handle = None


def _split(items, n):
    """n runs of nearly equal length."""
    size, longer = divmod(len(items), n)
    bounds = [i * size + min(i, longer) for i in range(n + 1)]
    return [items[a:b] for a, b in pairwise(bounds) if a < b]


class GradientExchange:
    def __init__(self, compression, op, predivide, passes, sparse_as_dense):
        self.compression = compression
        self.op = op
        self.passes = passes
        self.sparse_as_dense = sparse_as_dense
        # the average is split: 1/f before the sum, f/size after it
        self.prescale, self.postscale = 1.0 / predivide, predivide
        self.fired = []  # slots whose hook has fired since the last synchronize()
        self.failure = None  # of a hook in this step: class and arguments of what to raise
        self.slots = {}  # id(parameter) -> slot
        self.groups = []
        self.removables = []
        self.quick = compression is Compression.none
        weakref.finalize(self, _remove_hooks, self.removables)

    # ---- Setting up ----

    def add(self, param, name):
        """Hooks a parameter."""
        slot = self.slots[id(param)] = _Slot(self, param, name)
        reference = weakref.ref(slot)

        def hook(*_):
            slot = reference()
            if slot is not None:
                slot.fire()

        if _HAS_POST_HOOK:
            self.removables.append(param.register_post_accumulate_grad_hook(hook))
        else:  # the accumulator lives, and its hook fires, only while it is referenced
            accumulator = param.expand_as(param).grad_fn.next_functions[0][0]
            self.removables.append(accumulator.register_hook(hook))
            self.removables.append(accumulator)

    def group(self, groups):
        """Groups the slots: a number of groups, or lists of parameters."""
        if isinstance(groups, int):
            slots = {slot.name: slot for slot in self.slots.values()}
            orders = allgather_object(list(slots), name="horon.torch.groups")
            order = orders[0]
            for rank, names in enumerate(orders):
                odd = sorted(set(names) ^ set(order))
                if odd:  # found by every rank
                    raise ValueError(f"rank {rank} and rank 0 differ in the parameter {odd[0]!r}")
            lists = _split([slots[name] for name in order], groups)
        else:
            lists = [[self.slots[id(p)] for p in group if id(p) in self.slots] for group in groups]
        for slots in lists:
            if slots:
                self.groups.append(_Group(slots))
        for group in self.groups:
            for slot in group.slots:
                slot.group = weakref.proxy(group)

    def set_passes(self, passes):
        self.passes = passes
        for slot in self.slots.values():
            slot.delay = passes

    # ---- Starting ----

    def start(self, slot):
        """The gradient is complete on this rank."""
        if slot.context is not _world._context:
            self.renew(slot)
        if slot.group is not None:
            slot.group.ready += 1
            if slot.group.ready == len(slot.group.slots):
                self.start_group(slot.group)
            slot.started = True
            return
        gradient = slot.param.grad
        if gradient.requires_grad:
            raise AssertionError(f"the gradient of {slot.name} must not require a gradient itself")
        if not (self.quick and not gradient.is_neg() and slot.operation.start_on(gradient)):
            self.start_slowly(slot, gradient)
        slot.started = True  # now, and not if it failed

    def start_slowly(self, slot, gradient):
        if gradient.is_sparse:
            if not self.sparse_as_dense:
                slot.sparse_dim = gradient.sparse_dim()
                # First it meets a dense gradient of another rank, if there is one: both fail then.
                slot.handle = ops.begin_sparse(
                    gradient, f"sparse_allreduce.{slot.name}", self.op, f"allreduce.{slot.name}"
                )
                return
            gradient = slot.param.grad = gradient.to_dense()
        compressed, slot.ctx = self.compression.compress(gradient)
        slot.handle = ops.allreduce_async_(
            compressed, None, slot.name, self.op, self.prescale, self.postscale
        )

    def start_group(self, group):
        compressed = []
        for slot in group.slots:
            gradient = slot.param.grad
            if gradient.is_sparse:
                if not self.sparse_as_dense:
                    raise ValueError(f"the sparse gradient of {slot.name} cannot be in a group")
                gradient = slot.param.grad = gradient.to_dense()
            tensor, slot.ctx = self.compression.compress(gradient)
            compressed.append(tensor)
        group.handle = ops.grouped_allreduce_async_(
            compressed, None, group.slots[0].name, self.op, self.prescale, self.postscale
        )

    def missing(self):
        """Slots that no hook has started: other ranks may have computed what no pass here did."""
        for slot in self.slots.values():
            if not slot.started and (slot.param.requires_grad or slot.group is not None):
                if slot.param.grad is None:
                    slot.param.grad = slot.zeros()
                yield slot

    def start_missing(self):
        for slot in self.missing():
            self.start(slot)

    def renew(self, slot):
        """The slot is new, or horon was initialised again: an operation belongs to a context.

        One slot at a time: the others' operations may be in flight.
        """
        context = _world.context()
        slot.operation = context.operation(
            _horon.ALLREDUCE, f"allreduce.{slot.name}", self.op, 0, self.prescale, self.postscale
        )
        slot.context = context

    # ---- Ending ----

    def synchronize(self):
        """Starts what is missing and waits; each param.grad then holds the reduced gradient."""
        try:
            if self.failure is not None:
                raise self.failed()
            self.start_missing()
            self.wait()
        except Exception as error:
            _explain(error)
            self.abandon()
            raise
        self.reset()

    def wait(self):
        _horon.wait_all(self.quick_operations())
        for slot in self.slots.values():
            if slot.handle is not None:
                self.finish(slot, slot.handle.wait())
        for group in self.groups:
            if group.handle is not None:
                for slot, tensor in zip(group.slots, group.handle.wait(), strict=True):
                    self.finish(slot, tensor)

    def quick_operations(self):
        """Those that were started in this step."""
        return [
            slot.operation
            for slot in self.slots.values()
            if slot.started and slot.handle is None and slot.group is None
        ]

    def finish(self, slot, result):
        gradient = slot.param.grad
        if gradient.is_sparse:
            slot.param.grad = result.to(gradient.device)
            return
        result = self.compression.decompress(result, slot.ctx)
        if result is not gradient:
            gradient.copy_(result)

    def reset(self):
        """Forgets this step."""
        for slot in self.slots.values():
            slot.delay = self.passes
            slot.started = False
            slot.handle = slot.ctx = None
        for group in self.groups:
            group.ready = 0
            group.handle = None
        self.fired.clear()
        self.failure = None

    # ---- Giving up ----

    def abandon(self):
        """As reset(), also in the middle of a step: nothing is in flight when it returns.

        What has begun is finished, not withdrawn: a rank that is late, or steps, has no part in the
        withdrawal, and would take the gradient that this rank exchanges next for this step's.
        """
        slots = self.slots.values()
        if any(slot.started and slot.context is _world._context for slot in slots):
            for slot in self.missing():
                with suppress(Exception):  # the next exchange tells why, too
                    self.start(slot)
        handles = [holder.handle for holder in (*slots, *self.groups)]
        for pending in (*self.quick_operations(), *filter(None, handles)):
            with suppress(HoronInternalError):
                pending.wait()
        self.reset()

    def note_failure(self, error):
        """A hook raises it; were it caught, a step would take gradients that nobody exchanged.

        The error itself leads to the frames of the hook, and would keep all of it alive.
        """
        text = f"the exchange of this step's gradients failed: {error}"
        if isinstance(error, HoronInternalError):
            self.failure = (HoronInternalError, text, error.status)
        else:
            self.failure = (RuntimeError, text)

    def failed(self):
        """-> what to raise because of it, anew"""
        kind, *arguments = self.failure
        return kind(*arguments)


def _explain(error):
    """Adds to its text what only an optimizer knows."""
    text = str(error)
    if text.endswith("already in flight on this rank"):
        more = (
            "another optimizer, or a step that was not finished, uses the name. Give each "
            "optimizer names of its own, such as named_parameters="
            "[(f'generator.{name}', p) for name, p in generator.named_parameters()]"
        )
    elif "verbs differ" in text and "has allgather" in text:
        more = (
            "a dense gradient goes by allreduce, a sparse one by allgather, and a rank whose "
            "passes have never used the parameter takes its gradient for dense. Use it on every "
            "rank in the first step, or pass sparse_as_dense=True"
        )
    else:
        return
    error.args = (f"{text}: {more}",)


def _remove_hooks(removables):
    for removable in removables:
        if hasattr(removable, "remove"):
            removable.remove()


def make_exchange(compression, op, predivide, passes, sparse_as_dense):
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op == Average")
    if passes < 1:
        raise ValueError("backward_passes_per_step must be at least 1")
    return GradientExchange(compression, op, predivide, passes, sparse_as_dense)
