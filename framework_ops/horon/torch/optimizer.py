# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: the user's optimizer, stepping with gradients reduced over all ranks.

The result is an instance of a subclass of the user's class that shares the state, the parameter
groups and the hooks of the instance it was made from; only step(), zero_grad(), add_param_group()
and load_state_dict() do something besides.
"""

import weakref
from collections import Counter
from contextlib import suppress
from functools import cached_property

import torch

from horon._gradients import OPEN
from horon._names import check_unique
from horon._steps import Steps
from horon._world import Adasum, Average, ReduceOp, global_process_set, ranks_beside, warn
from horon.torch.compression import Compression
from horon.torch.exchange import TorchExchange


class _DistributedOptimizer(torch.optim.Optimizer):
    """Goes before the user's class in the order of resolution."""

    _original = None  # weakly, the optimizer that was wrapped

    @cached_property
    def _horon_steps(self):
        """Those of a copy, which exchanges nothing; DistributedOptimizer() gives its own others."""
        return Steps()

    @property
    def _options(self):
        """What was asked of the exchange; a copy has none."""
        return self._horon_steps.options

    @property
    def _exchange(self):
        """The one of _options, if there were other ranks when it was wrapped."""
        return self._horon_steps.exchange

    @property
    def _should_synchronize(self):
        """Horovod's, which scripts set around step() in place of skip_synchronize()."""
        return self._horon_steps.should_synchronize

    @_should_synchronize.setter
    def _should_synchronize(self, should):
        self._horon_steps.should_synchronize = should

    def _register(self):
        self._name_parameters()
        self._hook_new_parameters()

    def _name_parameters(self):
        """Frozen ones, too: the verdict is named by all that there are at first."""
        self._exchange.name_verdict(
            self._parameter_names.setdefault(p, f"noname.{i}.{j}")
            for i, group in enumerate(self.param_groups)
            for j, p in enumerate(group["params"])
        )

    def _hook_new_parameters(self):
        """Also parameters that were added, or unfrozen, after the optimizer was wrapped."""
        exchange = self._exchange
        for i, group in enumerate(self.param_groups):
            for j, p in enumerate(group["params"]):
                if p.requires_grad and id(p) not in exchange.slots:
                    self._watch(p, self._parameter_names.setdefault(p, f"noname.{i}.{j}"))

    def _watch(self, p, name):
        self._exchange.hook(p, name)

    def __reduce_ex__(self, protocol):
        """Copying and pickling: torch would leave the exchange out, and a copy train for itself."""
        if self._exchange is None:
            return super().__reduce_ex__(protocol)
        raise TypeError(
            "a DistributedOptimizer can neither be copied nor pickled: wrap an optimizer of the "
            "copied model's parameters in a new DistributedOptimizer; to save or hand on the "
            "state, use state_dict() and load_state_dict()"
        )

    # ---- What Horovod's optimizer shows of itself; only the number of passes can be assigned ----

    @property
    def op(self):
        return self._options.how[0]

    @property
    def process_set(self):
        return self._options.process_set

    @property
    def gradient_predivide_factor(self):
        return self._options.how[2]

    @property
    def sparse_as_dense(self):
        return self._options.sparse_as_dense

    @property
    def _compression(self):
        return self._options.compression

    @property
    def _requires_update(self):
        return {slot.param for slot in self._options.slots.values()}

    @property
    def _allreduce_delay(self):
        slots = self._options.slots
        return {
            p: slots[id(p)].delay if id(p) in slots else self._options.passes
            for p in self._parameter_names
        }

    @property
    def _handles(self):
        """{parameter, or tuple of those of a group: (handle, what its compressor has to know)} of
        the gradients of this step; no handle: its last pass is still to come."""
        return self._options.handles()

    @property
    def backward_passes_per_step(self):
        return self._options.passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes):
        self._options.set_passes(passes)

    def set_backward_passes_per_step(self, passes):
        """How many backward passes are accumulated locally before gradients are exchanged."""
        self._options.set_passes(passes)

    # ---- Steps ----

    def synchronize(self):
        """Waits until every gradient is reduced; for clipping and the like before step().

        After an interruption (Ctrl-C) it may be called again, as step() may.
        """
        if self._exchange is not None:
            self._hook_new_parameters()
        self._horon_steps.synchronize()

    def skip_synchronize(self):
        """In it, step() takes the gradients as they are: synchronize() was called before."""
        return self._horon_steps.skip_synchronize()

    @property
    def _step_supports_amp_scaling(self):
        """GradScaler.step() asks this before it unscales gradients, which torch does not count."""
        if self._horon_steps.has_fired() and self._horon_steps.should_synchronize:
            self._exchange.refuse_change("unscaled by GradScaler.step()")
        return self.__dict__.get("_step_supports_amp_scaling", False)

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports):
        self.__dict__["_step_supports_amp_scaling"] = supports

    def _mark_for_schedulers(self):
        """One that was made before wrapping looks for this mark to see that a step came first."""
        original = self._original and self._original()
        if original is not None:
            original._opt_called = True

    def _notice_cleared(self):
        """model.zero_grad() clears gradients and does not say so; synchronize() leaves none out."""
        slots = self._exchange.slots.values() if self._exchange is not None else ()
        was_given = slots and self._horon_steps.exchanged_by == "synchronize"
        if was_given and all(slot.param.grad is None for slot in slots):
            self._horon_steps.forget_gradients()

    def step(self, closure=None, *args, **kwargs):
        self._mark_for_schedulers()
        steps = self._horon_steps
        steps.check_update()
        self._notice_cleared()
        if closure is None:
            steps.synchronize_for_step(self.synchronize)
            return steps.update(super().step, *args, **kwargs)
        if steps.has_fired() and self._exchange.failure is None:
            # the update may look at them before it calls the closure
            steps.synchronize_for_step(self.synchronize)
        elif steps.exchanged_by == "step":  # which did not end
            steps.exchanged_by = None
        was_called = False

        def synchronized_closure():
            nonlocal was_called
            if was_called:
                steps.exchanged_by = None
            was_called = True
            try:
                loss = closure()
            except Exception as error:
                steps.give_up(error)
                raise
            self._notice_cleared()
            steps.synchronize_for_step(self.synchronize)
            return loss

        return steps.update(super().step, synchronized_closure, *args, **kwargs)

    def _step_alone(self):
        """The step of the user's class: nothing is exchanged."""
        return super().step()

    # torch wraps the step() of each class so that step hooks run; they already run in the user's
    step.hooked = True

    def zero_grad(self, *args, **kwargs):
        exchange = self._exchange
        if exchange is not None and (exchange.fired or exchange.stage != OPEN):
            if exchange.failure is None and exchange.is_underway():
                raise AssertionError(
                    "optimizer.zero_grad() was called after loss.backward() but before "
                    "optimizer.step() or optimizer.synchronize(). This is prohibited as it can "
                    "cause a race condition."
                )
            exchange.abandon("optimizer.zero_grad() was called before optimizer.step() had ended")
        self._horon_steps.forget_gradients()
        return super().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        if self._exchange is not None:
            self._name_parameters()
            self._hook_new_parameters()

    def _forget_step(self):
        """Another state is loaded."""
        self._horon_steps.forget("load_state_dict() was called between backward() and step()")

    def load_state_dict(self, *args, **kwargs):
        """The parameter groups stay: a scheduler that was made before wrapping knows these, and not
        the ones that torch makes."""
        self._forget_step()
        groups = self.param_groups
        result = super().load_state_dict(*args, **kwargs)
        loaded = self.param_groups
        for i, group in enumerate(groups[: len(loaded)]):
            if group is not loaded[i]:
                options, loaded[i] = loaded[i], group
                group.clear()
                group.update(options)
        return result


