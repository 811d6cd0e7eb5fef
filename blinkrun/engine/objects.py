"""Python objects as named requests: pickled, and moved as bytes; no MPI takes part."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blinkrun.buffers import View, view
from blinkrun.engine.agree import name_ranks
from blinkrun.engine.handle import Part
from blinkrun.engine.request import WORLD, Kind, Member, Request
from blinkrun.errors import MismatchError, ProcessSetError
from blinkrun.types import DType, Rank

if TYPE_CHECKING:
    from blinkrun.engine.engine import Engine

_NOTHING = np.empty(0, np.uint8)


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
    name = name or engine.next_name("broadcast_object", process_set)
    # Only the root has rows to give, so that all others learn how many there are.
    given, error = _pickled(item) if is_root else (_NOTHING, None)
    gathered, counts = _allgather(engine, given, process_set, name, where)
    if error is not None:
        raise error
    givers = [rank for rank, count in zip(ranks, counts, strict=True) if count]
    if givers != [root]:
        raise MismatchError(
            f"rank {engine.world.rank}: broadcast_object '{name}' has root {root} here, but"
            f" {name_ranks(givers) if givers else 'no rank'} gave an object; every rank must name"
            " the same root, and the root's object must be one that pickle takes"
        )
    return item if is_root else pickle.loads(gathered.data)


def allgather_object(
    engine: Engine, item: Any, process_set: int = WORLD, name: str | None = None, where: str = ""
) -> list[Any]:
    """Return the `item` of every rank of the process set, in its order. Collective; blocks.

    Raises
    ------
    ProcessSetError
        If the set does not exist, or lacks this rank.
    MismatchError
        If another rank's object is none that pickle takes; that rank gets pickle's own error.
    """
    name = name or engine.next_name("allgather_object", process_set)
    given, error = _pickled(item)
    gathered, counts = _allgather(engine, given, process_set, name, where)
    if error is not None:
        raise error
    if not all(counts):
        failed = [rank for rank, n in zip(engine.ranks(process_set), counts, strict=True) if not n]
        raise MismatchError(
            f"rank {engine.world.rank}: allgather_object '{name}': the object of"
            f" {name_ranks(failed)} is none that pickle takes"
        )
    ends = np.cumsum(counts)
    return [
        pickle.loads(gathered[end - count : end].data)
        for end, count in zip(ends, counts, strict=True)
    ]


def _pickled(item: Any) -> tuple[npt.NDArray[np.uint8], Exception | None]:
    """Return the bytes of `item`; none, and the error, where it cannot be pickled.

    Others wait for this rank, which must come all the same.
    """
    try:
        return np.frombuffer(_dumps(item), np.uint8), None
    except Exception as err:
        return _NOTHING, err


def _dumps(item: Any) -> bytes:
    try:
        return pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        try:  # takes functions and classes that have no module of their own, and is optional
            import cloudpickle  # noqa: PLC0415
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        return bytes(cloudpickle.dumps(item))


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
