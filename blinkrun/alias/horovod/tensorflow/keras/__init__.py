"""The interface of `horovod.tensorflow.keras` 0.28.1, on blinkrun."""

from blinkrun.tf import keras as _keras
from horovod.common.basics import starting
from horovod.common.names import taken_from
from horovod.tensorflow.keras import callbacks, elastic

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
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
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

init = starting(_keras.init)
__getattr__ = taken_from(__name__, _keras, __all__)
