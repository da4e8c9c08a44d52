# SPDX-License-Identifier: Apache-2.0
"""horon: collective communication by name, for numpy arrays, buffers and DLPack tensors.

    import horon
    horon.init()
    mean = horon.allreduce(array, name="mean")

`horon.torch` has the same for PyTorch, with autograd and a distributed optimizer.
"""

from horon import _arrays, _world
from horon._arrays import *  # noqa: F403
from horon._horon import Array, Context, Request
from horon._horon import version as _version
from horon._objects import allgather_object, broadcast_object
from horon._requests import prepare
from horon._staging import Handle, poll, synchronize
from horon._verbs import barrier, join
from horon._world import *  # noqa: F403
from horon.exceptions import HoronInternalError, HorovodInternalError

__version__ = _version()

__all__ = [
    *_arrays.__all__,
    *_world.__all__,
    "Array",
    "Context",
    "Handle",
    "HoronInternalError",
    "HorovodInternalError",
    "Request",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "join",
    "poll",
    "prepare",
    "synchronize",
]
