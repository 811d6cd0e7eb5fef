"""Data-parallel Keras: ``model.fit`` on several processes.

    import blinkrun.tf.keras as blink

    blink.init()
    model.compile(blink.DistributedOptimizer(keras.optimizers.Adam(1e-3 * blink.size())), loss=...)
    model.fit(..., callbacks=[blink.callbacks.BroadcastGlobalVariablesCallback(0)])

It works with Keras 3 on its backends tensorflow and torch, and with tf_keras. Names, order of
arguments and defaults are those of ``horovod.tensorflow.keras`` 0.28.1.

Importing it imports no framework. What needs Keras is loaded when it is first named; on the torch
backend no TensorFlow is needed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from blinkrun import is_initialized
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
from blinkrun.adapter.objects import allgather_object, broadcast_object
from blinkrun.adapter.operations import Average, Max, Min, Product, Sum
from blinkrun.adapter.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from blinkrun.adapter.waiting import barrier, join
from blinkrun.adapter.where import pass_over
from blinkrun.tf import versions

if TYPE_CHECKING:
    from blinkrun.tf.data import shard
    from blinkrun.tf.keras import callbacks
    from blinkrun.tf.keras.compression import Compression
    from blinkrun.tf.keras.models import load_model
    from blinkrun.tf.keras.optimizer import (
        DistributedOptimizer,
        PartialDistributedOptimizer,
        is_distributed,
    )
    from blinkrun.tf.keras.values import (
        allgather,
        allreduce,
        broadcast,
        broadcast_global_variables,
        broadcast_variables,
        reducescatter,
    )

# Name -> module, for what needs Keras.
_PLACES = {
    "Compression": "compression",
    "DistributedOptimizer": "optimizer",
    "PartialDistributedOptimizer": "optimizer",
    "allgather": "values",
    "allreduce": "values",
    "broadcast": "values",
    "broadcast_global_variables": "values",
    "broadcast_variables": "values",
    "is_distributed": "optimizer",
    "load_model": "models",
    "reducescatter": "values",
    "shard": ".data",
}

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_distributed",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise AttributeError(
            f"{__name__}.elastic is absent: elastic jobs are a later part of blinkrun"
        )
    if name != "callbacks" and name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    versions.check_keras()
    if versions.is_legacy() or versions.keras_backend() == "tensorflow":
        versions.check_tensorflow()
    if name == "callbacks":
        return importlib.import_module(f"{__name__}.callbacks")
    value = getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = value  # the next look-up finds it
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


pass_over(__file__)
