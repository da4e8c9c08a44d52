# SPDX-License-Identifier: Apache-2.0
"""Making all ranks start alike: parameters, optimizer state, objects."""

import torch

from horon._pickled import allgather_object, broadcast_object
from horon._world import check_process_set, global_process_set, rank
from horon.torch.ops import broadcast_async_

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def _named(params):
    if hasattr(params, "items"):
        return sorted(params.items())
    return [p if isinstance(p, tuple) else (None, p) for p in params]


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Gives every rank the root's parameters, in place.

    `params`: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`.
    """
    check_process_set(process_set)
    if not hasattr(params, "__iter__") or isinstance(params, torch.Tensor):
        raise ValueError(f"invalid params of type: {type(params)}")
    handles = []
    for name, p in _named(params):
        if p is None:
            continue
        if not isinstance(p, torch.Tensor):
            raise ValueError(
                f"parameter {name} is not a tensor but {type(p).__name__}; "
                "use broadcast_object() for it"
            )
        handles.append(broadcast_async_(p, root_rank, name))
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
