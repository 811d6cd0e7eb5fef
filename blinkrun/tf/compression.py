"""Smaller types for what travels: `Compression.none`, `Compression.fp16`, `Compression.bf16`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Tensor = tf.Tensor | tf.IndexedSlices


class Compressor:
    """What a `compression=` argument must have: a class of one's own need not derive from this."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Return what travels, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Return a reduced tensor in the type that it had before `compress`."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    dtype: tf.DType | None = None

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, None]:
        """Return `tensor` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: None) -> Tensor:
        """Return `tensor` itself."""
        return tensor


class _Narrow(Compressor):
    """Converts floating-point tensors wider than `dtype` to it; others stay as they are.

    So do `tf.IndexedSlices`.
    """

    dtype: tf.DType

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, tf.DType | None]:
        """Return `tensor` in the 16-bit type, and its own dtype; None if it was left alone."""
        dtype = tensor.dtype
        is_wide = dtype.is_floating and dtype.size >= cls.dtype.size
        if isinstance(tensor, tf.IndexedSlices) or not is_wide:
            return tensor, None
        return tf.cast(tensor, cls.dtype), dtype

    @classmethod
    def decompress(cls, tensor: Tensor, ctx: tf.DType | None) -> Tensor:
        """Return `tensor` in the dtype that it had."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Narrow):
    """Half the bytes of float32; the range ends at 65504, also for the sum over ranks."""

    dtype = tf.float16


class BF16Compressor(_Narrow):
    """Half the bytes of float32 with its range, and 8 bits of precision."""

    dtype = tf.bfloat16


class Compression:
    """The compressors that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
