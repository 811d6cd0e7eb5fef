"""The interface of `horovod.tensorflow` 0.28.1, on blinkrun.

Names are looked up in `blinkrun.tf` when they are used: importing this imports no TensorFlow.
"""

from blinkrun import tf as _tf
from horovod.common.util import gpu_available, split_list
from horovod.tensorflow import (
    compression,
    elastic,
    functions,
    gradient_aggregation,
    gradient_aggregation_eager,
    mpi_ops,
    sync_batch_norm,
    util,
)
from horovod.tensorflow.mpi_ops import (
    check_num_rank_power_of_2,
    handle_average_backwards_compatibility,
    init,
)
from horovod.tensorflow.util import (
    _cache,  # noqa: F401 - its tests look at it
    _executing_eagerly,  # noqa: F401
    _make_subgraph,  # noqa: F401
    refs_to_vars,
    vars_to_refs,
)

__all__ = [
    "check_num_rank_power_of_2",
    "compression",
    "elastic",
    "functions",
    "gpu_available",
    "gradient_aggregation",
    "gradient_aggregation_eager",
    "handle_average_backwards_compatibility",
    "init",
    "mpi_ops",
    "refs_to_vars",
    "split_list",
    "sync_batch_norm",
    "util",
    "vars_to_refs",
]
__all__ += _tf.__all__

__getattr__ = mpi_ops.__getattr__
