"""Python objects given to all ranks, or gathered from all."""

from __future__ import annotations

from typing import Any

from blinkrun.adapter.process_sets import ProcessSet, checked_root, global_process_set, number_of
from blinkrun.adapter.where import caller
from blinkrun.engine import engine, objects


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of `root_rank` on every rank; it is pickled, so keep it small.

    Parameters
    ----------
    obj : any picklable object
        What `root_rank` sends; ignored on other ranks. What pickle refuses (lambdas, local
        classes) goes through cloudpickle, where that is installed.
    root_rank : int, default 0
        The rank that sends, as a rank of the job.
    name : str, optional
        The same on all ranks. Default: the next number of this kind of call and process set.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.
    """
    root = checked_root(root_rank, process_set)
    number = number_of(process_set)
    return objects.broadcast_object(engine.current(), obj, root, number, name, where=caller())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks in rank order, on every rank; they are pickled."""
    number = number_of(process_set)
    return objects.allgather_object(engine.current(), obj, number, name, where=caller())
