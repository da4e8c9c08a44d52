# SPDX-License-Identifier: Apache-2.0
"""How a torch tensor gets into horon and a result back: staging and handles.

A contiguous tensor in host memory is used where it lies: the extension reads its address through
DLPack's exchange API, or is given data_ptr() by torch versions without it. Any other tensor
(strided, conjugated, on a device) is staged through a contiguous host copy, in and out.

A Handle owns what the operation touches until it has ended.
"""

import torch

from horon import _horon
from horon._world import context

_TORCH_NAMES = {
    "float8_e4m3": "float8_e4m3fn",
}
_DTYPES = {}
for _name, _code in _horon.DTYPES.items():
    _dtype = getattr(torch, _TORCH_NAMES.get(_name, _name), None)
    if _dtype is not None:
        _DTYPES[_dtype] = _code

# Types that horon has no name for move as others of their width; they cannot be reduced
_LENT = {}
for _name, _dtype in (
    ("complex32", torch.int32),
    ("float8_e4m3fnuz", torch.uint8),
    ("float8_e5m2fnuz", torch.uint8),
    ("float8_e8m0fnu", torch.uint8),
    ("float4_e2m1fn_x2", torch.uint8),
):
    if hasattr(torch, _name):
        _LENT[getattr(torch, _name)] = _dtype
_NAMED = {str(dtype).removeprefix("torch."): dtype for dtype in (*_DTYPES, *_LENT)}
_DONE = {_horon.ALLREDUCE: "reduced", _horon.ALLGATHER: "gathered", _horon.BROADCAST: "broadcast"}

# Newer tensors tell their address through DLPack's exchange API, at a tenth of data_ptr()'s cost
_HAS_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

try:  # tells autograd that a tensor was changed behind its back; torch 2.1
    from torch.autograd.graph import increment_version as increment_version
except ImportError:

    def increment_version(tensor):
        pass


class Handle:
    """An operation that was begun: see poll() and synchronize()."""

    __slots__ = ("_finish", "_request", "_result")

    def __init__(self, request, result, finish=None):
        self._request = request
        self._result = result
        self._finish = finish

    def poll(self):
        """Whether it has ended, so that wait() would not wait."""
        return self._request.test()

    def wait(self, timeout=None):
        """Waits; returns the result, or raises why the operation failed."""
        self._request.wait(timeout)
        if self._finish is not None:
            self._result = self._finish(self._result)
            self._finish = None
        return self._result


class RequestGroup:
    """Requests that are waited for as one."""

    __slots__ = ("_requests",)

    def __init__(self, requests):
        self._requests = requests

    def test(self):
        return all(request.test() for request in self._requests)

    def wait(self, timeout):
        _horon.wait_all(self._requests, timeout)


def _is_plain(tensor):
    """Whether its elements lie in host memory one after the other, as they read."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def dtype_name(dtype):
    """What another rank knows a dtype by."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name):
    if name not in _NAMED:
        raise ValueError(f"tensors of a dtype {name!r} do not travel")
    return _NAMED[name]


def describe(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of layout {value.layout}"
    return type(value).__name__


def check(tensor, verb=_horon.ALLREDUCE):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch.Tensor is needed, not {describe(tensor)}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"a dense tensor is needed, not {describe(tensor)}: "
            "sparse_allreduce_async() adds sparse COO tensors, to_dense() makes dense ones"
        )
    if tensor.dtype not in _DTYPES and (verb == _horon.ALLREDUCE or tensor.dtype not in _LENT):
        raise ValueError(f"tensors of {tensor.dtype} cannot be {_DONE[verb]}")
    return tensor.detach() if tensor.requires_grad else tensor


def stage(tensor):
    """A contiguous host copy of any dense tensor, or the tensor itself if it is one."""
    if _is_plain(tensor):
        return tensor
    return tensor.resolve_conj().resolve_neg().to("cpu").contiguous()


def fresh(tensor):
    """Uninitialised memory for a result that is like the plain `tensor`."""
    return torch.empty_like(tensor)


def home(result, tensor):
    """Moves a result in host memory to where `tensor` is."""
    return result if tensor.is_cpu else result.to(tensor.device)


def arguments(verb, name, source, output, op=0, root=0, prescale=1.0, postscale=1.0):
    """What Context.submit() takes. source and output are plain; output None: horon's own memory."""
    lent = _LENT.get(source.dtype)
    if lent is not None:
        source = source.view(lent)
        output = None if output is None else output.view(lent)
    if _HAS_EXCHANGE:
        return (verb, name, source, output, op, root, prescale, postscale)
    return (
        verb,
        name,
        source.data_ptr(),
        None if output is None else output.data_ptr(),
        op,
        root,
        prescale,
        postscale,
        0,
        _DTYPES[source.dtype],
        tuple(source.shape),
        (source, output),
    )


def begin_out(verb, name, tensor, *numbers):
    tensor = check(tensor, verb)
    source = stage(tensor)
    output = fresh(source)
    request = context().submit(*arguments(verb, name, source, output, *numbers))
    if source is tensor:
        return Handle(request, output)
    return Handle(request, output, lambda result: home(result, tensor))


def begin_in(verb, name, tensor, *numbers):
    if _HAS_EXCHANGE and type(tensor) in _PLAIN_TYPES and not (tensor.is_neg() or tensor.is_conj()):
        request = context().submit_plain(verb, name, tensor, tensor, *numbers)
        if request is not None:
            increment_version(tensor)
            return Handle(request, tensor)
    plain = check(tensor, verb)
    staged = stage(plain)
    request = context().submit(*arguments(verb, name, staged, staged, *numbers))
    increment_version(tensor)
    if staged is plain:
        return Handle(request, tensor)

    def write_back(result):
        plain.copy_(staged)
        return result

    return Handle(request, tensor, write_back)


def submit_group(verb, names, tensors, outputs, *numbers):
    return context().submit_group(
        [
            arguments(verb, name, tensor, output, *numbers)
            for name, tensor, output in zip(names, tensors, outputs, strict=True)
        ]
    )
