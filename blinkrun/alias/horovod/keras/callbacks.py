"""Callbacks by Horovod's names."""

from horovod.common.names import taken_from
from horovod.tensorflow.keras import callbacks as _callbacks

__all__ = list(_callbacks.__all__)

__getattr__ = taken_from(__name__, _callbacks, __all__)
