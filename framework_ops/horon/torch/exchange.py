# SPDX-License-Identifier: Apache-2.0
"""How one torch gradient goes through horon: the slots of a GradientExchange.

A slot's hook fires when backward has accumulated the gradient. A gradient that the extension takes
as it is goes by the slot's prepared operation, the quick way. Compressed, sparse, strided and
grouped gradients are staged as any tensor is.

A gradient that lies in another place than when it was sent was changed on its way; what was written
to one that is where it was, torch counts: see versions.py.
"""

import weakref

import torch

from horon._gradients import GradientExchange
from horon._names import operation_name
from horon._slots import Slot, about_gradient
from horon._staging import Handle
from horon._world import Adasum
from horon.torch import ops
from horon.torch.compression import Compression, compressor
from horon.torch.staging import gradient_dtype, memory_of, verbs
from horon.torch.versions import version_of, written

_HAS_POST_HOOK = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.1


class _TorchSlot(Slot):
    __slots__ = (
        "ctx",
        "kept",
        "lent",
        "memory",
        "param",
        "sent",
        "sparse_dim",
        "version",
    )

    def __init__(self, exchange, param, name):
        super().__init__(exchange, name)
        self.param = param
        self.ctx = None  # of the compressor
        self.lent = None  # zeros, to a frozen parameter for this step, as its group goes whole, ...
        self.kept = None  # ... and the gradient that it had before, if an earlier step left one
        self.sparse_dim = None  # of the gradients, once one was sparse
        self.sent = None  # the gradient on its way, ...
        self.memory = None  # ... where its elements were, if it is dense, ...
        self.version = 0  # ... and how often torch had counted a change

    def is_wanted(self):
        return self.param.requires_grad

    def send(self):
        exchange = self.exchange()
        gradient = self.gradient()
        self.handle = None
        if exchange.quick and gradient.layout is torch.strided and not gradient.is_neg():
            self.note_sent()
            if self.start_prepared(exchange, gradient, self.memory):
                return
        if gradient.is_sparse and not exchange.sparse_as_dense:
            self.sparse_dim = gradient.sparse_dim()
            self.handle = self.stage_sparse(exchange, gradient)
        else:
            self.handle = self.stage(verbs.in_place, self.compressed(exchange))
        self.note_sent()
        self.handle.begin(self.begun)

    def stage_sparse(self, exchange, tensor):
        name = operation_name("sparse_allreduce", self.name, None)
        # First it meets a dense gradient of another rank, if there is one: both fail then.
        return ops.stage_sparse(exchange.team, tensor, name, exchange.how[0], self.wire_name)

    def send_nothing(self):
        exchange = self.exchange()
        nothing = self.nothing(exchange)
        if nothing.is_sparse:
            self.handle = self.stage_sparse(exchange, nothing)
        else:
            self.handle = self.stage(verbs.in_place, nothing)
        self.handle.begin(self.begun)

    def nothing(self, exchange):
        """Zeros, as a gradient travels. A rank that cannot make them sends what meets no gradient:
        the others fail, and do not wait."""
        try:
            nothing = self.zeros()
            if nothing.is_sparse and not exchange.sparse_as_dense:
                return nothing
            dense = nothing.to_dense() if nothing.is_sparse else nothing
            return exchange.compression.compress(dense)[0]
        except Exception:
            return torch.empty(0, device="cpu")

    def gradient(self):
        """What is to be sent; zeros if no pass here has used the parameter, or if it is frozen and
        only its group is sent."""
        if self.takes_part():
            if self.param.grad is None:
                self.param.grad = self.zeros()
        elif self.lent is None or self.param.grad is not self.lent:
            self.kept = self.param.grad
            self.lent = self.zeros()
            self.param.grad = self.lent  # last, as a signal's handler may raise between two lines
        if self.param.grad.requires_grad:
            text = f"the gradient of {self.name} must not require a gradient itself"
            raise about_gradient(AssertionError(text), self)
        return self.param.grad

    def compressed(self, exchange):
        """The gradient, dense, as it travels."""
        gradient = self.param.grad
        if gradient.is_sparse:
            self.sparse_dim = gradient.sparse_dim()
            gradient = gradient.to_dense()
        tensor, self.ctx = exchange.compression.compress(gradient)
        return tensor

    def note_sent(self):
        """After what horon counts as a change of its own. `sent` comes last: a signal's handler may
        raise between two lines."""
        sent = self.param.grad
        self.memory = memory_of(sent) if sent.layout is torch.strided else None
        self.version = version_of(sent)
        self.sent = sent

    def has_changed(self):
        """Whether it was replaced; for what was written see the exchange's changed()."""
        sent, memory = self.sent, self.memory
        return sent is not None and (
            self.param.grad is not sent
            or (memory is not None and memory_of(sent).data_ptr() != memory.data_ptr())
        )

    @torch.inference_mode(False)
    def zeros(self):
        """The gradient of a pass that did not use the parameter, of the kind that others have, to
        which later passes may add, whatever mode step() was called in."""
        param, dtype = self.param, gradient_dtype(self.param)
        if self.sparse_dim is None:
            return torch.zeros_like(param, dtype=dtype)
        indices = torch.empty((self.sparse_dim, 0), dtype=torch.int64, device=param.device)
        values = param.new_empty((0, *param.shape[self.sparse_dim :]), dtype=dtype)
        return torch.sparse_coo_tensor(
            indices, values, param.shape, device=param.device, check_invariants=False
        )

    def finish(self, result):
        gradient = self.sent
        if result.is_sparse:
            self.param.grad = result.to(gradient.device)
            return
        result = self.exchange().compression.decompress(result, self.ctx)
        if gradient.is_sparse:  # and went as a dense one
            self.param.grad = result.to_sparse()
        elif result is not gradient:
            with torch.inference_mode(gradient.is_inference()):  # else it cannot be written
                gradient.copy_(result)

    def take_back(self):
        """A frozen parameter has the gradient that it had, as with torch alone, or none: with one
        of zeros it would decay. Another rank's gradient it keeps, as that rank will apply it."""
        gradient = self.param.grad
        if gradient is not None and gradient.is_sparse:
            gradient = gradient.coalesce().values()
        if gradient is not None and not gradient.any():
            self.param.grad = self.kept
        self.lent = None
        self.kept = None

    def forget(self):
        super().forget()
        self.ctx = self.sent = self.memory = None
        if self.lent is not None:
            self.take_back()


