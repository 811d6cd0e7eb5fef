"""blinkrun for TensorFlow and Keras: Horovod's vocabulary over packed spanning trees.

    import blinkrun.tf as blink

    blink.init()
    blink.broadcast_variables(model.variables, root_rank=0)
    with tf.GradientTape() as tape:
        loss = ...
    tape = blink.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)

For ``model.fit`` see `blinkrun.tf.keras`. Names, order of arguments and defaults are those of
``horovod.tensorflow`` 0.28.1. Collectives are known by their names: ranks may call them in any
order and from several threads. What a rank waits for is bounded by the deadline given to `init`.

Importing this package imports no TensorFlow: what needs it is loaded when it is first named.
"""

import importlib
from typing import TYPE_CHECKING, Any

from blinkrun import (
    is_initialized,
)
from blinkrun.adapter.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from blinkrun.adapter.job import (
    cross_rank,
    cross_size,
    is_homogeneous,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from blinkrun.adapter.operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from blinkrun.adapter.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from blinkrun.adapter.where import pass_over
from blinkrun.tf import versions
from blinkrun.tf.data import (
    shard,
)
from blinkrun.tf.job import (
    init,
)

if TYPE_CHECKING:
    from blinkrun.tf.compression import (
        Compression,
    )
    from blinkrun.tf.errors import (
        HorovodInternalError,
    )
    from blinkrun.tf.functions import (
        BroadcastGlobalVariablesHook,
        allgather_object,
        broadcast_global_variables,
        broadcast_object,
        broadcast_object_fn,
        broadcast_variables,
    )
    from blinkrun.tf.joining import (
        barrier,
        join,
    )
    from blinkrun.tf.ops import (
        allgather,
        allreduce,
        alltoall,
        broadcast,
        broadcast_,
        grouped_allgather,
        grouped_allreduce,
        grouped_reducescatter,
        reducescatter,
    )
    from blinkrun.tf.optimizer import (
        DistributedOptimizer,
    )
    from blinkrun.tf.sizes import (
        local_rank_op,
        local_size_op,
        process_set_included_op,
        rank_op,
        size_op,
    )
    from blinkrun.tf.sync_batch_norm import (
        SyncBatchNormalization,
    )
    from blinkrun.tf.tape import (
        DistributedGradientTape,
        PartialDistributedGradientTape,
    )

ELASTIC = "blinkrun.tf.elastic is absent: elastic jobs are a later part of blinkrun"

# Name -> module, for what needs TensorFlow.
_PLACES = {
    "BroadcastGlobalVariablesHook": "blinkrun.tf.functions",
    "Compression": "blinkrun.tf.compression",
    "DistributedGradientTape": "blinkrun.tf.tape",
    "DistributedOptimizer": "blinkrun.tf.optimizer",
    "HorovodInternalError": "blinkrun.tf.errors",
    "PartialDistributedGradientTape": "blinkrun.tf.tape",
    "SyncBatchNormalization": "blinkrun.tf.sync_batch_norm",
    "allgather": "blinkrun.tf.ops",
    "allgather_object": "blinkrun.tf.functions",
    "allreduce": "blinkrun.tf.ops",
    "alltoall": "blinkrun.tf.ops",
    "barrier": "blinkrun.tf.joining",
    "broadcast": "blinkrun.tf.ops",
    "broadcast_": "blinkrun.tf.ops",
    "broadcast_global_variables": "blinkrun.tf.functions",
    "broadcast_object": "blinkrun.tf.functions",
    "broadcast_object_fn": "blinkrun.tf.functions",
    "broadcast_variables": "blinkrun.tf.functions",
    "grouped_allgather": "blinkrun.tf.ops",
    "grouped_allreduce": "blinkrun.tf.ops",
    "grouped_reducescatter": "blinkrun.tf.ops",
    "join": "blinkrun.tf.joining",
    "local_rank_op": "blinkrun.tf.sizes",
    "local_size_op": "blinkrun.tf.sizes",
    "process_set_included_op": "blinkrun.tf.sizes",
    "rank_op": "blinkrun.tf.sizes",
    "reducescatter": "blinkrun.tf.ops",
    "size_op": "blinkrun.tf.sizes",
}

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shard",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise AttributeError(ELASTIC)
    if name == "keras":
        return importlib.import_module(f"{__name__}.keras")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    versions.check_tensorflow()
    value = getattr(importlib.import_module(place), name)
    globals()[name] = value  # the next look-up finds it
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


pass_over(__file__, *versions.folders())
if versions.is_legacy() or versions.keras_backend() == "tensorflow":
    versions.check_tensorflow()
