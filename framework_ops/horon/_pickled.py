# SPDX-License-Identifier: Apache-2.0
"""Objects of any size: pickled by the application's own ranks for each other.

The runtime never unpickles anything; what arrives here was sent by the same script on another
authenticated rank, through an ordinary broadcast or allgather of bytes.
"""

import pickle
from array import array

from horon import _horon
from horon._world import auto_name, check_process_set, context

try:  # functions and classes of a script's __main__ pickle only this way
    import cloudpickle
except ImportError:
    cloudpickle = pickle


def _broadcast_bytes(ctx, name, buffer, root_rank):
    ctx.submit(_horon.BROADCAST, name, buffer, buffer, 0, root_rank).wait()


def broadcast_object(obj, root_rank=0, name=None, process_set=None):
    """Gives every rank the root's object. Returns it (on the root, `obj` itself)."""
    check_process_set(process_set)
    ctx = context()
    name = f"broadcast_object.{name}" if name else auto_name("broadcast_object")
    is_root = ctx.rank == root_rank
    data = bytearray(cloudpickle.dumps(obj)) if is_root else None
    size = array("q", [len(data) if is_root else 0])
    _broadcast_bytes(ctx, name + ".size", size, root_rank)
    if not is_root:
        data = _horon.Array((size[0],), _horon.DTYPES["uint8"])
    _broadcast_bytes(ctx, name + ".data", data, root_rank)
    return obj if is_root else pickle.loads(memoryview(data))


def allgather_object(obj, name=None, process_set=None):
    """Returns the list of all ranks' objects, in rank order."""
    check_process_set(process_set)
    name = f"allgather_object.{name}" if name else auto_name("allgather_object")
    data = cloudpickle.dumps(obj)
    request = context().submit(_horon.ALLGATHER, name, data, None)
    request.wait()
    output, rows = request.output()
    view = memoryview(output)
    objects = []
    for count in rows:
        objects.append(pickle.loads(view[:count]))
        view = view[count:]
    return objects