class _DistributedAdasumOptimizer(_DistributedOptimizer):
    """Each rank's optimizer steps with the rank's own gradients; the ranks' moves are combined.

    Nothing is on its way before step(). It lets the user's optimizer move the parameters from where
    they are, takes that back, and adds what the moves of all ranks make. If it fails, parameters
    are what they were, on all ranks.
    """

    _moved = False  # the user's optimizer has stepped; the moves are to be exchanged
    _loss = None  # what its step() gave

    def _register(self):
        self._twins = {}  # of a parameter: where it was, and as its gradient, how it moved
        super()._register()

    def _watch(self, p, name):
        self._twins[p] = self._exchange.watch(p, name)

    @property
    def _requires_update(self):
        return set(self._twins)

    @property
    def _handles(self):
        return {}

    def synchronize(self):
        """Does nothing, as no gradient is exchanged."""

    def skip_synchronize(self):
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )

    @property
    def _step_supports_amp_scaling(self):
        """GradScaler.step() asks this first. It looks for inf among the gradients, which are the
        rank's own here: the rank that has one would skip the step, and the others wait for it."""
        raise NotImplementedError(
            "GradScaler cannot step an optimizer with op=Adasum: gradients are each rank's own, so "
            "ranks would skip different steps. Scale the loss by a constant, or use bfloat16, "
            "which needs no scaling"
        )

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports):
        """The user's class may say it anew, as fused ones do; it counts for nothing here."""

    def _go_back(self):
        for p, twin in self._twins.items():
            p.copy_(twin)

    def _store(self):
        """Where the parameters are before they move."""
        for p, twin in self._twins.items():
            if twin.dtype == p.dtype and twin.device == p.device:
                twin.copy_(p)
            else:  # the model was moved, by half() or the like
                twin.data = p.clone()

    def _move(self, *args, **kwargs):
        self._horon_steps.updating = True
        stored = False
        try:
            self._store()
            stored = True
            with torch.enable_grad():
                self._loss = super(_DistributedOptimizer, self).step(*args, **kwargs)
            for p, twin in self._twins.items():
                twin.grad = p - twin
        except Exception as error:
            if stored:
                self._go_back()
            self._horon_steps.updating = False
            self._exchange.note_failure(error)
            with suppress(Exception):  # the others raise what happened here
                self._exchange.synchronize()
            raise
        self._go_back()
        self._moved = True
        self._horon_steps.updating = False

    def _end_move(self):
        self._horon_steps.updating = True
        for p, twin in self._twins.items():
            p.add_(twin.grad)
            twin.grad = None
        self._moved = self._horon_steps.updating = False

    @torch.no_grad()
    def step(self, *args, **kwargs):
        self._mark_for_schedulers()
        self._horon_steps.check_update()
        if not self._moved:
            self._hook_new_parameters()
            self._move(*args, **kwargs)
        try:
            self._exchange.synchronize()
        except Exception:  # the moves are void, unless it can be tried again
            self._moved = self._exchange.stage != OPEN
            raise
        self._end_move()
        loss, self._loss = self._loss, None
        return loss

    step.hooked = True

    def _forget_step(self):
        super()._forget_step()
        self._moved = False


