# SPDX-License-Identifier: Apache-2.0
"""horon for PyTorch, with Horovod's names and meanings: `import horon.torch as hvd`."""

from importlib import import_module

from horon import Array, Context, Request, __version__, _world, prepare
from horon._world import *  # noqa: F403
from horon.exceptions import HoronInternalError, HorovodInternalError
from horon.torch import functions, mpi_ops, ops
from horon.torch.compression import Compression
from horon.torch.functions import *  # noqa: F403
from horon.torch.mpi_ops import check_extension
from horon.torch.ops import *  # noqa: F403
from horon.torch.optimizer import DistributedOptimizer
from horon.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    *_world.__all__,
    *functions.__all__,
    *ops.__all__,
    "Array",
    "Compression",
    "Context",
    "DistributedOptimizer",
    "HoronInternalError",
    "HorovodInternalError",
    "Request",
    "SyncBatchNorm",
    "__version__",
    "check_extension",
    "mpi_ops",
    "prepare",
]


def __getattr__(name):
    text = f"module {__name__!r} has no attribute {name!r}"
    if name == "elastic":
        try:
            return import_module("horon.torch.elastic")
        except ImportError as error:
            text = str(error)
    raise AttributeError(text, name=name)
