# SPDX-License-Identifier: Apache-2.0
"""Narrower types for the way between ranks."""

import torch


class Compressor:
    """compress() gives a tensor to send and a context; decompress() undoes it with that context."""

    @staticmethod
    def compress(tensor):
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class _NarrowCompressor(Compressor):
    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor):
        if tensor.is_floating_point() and tensor.element_size() > 2:
            return tensor.to(cls.wire_dtype), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_NarrowCompressor):
    """Sends wider floats as float16; they are summed in 32 bits."""

    wire_dtype = torch.float16


class BF16Compressor(_NarrowCompressor):
    """Sends wider floats as bfloat16: float32's range with 8 bits of precision."""

    wire_dtype = torch.bfloat16


def compressor(compression):
    """-> the argument itself, if it can be one"""
    if not hasattr(compression, "compress"):
        raise TypeError(f"compression has to be one like Compression.fp16, not {compression!r}")
    return compression


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