def _check_optimizer(optimizer):
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    if not isinstance(optimizer, torch.optim.Optimizer):  # its step() would never be reached
        kind = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise TypeError(
            "DistributedOptimizer() needs an optimizer, such as "
            "torch.optim.SGD(model.parameters(), lr=0.01), of a class derived from "
            f"torch.optim.Optimizer, not {kind}"
        )


def _check_names(optimizer, named_parameters):
    """-> [(name, parameter), ...]; as strict as Horovod."""
    if named_parameters is None:
        return [
            (f"noname.{i}.{j}", p)
            for i, group in enumerate(optimizer.param_groups)
            for j, p in enumerate(group["params"])
        ]
    named_parameters = list(named_parameters)
    if any(not isinstance(p, tuple) for p in named_parameters):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), "
            "usually produced by model.named_parameters()."
        )
    check_unique(name for name, _ in named_parameters)
    named = {id(p) for _, p in named_parameters}
    unnamed = [
        f"group {i}, parameter {j}"
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
        if id(p) not in named
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were "
            f"not named: {'; '.join(unnamed)}"
        )
    return named_parameters


_WRONG_GROUPS = "groups should be a non-negative integer or a list of lists of parameters"


def _check_groups(optimizer, groups, num_groups):
    if num_groups:
        warn("num_groups= is deprecated, use groups=", DeprecationWarning)
        groups = num_groups if groups is None else groups
    if groups is None or groups == 0:
        return None
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(_WRONG_GROUPS)
        return groups
    try:
        groups = [list(group) for group in groups]
    except TypeError:
        raise ValueError(_WRONG_GROUPS) from None
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for p in (p for group in groups for p in group):
        if id(p) not in own and not isinstance(p, torch.nn.Parameter):
            raise ValueError(f"{_WRONG_GROUPS}: an object of type {type(p).__name__} is in one")
    seen = Counter(id(p) for group in groups for p in group)
    if any(n > 1 for n in seen.values()):
        raise ValueError("a parameter can only be in one group")
    return groups


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression=Compression.none,
    backward_passes_per_step=1,
    op=Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    sparse_as_dense=False,
    process_set=global_process_set,
):
    """Wraps a torch optimizer so that step() uses gradients reduced over all ranks.

    Each gradient is on its way as soon as backward has computed it. Arguments:

    named_parameters: `model.named_parameters()`; the names match gradients across ranks.
    compression: what gradients are narrowed to on the way, `Compression.none`, `fp16`, `bf16`.
    backward_passes_per_step: passes whose gradients are accumulated before they are exchanged.
    op: `Average`, or another reduction. With `Adasum` the optimizer steps on each rank by itself,
        and the moves of the parameters are combined, in step().
    gradient_predivide_factor: with Average, gradients are divided by it before the sum and by
        size()/it after.
    groups: a number of groups, or lists of parameters, that are reduced together.
    sparse_as_dense: sends sparse gradients as dense ones; the optimizer gets sparse ones.

    Gradient clipping::

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    """
    others = ranks_beside(process_set)
    _check_optimizer(optimizer)
    named_parameters = _check_names(optimizer, named_parameters)
    groups = _check_groups(optimizer, groups, num_groups)
    options = TorchExchange(
        compression,
        ReduceOp(op),
        gradient_predivide_factor,
        backward_passes_per_step,
        sparse_as_dense,
        process_set,
    )
    base = optimizer.__class__
    kind = _DistributedAdasumOptimizer if op == Adasum and others else _DistributedOptimizer
    cls = type(base.__name__, (kind, base), {"__doc__": base.__doc__})
    wrapped = cls.__new__(cls)
    # a scheduler may have wrapped step() on the instance; the copy must not bypass ours
    own = {name: value for name, value in optimizer.__dict__.items() if name != "step"}
    wrapped.__dict__.update(own)
    wrapped._original = weakref.ref(optimizer)
    wrapped._horon_steps = Steps(options, others)
    wrapped._parameter_names = {p: name for name, p in named_parameters}
    if others:
        wrapped._register()
        if groups is not None:
            options.group(groups)
    return wrapped
