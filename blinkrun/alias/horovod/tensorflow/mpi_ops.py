"""The operations of `horovod.tensorflow`: those of `blinkrun.tf`."""

import importlib
from typing import Any

from blinkrun import tf as _tf
from blinkrun.adapter.operations import op_of
from horovod.common.basics import basics as _basics  # noqa: F401 - its tests look at it
from horovod.common.basics import starting
from horovod.common.names import taken_from
from horovod.common.util import gpu_available
from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2

__all__ = [
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "init",
]
__all__ += _tf.__all__

init = starting(_tf.init)
_public = taken_from(__name__, _tf, _tf.__all__)
_INNER = (
    "_allreduce",
    "_allreduce_cond",
    "_grouped_allreduce",
    "_grouped_allreduce_cond",
    "_grouped_reducescatter",
    "_reducescatter",
)


def __getattr__(name: str) -> Any:
    if name in _INNER:
        return getattr(importlib.import_module("blinkrun.tf.ops_horovod"), name)
    return _public(name)


def handle_average_backwards_compatibility(op: Any, average: bool | None) -> Any:
    """Return the operation that the arguments `op` and `average` of a collective mean together."""
    return op_of(op, average)
