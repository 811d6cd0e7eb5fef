"""Smaller types for what travels: `Compression.none`, `Compression.fp16`, `Compression.bf16`."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Compressor(Protocol):
    """What a `compression=` argument must have; a class of one's own does as well."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what travels, and what `decompress` needs to know."""
        ...

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return a reduced tensor in the type that it had before `compress`."""
        ...


class NoneCompressor:
    """Leaves tensors as they are."""

    dtype: torch.dtype | None = None

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return `tensor` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        """Return `tensor` itself."""
        return tensor


class _Narrow:
    """Converts floating-point tensors to `dtype`; others stay as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Return `tensor` in the 16-bit type, and its own dtype."""
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return tensor.to(cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """Return `tensor` in the dtype that it had."""
        return tensor.to(ctx) if ctx.is_floating_point else tensor


class FP16Compressor(_Narrow):
    """Half the bytes of float32; the range ends at 65504, also for the sum over ranks."""

    dtype = torch.float16


class BF16Compressor(_Narrow):
    """Half the bytes of float32 with its range, and 8 bits of precision."""

    dtype = torch.bfloat16


class Compression:
    """The compressors that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
