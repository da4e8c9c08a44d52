# SPDX-License-Identifier: Apache-2.0
"""How a torch tensor gets into horon and a result back.

A contiguous tensor in host memory is used where it lies: the extension reads its address through
DLPack's exchange API, or is given data_ptr() by torch versions without it. Any other tensor
(strided, conjugated, on a device) is staged through a contiguous host copy, in and out.
"""

import torch

from horon import _horon
from horon._staging import Handle, Staged
from horon._verbs import ALLREDUCE, Verbs

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

# Newer tensors tell their address through DLPack's exchange API, at a tenth of data_ptr()'s cost
_HAS_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")

try:  # tells autograd that a tensor was changed behind its back; torch 2.1
    from torch.autograd.graph import increment_version as increment_version
except ImportError:

    def increment_version(tensor):
        pass


# What keeps a tensor's elements where they are, also if it is given others (tensor.data = ...)
memory_of = getattr(torch.Tensor, "untyped_storage", torch.Tensor.storage)  # torch 2.0


def no_view(tensor):
    """-> a tensor over the same memory that autograd knows as nobody's view: what horon returns may
    be changed in place, whatever the mode that it was made in"""
    own = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return own.set_(memory_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())


def gradient_dtype(parameter):
    """The dtype of its gradients, which it may have set to another one than its own; torch 2.10."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def _is_plain(tensor):
    """Whether its elements lie in host memory one after the other, as they read."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def _host_copy(tensor):
    return tensor.resolve_conj().resolve_neg().to("cpu").contiguous()


def dtype_name(dtype):
    """What another rank knows a dtype by."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name):
    if name not in _NAMED:
        raise ValueError(f"tensors of a dtype {name!r} do not travel")
    return _NAMED[name]


def _shares_elements(tensor):
    """Whether several of its elements lie at one address, as expand() has it."""
    return tensor.numel() > 0 and any(
        stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )


def describe(value):
    if isinstance(value, torch.Tensor):
        return f"a tensor of layout {value.layout}"
    return type(value).__name__


def check(tensor, verb):
    """-> a tensor over the same elements that autograd does not see, and that no other thread can
    give others"""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch.Tensor is needed, not {describe(tensor)}")
    if tensor.is_nested:
        raise ValueError("a dense tensor is needed, not a nested one: unbind() gives its parts")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"a dense tensor is needed, not {describe(tensor)}: "
            "sparse_allreduce_async() adds sparse COO tensors, to_dense() makes dense ones"
        )
    if tensor.is_meta:
        raise ValueError("a tensor with elements is needed, not one on the meta device")
    if tensor.dtype not in _DTYPES and (verb.reduces or tensor.dtype not in _LENT):
        raise ValueError(f"tensors of {tensor.dtype} cannot be {verb.done}")
    return tensor.detach()


def _check_in_place(tensor):
    if _shares_elements(tensor):
        raise ValueError(
            "elements of the tensor share an address, as expand() has it, so it cannot be "
            "changed in place: clone() makes a tensor that can"
        )


class _Tensor(Staged):
    __slots__ = ("given", "host", "output", "plain")

    def __init__(self, tensor, verb, in_place):
        self.given = tensor
        self.plain = plain = check(tensor, verb)
        if in_place:
            _check_in_place(plain)
        self.host = host = plain if _is_plain(plain) else _host_copy(plain)
        self.keep = memory_of(host)
        self.dtype = None
        is_row = verb.gathers and not verb.divides and plain.dim() == 0
        self.shape = (1,) if is_row else None
        self.source = self._lend(host)
        if in_place:
            increment_version(tensor)

    def _lend(self, tensor):
        """-> the plain tensor as the extension takes it"""
        lent = _LENT.get(tensor.dtype)
        if lent is not None:
            tensor = tensor.view(lent)
        if _HAS_EXCHANGE:
            return tensor
        self.dtype = _DTYPES[tensor.dtype]
        self.shape = self.shape or tuple(tensor.shape)
        self.keep = (self.keep, tensor)
        return tensor.data_ptr()

    def dimensions(self):
        return tuple(self.host.shape)

    def make_room(self):
        self.output = torch.empty_like(self.host)
        self.target = self._lend(self.output)

    def make_room_for(self, shape):
        self.target = _horon.Array(shape, _DTYPES[self.host.dtype])
        self._look_at(self.target)

    def result(self):
        """Where the input is."""
        return self.output if self.plain.is_cpu else self.output.to(self.plain.device)

    def _look_at(self, array):
        if array.nbytes == 0:
            self.output = torch.empty(array.shape, dtype=self.host.dtype, device="cpu")
        else:
            flat = torch.frombuffer(array, dtype=self.host.dtype)
            self.output = no_view(flat.reshape(array.shape))

    def gathered(self, array):
        self._look_at(array)
        return self.result()

    def write_back(self):
        if self.host is not self.plain:
            self.plain.copy_(self.host)
        return self.given


def _stage_summand(tensor, in_place):
    plain = check(tensor, ALLREDUCE)
    if not plain.is_floating_point():
        raise ValueError(f"Adasum takes floating-point tensors, not {plain.dtype}")
    if in_place:
        _check_in_place(plain)
    shape = (1, *plain.shape) if plain.dim() < _horon.NDIM_MAX else (1, -1)

    def finish(rows, combine):
        """16 bits are computed with in 32, and rounded once."""
        wide = rows if rows.dtype == torch.float64 else rows.float()
        total = combine([row.reshape(-1) for row in wide], double=torch.Tensor.double)
        result = total.to(rows.dtype).view(plain.shape)
        if not in_place:
            return no_view(result)
        plain.copy_(result)
        return tensor

    return plain.reshape(shape), finish


class _TorchVerbs(Verbs):
    joins_as_horovod = True

    def __init__(self, *args):
        super().__init__(*args)
        self.plain = _horon.PlainTensors(
            types=(torch.Tensor, torch.nn.Parameter),
            is_marked=torch.Tensor.is_neg,
            memory_of=memory_of,
            make_room=None if self.is_in_place else torch.empty_like,
            changed=increment_version,
        )

    def begin(
        self, team, verb, name, tensor, op=0, root=0, prescale=1.0, postscale=1.0, splits=None
    ):
        """The quick way for a tensor that the extension takes as it is: nothing is staged."""
        if verb.like_input:
            handle = self.plain.begin(team, verb.code, name, tensor, op, root, prescale, postscale)
            if handle is not None:  # whose end is all that it needs, but for some verbs
                return (
                    handle if not verb.needs_all else self._watched_plain(handle, team, verb, name)
                )
        return super().begin(team, verb, name, tensor, op, root, prescale, postscale, splits)

    def _watched_plain(self, handle, team, verb, name):
        whole = Handle(team, None, lambda requests: requests[0].wait(), [handle])
        return self.watched(whole, team, verb, (name,))


def _integers(rows, splits):
    """A tensor like that of the splits; more than 32 bits only for numbers that need them."""
    dtype = torch.int32 if max(rows) < 2**31 else torch.int64
    device = splits.device if isinstance(splits, torch.Tensor) else "cpu"
    return torch.tensor(rows, dtype=dtype, device=device)


verbs = _TorchVerbs(_Tensor, _integers, _stage_summand)
