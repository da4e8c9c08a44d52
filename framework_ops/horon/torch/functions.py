# SPDX-License-Identifier: Apache-2.0
"""Making all ranks start alike: parameters, optimizer state, objects."""

import torch

from horon._names import auto_name, check_unique, named_items
from horon._objects import allgather_object, broadcast_object, broadcast_state, compare
from horon._verbs import BROADCAST
from horon._world import global_process_set, team_of
from horon.torch.optimizer import _DistributedOptimizer
from horon.torch.staging import check, dtype_name, dtype_named, gradient_dtype, verbs

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def _named(params, name):
    """-> [(name, tensor), ...]; raises, before anything has begun, what is wrong with them."""
    if isinstance(params, torch.nn.Module):
        raise ValueError("broadcast_parameters() needs parameters: pass model.state_dict()")
    if isinstance(params, torch.optim.Optimizer):
        raise ValueError("broadcast_optimizer_state() is for optimizers")
    if not hasattr(params, "__iter__") or isinstance(params, torch.Tensor):
        raise ValueError(
            f"parameters cannot be broadcast from an object of type {type(params).__name__}: "
            "pass model.state_dict() or model.named_parameters()"
        )
    named = [(key, p) for key, p in named_items(params, name) if p is not None]
    for key, p in named:
        if not isinstance(p, torch.Tensor):
            raise ValueError(
                f"parameter {key} is not a tensor but {type(p).__name__}; "
                "use broadcast_object() for it"
            )
    check_unique(key for key, _ in named)
    return named


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Gives every rank the root's parameters, in place.

    `params`: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`.
    """
    name = auto_name("parameters", process_set)  # of those that have none
    verbs.broadcast_all(_named(params, name), root_rank, process_set)


class _State:
    """A state's tensors travel beside its plain data, in which each is a dtype and a shape."""

    def __init__(self):
        self.tensors = []

    def to_plain(self, value):
        if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
            parts = [self.to_plain(part) for part in (value._indices(), value._values())]
            return ["sparse", list(value.shape), value.is_coalesced(), *parts]
        if isinstance(value, torch.Tensor):
            self.tensors.append(check(value, BROADCAST).contiguous())  # the root's are only read
            return ["tensor", dtype_name(value.dtype), list(value.shape)]
        if isinstance(value, torch.Size):
            return ["size", *value]
        if isinstance(value, torch.dtype):
            return ["dtype", dtype_name(value)]
        return NotImplemented

    def from_plain(self, plain):
        """Makes room for a tensor; a sparse one lies where its indices and values come."""
        kind, *content = plain
        if kind == "size":
            return torch.Size(content)
        if kind == "dtype":
            return dtype_named(*content)
        if kind == "sparse":
            shape, is_coalesced, *parts = content
            indices, values = map(self.from_plain, parts)
            tensor = torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)
            return tensor._coalesced_(is_coalesced)  # else its sums would be rounded otherwise
        if kind != "tensor":
            raise ValueError(f"the state has an unknown part {kind!r}")
        name, shape = content
        self.tensors.append(torch.zeros(shape, dtype=dtype_named(name), device="cpu"))
        return self.tensors[-1]


# ---- Optimizers without a state ----


def _sparse_tables(model):
    """-> the ids of parameters whose gradients are sparse"""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = model.modules() if model is not None else ()
    return {id(one.weight) for one in modules if isinstance(one, kinds) and one.sparse}


def _zero_gradients(optimizer, params, tables):
    """tables: of _sparse_tables(). As sparse as those that passes make, so that a pass may add to
    them, if the optimizer takes such ones."""
    takes_sparse = isinstance(optimizer, (torch.optim.SGD, torch.optim.Adagrad))
    for p in params:
        zeros = torch.zeros_like(p, dtype=gradient_dtype(p), requires_grad=False)
        if isinstance(optimizer, torch.optim.SparseAdam) or (takes_sparse and id(p) in tables):
            zeros = zeros.to_sparse(1)
        p.grad = zeros


def _step_with_zeros(optimizer, params, is_root):
    """The step by which Horovod begins a state. Only the root's state comes of it, and parameters
    are afterwards what they were. A step that needs a closure leaves no state.

    All ranks take it, from no state: what step() and its hooks send needs all of them. The frozen
    have no part in it, whatever gradients they were left with.
    """
    values = [p.detach().clone() for p in params]
    every = (p for group in optimizer.param_groups for p in group["params"])
    frozen = [(p, p.grad) for p in every if not p.requires_grad]
    for p, _ in frozen:
        p.grad = None
    state = getattr(optimizer, "state", {})  # one that is not torch's may have none
    before = dict(state)
    if not is_root:
        state.clear()
    try:
        getattr(optimizer, "_step_alone", optimizer.step)()
    except Exception:
        state.clear()
    with torch.no_grad():
        for p, value in zip(params, values, strict=True):
            p.copy_(value)
    for p, gradient in frozen:
        p.grad = gradient
    if not is_root:
        state.clear()
        state.update(before)


def _begin_state(optimizer, tables, is_empty, root_is_empty, is_root):
    """Where there is no state, gradients of zeros stay."""
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    gradients = [p.grad for p in params]
    if is_empty or root_is_empty:
        _zero_gradients(optimizer, params, tables)
    if root_is_empty:
        _step_with_zeros(optimizer, params, is_root)
        if not is_empty:
            for p, gradient in zip(params, gradients, strict=True):
                p.grad = gradient


def _compare(team, optimizer, root_rank, name):
    """Raises on every rank what is wrong on one. -> whether this rank has no state, and the root"""
    exchange = getattr(optimizer, "_exchange", None)
    cause = ""
    if exchange is not None and exchange.is_underway():
        cause = "optimizer.step() or synchronize() comes first, after backward()"
    is_empty = not optimizer.state_dict().get("state")
    kind = type(optimizer).__name__
    sizes = [len(group["params"]) for group in optimizer.param_groups]

    def difference(of_rank, of_root):
        (_, kind, sizes), (_, root_kind, wanted) = of_rank, of_root
        if kind != root_kind:
            return f"its optimizer is of the class {kind}, that of rank {root_rank} of {root_kind}"
        if sizes == wanted:
            return ""
        return (
            f"its optimizer has groups of {sizes} parameters, that of rank {root_rank} has {wanted}"
        )

    own = [is_empty, kind, sizes]
    root_is_empty, *_ = compare(team, own, root_rank, name, cause, difference)
    return is_empty, root_is_empty


# ---- Taking the root's state ----


def _takes_plainly(optimizer):
    """Whether its load_state_dict() is torch's own, with nothing of the user's before or after."""
    user = optimizer
    if isinstance(optimizer, _DistributedOptimizer):
        user = super(_DistributedOptimizer, optimizer)
    method = getattr(user.load_state_dict, "__func__", None)
    return method is torch.optim.Optimizer.load_state_dict and not any(
        getattr(optimizer, f"_optimizer_load_state_dict_{when}_hooks", None)
        for when in ("pre", "post")
    )


def _beside(value, p, host_key, key=None):
    """-> the value, its tensors on the parameter's device, but for the one of host_key.

    What has the parameter's shape also lies in memory as it does: fused kernels pair elements by
    where they lie.
    """
    if isinstance(value, torch.Tensor):
        if key is not None and key == host_key:
            return value
        strided = value.layout is p.layout is torch.strided
        if strided and value.shape == p.shape and value.stride() != p.stride():
            return torch.empty_like(p, dtype=value.dtype, requires_grad=False).copy_(value)
        return value.to(p.device)
    if isinstance(value, dict):
        return {name: _beside(item, p, host_key, name) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_beside(item, p, host_key, key) for item in value)
    return value


def _take(optimizer, given):
    """Takes exactly what the root has, in the groups and the state that are there.

    load_state_dict() would make others, which a scheduler made before wrapping never sees, and give
    each tensor the parameter's dtype.
    """
    owners = {}  # by the root's numbers: parameters and their groups
    for group, its in zip(optimizer.param_groups, given["param_groups"], strict=True):
        owners.update(zip(its["params"], ((p, group) for p in group["params"]), strict=True))
        for key in group.keys() - its.keys() - {"param_names"}:
            del group[key]
        for key, value in its.items():
            before = group.get(key)
            if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
                value = value.to(before.device)
            if key != "params":
                group[key] = value
    state = {}
    for key, value in given["state"].items():
        if key in owners:
            key, group = owners[key]
            # torch's optimizers count steps in host memory, unless a kernel of the device does
            on_device = group.get("fused") or group.get("capturable")
            value = _beside(value, key, None if on_device else "step")
        state[key] = value
    optimizer.state.clear()
    optimizer.state.update(state)


def broadcast_optimizer_state(optimizer, root_rank, model=None, process_set=global_process_set):
    """Gives every rank the root's optimizer state: options such as the learning rate, and tensors.

    The state may be empty or partly there on any rank: what the root has is what all have after.
    Where it is empty, gradients become zeros. If the root's is, all ranks call step() with zeros,
    and what the root's makes of it is the state.

    It is made of tensors and plain data: numbers, texts, lists, tuples and dicts. Nothing of it is
    pickled; broadcast_object() is for other states. All have it exactly, in the parameter groups
    that they had; only a load_state_dict() of the optimizer's own class, or hooks of it, are called
    to take it.

    `model`: the optimizer's. The zeros of its sparse embeddings are sparse then, for SGD and
    Adagrad, and so are moments that come of them; without it only those of SparseAdam are.
    """
    team = team_of(process_set)
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ValueError(
            f"the model of broadcast_optimizer_state() is a torch.nn.Module, not "
            f"{type(model).__name__}"
        )
    if not hasattr(optimizer, "state_dict") or not hasattr(optimizer, "param_groups"):
        raise ValueError(
            f"broadcast_optimizer_state() needs an optimizer, not {type(optimizer).__name__}"
        )
    is_root = team.rank == team.place(root_rank)
    name = "optimizer_state"
    empty = _compare(team, optimizer, root_rank, name)
    _begin_state(optimizer, _sparse_tables(model), *empty, is_root)
    mine = optimizer.state_dict() if is_root else None
    whole = broadcast_state(verbs, mine, root_rank, name, _State(), process_set)
    if is_root:
        return
    if not _takes_plainly(optimizer):
        optimizer.load_state_dict(whole)
        return
    if isinstance(optimizer, _DistributedOptimizer):
        optimizer._forget_step()
    _take(optimizer, whole)
