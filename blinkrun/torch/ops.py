"""All collectives on torch tensors under one name; see the modules that they come from.

Tensors live on the CPU or on this rank's CUDA device; there a call comes after what its stream
holds, and before what waits for it (`blinkrun.torch.devices`). An out-of-place call takes any
layout. An in-place call on a tensor that is not contiguous works on a copy that is written back
when it completes.
"""

from blinkrun.adapter.job import (
    cross_rank,
    cross_size,
    is_homogeneous,
    local_rank,
    local_size,
    rank,
    size,
)
from blinkrun.adapter.operations import Adasum, Average, Max, Min, Product, Sum
from blinkrun.adapter.waiting import barrier, join
from blinkrun.torch.dtypes import DTYPES
from blinkrun.torch.ops_gather import (
    allgather,
    allgather_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from blinkrun.torch.ops_handle import Handle, poll, synchronize
from blinkrun.torch.ops_reduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from blinkrun.torch.ops_scatter import (
    alltoall,
    alltoall_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)

__all__ = [
    "DTYPES",
    "Adasum",
    "Average",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
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
    "cross_rank",
    "cross_size",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "is_homogeneous",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "size",
    "synchronize",
]
