"""Batch norm over all ranks by Horovod's name."""

from blinkrun import tf as _tf
from horovod.common.names import taken_from

__all__ = ["SyncBatchNormalization"]  # noqa: F822 - looked up when it is used

__getattr__ = taken_from(__name__, _tf, __all__)
