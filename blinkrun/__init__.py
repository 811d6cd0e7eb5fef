"""blinkrun: collectives over packed spanning trees, for data-parallel training.

>>> import blinkrun
>>> blinkrun.is_initialized()
False
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blinkrun.runtime import init, is_initialized, local_device, shutdown, world
from blinkrun.types import Op
from blinkrun.version import __version__

if TYPE_CHECKING:
    from blinkrun.handle import Handle

Sum = Op.SUM
Average = Op.AVERAGE
Min = Op.MIN
Max = Op.MAX
Product = Op.PRODUCT

__all__ = [
    "Average",
    "Max",
    "Min",
    "Op",
    "Product",
    "Sum",
    "__version__",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "cross_rank",
    "cross_size",
    "empty",
    "init",
    "is_initialized",
    "local_device",
    "local_rank",
    "local_size",
    "rank",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "shutdown",
    "size",
    "world",
]


def rank() -> int:
    """Return this rank, 0 to size - 1."""
    return world().rank


def size() -> int:
    """Return the number of ranks."""
    return world().size


def local_rank() -> int:
    """Return the index of this rank on its host."""
    return world().local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return world().local_size


def cross_rank() -> int:
    """Return the index of this rank's host."""
    return world().cross_rank


def cross_size() -> int:
    """Return the number of hosts."""
    return world().cross_size


def empty(shape: int | tuple[int, ...], dtype: Any = "float32") -> Any:
    """Return an uninitialised array in the arena; see `Communicator.empty`."""
    return world().empty(shape, dtype)


def allreduce(
    array: Any, op: Op = Sum, out: Any = None, *, prescale: float = 1.0, postscale: float = 1.0
) -> Any:
    """Reduce over all ranks; see `Communicator.allreduce`."""
    return world().allreduce(array, op, out, prescale=prescale, postscale=postscale)


def allreduce_async(array: Any, op: Op = Sum, out: Any = None, **scales: float) -> Handle:
    """Start `allreduce` in the background; see `Communicator.allreduce_async`."""
    return world().allreduce_async(array, op, out, **scales)


def broadcast(array: Any, root: int = 0, out: Any = None) -> Any:
    """Send `root`'s array to all ranks; see `Communicator.broadcast`."""
    return world().broadcast(array, root, out)


def broadcast_async(array: Any, root: int = 0, out: Any = None) -> Handle:
    """Start `broadcast` in the background; see `Communicator.broadcast_async`."""
    return world().broadcast_async(array, root, out)


def reduce(array: Any, root: int = 0, op: Op = Sum, out: Any = None, **scales: float) -> Any:
    """Reduce to `root`; see `Communicator.reduce`."""
    return world().reduce(array, root, op, out, **scales)


def reduce_async(
    array: Any, root: int = 0, op: Op = Sum, out: Any = None, **scales: float
) -> Handle:
    """Start `reduce` in the background; see `Communicator.reduce_async`."""
    return world().reduce_async(array, root, op, out, **scales)


def allgather(array: Any, out: Any = None) -> Any:
    """Join all ranks' arrays; see `Communicator.allgather`."""
    return world().allgather(array, out)


def allgather_async(array: Any, out: Any = None) -> Handle:
    """Start `allgather` in the background; see `Communicator.allgather_async`."""
    return world().allgather_async(array, out)


def reducescatter(array: Any, op: Op = Sum, out: Any = None, **scales: float) -> Any:
    """Reduce, and keep this rank's slice; see `Communicator.reducescatter`."""
    return world().reducescatter(array, op, out, **scales)


def reducescatter_async(array: Any, op: Op = Sum, out: Any = None, **scales: float) -> Handle:
    """Start `reducescatter` in the background; see `Communicator.reducescatter_async`."""
    return world().reducescatter_async(array, op, out, **scales)


def alltoall(array: Any, out: Any = None) -> Any:
    """Send a slice to every rank; see `Communicator.alltoall`."""
    return world().alltoall(array, out)


def alltoall_async(array: Any, out: Any = None) -> Handle:
    """Start `alltoall` in the background; see `Communicator.alltoall_async`."""
    return world().alltoall_async(array, out)


def barrier() -> None:
    """Wait for all ranks; see `Communicator.barrier`."""
    world().barrier()


def barrier_async() -> Handle:
    """Start `barrier` in the background; see `Communicator.barrier_async`."""
    return world().barrier_async()
