"""blinkrun for PyTorch: Horovod's vocabulary over packed spanning trees.

    import blinkrun.torch as blink

    blink.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * blink.size())
    optimizer = blink.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    blink.broadcast_parameters(model.state_dict(), root_rank=0)
    blink.broadcast_optimizer_state(optimizer, root_rank=0)

Names, order of arguments and defaults are those of ``horovod.torch`` 0.28.1. Collectives are known
by their names: ranks may call them in any order and from several threads. What a rank waits for is
bounded by the deadline given to `init`.
"""

try:
    import torch
except ModuleNotFoundError as err:
    if err.name != "torch":
        raise
    text = "blinkrun.torch needs torch, which is not installed; pip install 'blinkrun[torch]'"
    raise ModuleNotFoundError(text, name="torch") from None

from blinkrun import (
    is_initialized,
    local_device,
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
from blinkrun.adapter.objects import (
    allgather_object,
    broadcast_object,
)
from blinkrun.adapter.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from blinkrun.adapter.where import (
    pass_over,
)
from blinkrun.errors import (
    CollectiveError as HorovodInternalError,
)
from blinkrun.torch.compression import (
    Compression,
)
from blinkrun.torch.ops import (
    Adasum,
    Average,
    Handle,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from blinkrun.torch.optimizer import (
    DistributedOptimizer,
)
from blinkrun.torch.sparse import (
    sparse_allreduce_async,
)
from blinkrun.torch.state import (
    broadcast_optimizer_state,
    broadcast_parameters,
)
from blinkrun.torch.sync_batch_norm import (
    SyncBatchNorm,
)

pass_over(__file__, torch.__file__)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Handle",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_device",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
