"""Python objects as named requests: pickled, and moved as bytes; no MPI takes part."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blinkrun.buffers import View, view
from blinkrun.engine.handle import Part
from blinkrun.engine.request import WORLD, Kind, Member, Request
from blinkrun.errors import MismatchError, ProcessSetError
from blinkrun.types import DType, Rank

if TYPE_CHECKING:
    from blinkrun.engine.engine import Engine


def broadcast_object(  # noqa: PLR0913, PLR0917
    engine: Engine,
    item: Any,
    root: Rank = 0,
    process_set: int = WORLD,
    name: str | None = None,
    where: str = "",
) -> Any:
    """Return `root`'s `item` on every rank of the process set. Collective; blocks.

    Parameters
    ----------
    root : Rank
        As a rank of the world; a member of the set.
    item : object
        That pickle takes. Other ranks' are not looked at.

    Raises
    ------
    ProcessSetError
        If the set does not exist, or lacks this rank or `root`.
    MismatchError
        If ranks name different roots.
    """
    ranks = engine.ranks(process_set)
    if root not in ranks:
        raise ProcessSetError(
            f"broadcast_object: root {root} is not among the ranks {list(ranks)} of process set"
            f" {process_set}"
        )
    is_root = engine.world.rank == root
    # Only the root has rows to give, so that all others learn how many there are.
    given = _pickled(item) if is_root else np.empty(0, np.uint8)
    name = name or engine.next_name("broadcast_object", process_set)
    gathered, counts = _allgather(engine, given, process_set, name, where)
    givers = [rank for rank, count in zip(ranks, counts, strict=True) if count]
    if givers != [root]:
        raise MismatchError(
            f"rank {engine.world.rank}: broadcast_object '{name}' has root {root} here, but ranks"
            f" {givers} gave something; every rank must name the same root"
        )
    return item if is_root else pickle.loads(gathered.data)


def allgather_object(
    engine: Engine, item: Any, process_set: int = WORLD, name: str | None = None, where: str = ""
) -> list[Any]:
    """Return the `item` of every rank of the process set, in its order. Collective; blocks."""
    name = name or engine.next_name("allgather_object", process_set)
    gathered, counts = _allgather(engine, _pickled(item), process_set, name, where)
    ends = np.cumsum(counts)
    return [
        pickle.loads(gathered[end - count : end].data)
        for end, count in zip(ends, counts, strict=True)
    ]


def _pickled(item: Any) -> npt.NDArray[np.uint8]:
    try:
        data = pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        try:  # takes functions and classes that have no module of their own, and is optional
            import cloudpickle  # noqa: PLC0415
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        data = cloudpickle.dumps(item)
    return np.frombuffer(data, np.uint8)


def _allgather(
    engine: Engine, given: npt.NDArray[np.uint8], process_set: int, name: str, where: str
) -> tuple[npt.NDArray[np.uint8], tuple[int, ...]]:
    """Return all ranks' bytes one after the other, and how many each gave."""
    request = Request(
        name,
        Kind.ALLGATHER,
        (Member(DType.UINT8, given.shape),),
        process_set=process_set,
        where=where,
    )
    part = Part(view(given, name), allocate=lambda shape: view(np.empty(shape, np.uint8), name))
    handle = engine.submit(request, (part,), sync=True)
    handle.wait()
    gathered: View = handle.targets[0]
    return gathered.owner, handle.received_splits
