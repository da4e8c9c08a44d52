# SPDX-License-Identifier: Apache-2.0
"""Horovod's name for `horon.torch.ops`, and its names for what stands elsewhere here."""

import torch

from horon import _world as _basics  # noqa: F401
from horon._world import *  # noqa: F403
from horon._world import global_process_set
from horon._world import resolve_op as handle_average_backwards_compatibility  # noqa: F401
from horon.exceptions import HorovodInternalError  # noqa: F401
from horon.torch import ops
from horon.torch.compression import Compression
from horon.torch.ops import *  # noqa: F403


def gpu_available(ext_base_name, verbose=False):
    """Whether the framework, "torch", has a GPU to compute on."""
    return torch.cuda.is_available()


def check_extension(ext_name, ext_env_var, pkg_path, *args):
    """Raises ImportError with Horovod, if a framework's extension was not built. Here one serves
    all frameworks, and without it this module would not have been imported."""


def num_rank_is_power_2(num_rank):
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


# ---- The differentiable operations, as Horovod's autograd functions: apply() ----


class HorovodAllreduce(torch.autograd.Function):
    @staticmethod
    def apply(tensor, average, name, op, prescale_factor, postscale_factor, process_set):
        scales = (prescale_factor, postscale_factor)
        return ops.allreduce(tensor, average, name, Compression.none, op, *scales, process_set)


class HorovodGroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def apply(average, name, op, prescale_factor, postscale_factor, process_set, *tensors):
        numbers = (Compression.none, op, prescale_factor, postscale_factor, process_set)
        return tuple(ops.grouped_allreduce(tensors, average, name, *numbers))


class HorovodAllgather(torch.autograd.Function):
    @staticmethod
    def apply(tensor, name, process_set=global_process_set):
        return ops.allgather(tensor, name, process_set)


class HorovodGroupedAllgather(torch.autograd.Function):
    @staticmethod
    def apply(name, process_set, *tensors):
        return tuple(ops.grouped_allgather(tensors, name, process_set))


class HorovodAlltoall(torch.autograd.Function):
    @staticmethod
    def apply(tensor, splits, name, process_set=global_process_set):
        return ops.alltoall(tensor, splits, name, process_set)


class HorovodBroadcast(torch.autograd.Function):
    @staticmethod
    def apply(tensor, root_rank, name, process_set=global_process_set):
        return ops.broadcast(tensor, root_rank, name, process_set)


class HorovodReducescatter(torch.autograd.Function):
    @staticmethod
    def apply(tensor, name, op, process_set, prescale_factor, postscale_factor):
        scales = (prescale_factor, postscale_factor)
        return ops.reducescatter(tensor, name, Compression.none, op, process_set, *scales)


class HorovodGroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def apply(name, op, process_set, prescale_factor, postscale_factor, *tensors):
        numbers = (Compression.none, op, process_set, prescale_factor, postscale_factor)
        return tuple(ops.grouped_reducescatter(tensors, name, *numbers))
