"""Batch norm over all ranks by Horovod's name."""

from blinkrun.torch import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