class TorchExchange(GradientExchange):
    """The exchange of one optimizer. Its hooks fall silent with it, and keep no model alive."""

    def __init__(self, compression, op, predivide, passes, sparse_as_dense, process_set):
        super().__init__(passes, process_set, op, predivide)
        self.compression = compressor(compression)
        self.sparse_as_dense = sparse_as_dense
        self.quick = compression is Compression.none and op != Adasum
        self.removables = []
        weakref.finalize(self, _remove_hooks, self.removables)

    def hook(self, param, name):
        """Makes the parameter's slot, and has backward tell it."""
        slot = _TorchSlot(self, param, name)
        self.add(id(param), slot)
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

    def watch(self, param, name):
        """Makes a slot that no backward fires; -> its own parameter, whose gradient is sent."""
        twin = torch.nn.Parameter(param.detach().clone())
        self.add(id(param), _TorchSlot(self, twin, name))
        return twin

    def changed(self, slots):
        return super().changed(slots) or written([slot for slot in slots if slot.sent is not None])

    def handles(self):
        """As Horovod's optimizers have them: see DistributedOptimizer."""
        handles = {
            tuple(slot.param for slot in group.slots): (
                group.handle,
                tuple(slot.ctx for slot in group.slots),
            )
            for group in self.groups
            if group.begun
        }
        for slot in self.slots.values():
            if slot.begun:  # the quick way has no handle of its own
                handle = slot.handle or Handle(self.team, None, None, [*slot.begun], slot.sent)
                handles[slot.param] = (handle, slot.ctx)
            elif slot.delay < self.passes and not (slot.group and slot.group.begun):
                handles[slot.param] = (None, None)
        return handles

    def group(self, groups):
        """Groups the slots: a number of groups, or lists of parameters."""
        if isinstance(groups, int):
            self.split_into_groups(groups)
        else:
            self.set_groups(
                [self.slots[id(p)] for p in group if id(p) in self.slots] for group in groups
            )

    def send_group(self, group, nothing):
        slots = group.slots
        if nothing:
            tensors = [slot.nothing(self) for slot in slots]
        else:
            for slot in slots:
                if slot.gradient().is_sparse and not self.sparse_as_dense:
                    text = f"the sparse gradient of {slot.name} cannot be in a group"
                    raise about_gradient(ValueError(text), slot)
            tensors = [slot.compressed(self) for slot in slots]
        group.handle = group.stage(self, verbs.in_place, tensors)
        if not nothing:
            for slot in slots:
                slot.note_sent()
        group.handle.begin(group.begun)


def _remove_hooks(removables):
    for removable in removables:
        if hasattr(removable, "remove"):
            removable.remove()
