"""blinkrun for PyTorch: Horovod's vocabulary over packed spanning trees.

    import blinkrun.torch as blink

    blink.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * blink.size())
    optimizer = blink.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    blink.broadcast_parameters(model.state_dict(), root_rank=0)
    blink.broadcast_optimizer_state(optimizer, root_rank=0)

Every function but `rank`, `size` and their sisters is a collective: all ranks call it, in the same
order. What a rank waits for is bounded by the deadline given to `init`.
"""

from blinkrun import (
    init,
    is_initialized,
    shutdown,
)
from blinkrun.torch.ops import (
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
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    cross_rank,
    cross_size,
    local_rank,
    local_size,
    poll,
    rank,
    size,
    synchronize,
)
from blinkrun.torch.optimizer import DistributedOptimizer
from blinkrun.torch.state import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = [
    "Average",
    "DistributedOptimizer",
    "Handle",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
