"""The interface of `horovod.keras` 0.28.1, on blinkrun.

It is that of `horovod.tensorflow.keras`, but for the order of some arguments.
"""

from typing import Any

from blinkrun.adapter.operations import Adasum, Average, Sum
from blinkrun.tf import keras as _keras
from horovod.common.names import taken_from
from horovod.keras import callbacks, elastic
from horovod.tensorflow import keras as _tf_keras
from horovod.tensorflow.keras import init

__all__ = [
    "Adasum",
    "DistributedOptimizer",
    "allreduce",
    "callbacks",
    "elastic",
    "init",
]
__all__ += _tf_keras.__all__
__all__ += ["PartialDistributedOptimizer"]

__getattr__ = taken_from(__name__, _keras, __all__)


def DistributedOptimizer(  # noqa: N802, PLR0913, PLR0917 - Horovod's names and order
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """Return `optimizer` made distributed: see `blinkrun.tf.keras.DistributedOptimizer`."""
    return _keras.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression or _keras.Compression.none,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        num_groups=num_groups,
        groups=groups,
    )


def allreduce(  # noqa: PLR0913, PLR0917 - Horovod's order
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
) -> Any:
    """Return a value reduced over all ranks, averaged unless something else is said."""
    return _keras.allreduce(
        value,
        name=name,
        average=None,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=(Average if average else Sum) if op is None else op,
        compression=compression or _keras.Compression.none,
    )
