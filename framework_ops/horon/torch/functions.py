# SPDX-License-Identifier: Apache-2.0
"""Making all ranks start alike: parameters, optimizer state, objects."""

import torch

from horon._pickled import allgather_object, broadcast_object
from horon._world import auto_name, check_process_set, global_process_set, rank
from horon.torch.ops import broadcast_async_

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def _named(params, name):
    """-> [(name, tensor), ...]; raises before anything has begun if one is no tensor."""
    if isinstance(params, torch.nn.Module):
        raise ValueError("broadcast_parameters() needs parameters: pass model.state_dict()")
    if isinstance(params, torch.optim.Optimizer):
        raise ValueError("broadcast_optimizer_state() is for optimizers")
    if not hasattr(params, "__iter__") or isinstance(params, torch.Tensor):
        raise ValueError(
            f"parameters cannot be broadcast from an object of type {type(params).__name__}: "
            "pass model.state_dict() or model.named_parameters()"
        )
    if hasattr(params, "items"):
        named = sorted(params.items())
    else:
        named = [p if isinstance(p, tuple) else (f"{name}.{i}", p) for i, p in enumerate(params)]
    named = [(key, p) for key, p in named if p is not None]
    for key, p in named:
        if not isinstance(p, torch.Tensor):
            raise ValueError(
                f"parameter {key} is not a tensor but {type(p).__name__}; "
                "use broadcast_object() for it"
            )
    return named


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Gives every rank the root's parameters, in place.

    `params`: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`.
    """
    name = auto_name("parameters")  # of those that have none
    check_process_set(process_set)
    handles = [broadcast_async_(p, root_rank, key) for key, p in _named(params, name)]
    for handle in handles:
        handle.wait()


class _TensorAt:
    """Stands for a tensor in a state that travels: which one, and how to make room for it."""

    def __init__(self, index, tensor):
        self.index = index
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device_type = tensor.device.type

    def make(self):
        return torch.empty(self.shape, dtype=self.dtype)


def _take_out(value, tensors):
    """A copy of nested containers with each tensor replaced; the tensors are appended to a list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TensorAt(len(tensors) - 1, value)
    if isinstance(value, dict):
        return {key: _take_out(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(item, tensors) for item in value)
    return value


def _put_in(value, tensors):
    if isinstance(value, _TensorAt):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _put_in(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_in(item, tensors) for item in value)
    return value


def _find_places(value, places):
    if isinstance(value, _TensorAt):
        places.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _find_places(item, places)
    elif type(value) in (list, tuple):
        for item in value:
            _find_places(item, places)


def broadcast_optimizer_state(optimizer, root_rank, process_set=global_process_set):
    """Gives every rank the root's optimizer state: options such as the learning rate, and tensors.

    The state may be empty or partly there on any rank: what the root has is what all have after.
    """
    check_process_set(process_set)
    if not hasattr(optimizer, "state_dict") or not hasattr(optimizer, "param_groups"):
        raise ValueError(
            f"broadcast_optimizer_state() needs an optimizer, not {type(optimizer).__name__}"
        )
    is_root = rank() == root_rank
    tensors = []
    skeleton = _take_out(optimizer.state_dict(), tensors) if is_root else None
    skeleton = broadcast_object(skeleton, root_rank, "optimizer_state")
    if not is_root:
        places = []
        _find_places(skeleton, places)
        tensors = [place.make() for place in places]
    handles = [
        broadcast_async_(tensor, root_rank, f"optimizer_state.{i}")
        for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        handle.wait()
    if not is_root:
        optimizer.load_state_dict(_put_in(skeleton, tensors))
