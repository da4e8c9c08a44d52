# SPDX-License-Identifier: Apache-2.0
"""Horovod's name for `horon.torch.ops`, for scripts that import from it."""

from horon._world import *  # noqa: F403
from horon.torch.compression import Compression  # noqa: F401
from horon.torch.ops import *  # noqa: F403
