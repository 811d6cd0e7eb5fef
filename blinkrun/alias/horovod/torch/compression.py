"""Compression by Horovod's names."""

from blinkrun.torch import Compression

NoneCompressor = Compression.none
FP16Compressor = Compression.fp16

__all__ = ["Compression", "FP16Compressor", "NoneCompressor"]
