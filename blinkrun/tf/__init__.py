"""blinkrun for TensorFlow and Keras: Horovod's vocabulary over packed spanning trees."""

from blinkrun import is_initialized
from blinkrun.adapter.job import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)

__all__ = [
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
