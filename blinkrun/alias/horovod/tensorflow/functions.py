"""Variables and objects given to all ranks, by Horovod's names."""

from blinkrun import tf as _tf
from horovod.common.names import taken_from

__all__ = [  # noqa: F822 - looked up when they are used
    "allgather_object",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

__getattr__ = taken_from(__name__, _tf, __all__)
