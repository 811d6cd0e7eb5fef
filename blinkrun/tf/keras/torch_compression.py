"""Smaller types for what travels, for torch tensors."""

from __future__ import annotations

import torch


class NoneCompressor:
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return `tensor` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        """Return `tensor` itself."""
        return tensor


class _Narrow:
    """Converts floating-point tensors wider than `dtype` to it; others stay as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return `tensor` in the 16-bit type, and its own dtype; None if it was left alone."""
        if not tensor.is_floating_point() or tensor.dtype.itemsize <= cls.dtype.itemsize:
            return tensor, None
        return tensor.to(cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return `tensor` in the dtype that it had."""
        return tensor if ctx is None else tensor.to(ctx)


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
