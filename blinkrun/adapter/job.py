"""The job of this process: joining and leaving it, and this rank's place in it."""

from __future__ import annotations

import os
from typing import Any

import blinkrun
from blinkrun.adapter import process_sets as sets
from blinkrun.engine import engine


def init(comm: Any = None, process_sets: Any = None, *, timeout_s: float | None = None) -> None:
    """Join the other ranks of the job; every rank calls it. A second call only numbers sets.

    Parameters
    ----------
    comm : list of int or mpi4py.MPI.Comm, optional
        Who takes part, where that is not everyone: numbers of ranks in MPI_COMM_WORLD, this one's
        among them, or a communicator.
    process_sets : list of ProcessSet, optional
        Sets to register at once; lists of ranks do as well. Every rank gives the same. "dynamic"
        is accepted: sets can always be added later.
    timeout_s : float, optional
        Longest wait for other ranks, in seconds. Default: BLINKRUN_TIMEOUT_S, else 600.

    Raises
    ------
    LaunchError
        If MPI cannot be loaded, or the ranks cannot share memory.
    ProcessSetError
        If a set has ranks that do not exist or is no set: the job is left again. If a set is a
        duplicate: the job goes on with the others, as under Horovod.
    """
    is_first = not blinkrun.is_initialized()
    if is_first:
        blinkrun.init(timeout_s, control=_control(comm))
        sets.global_process_set.mpi_comm = comm if hasattr(comm, "Get_group") else None
    try:
        given = sets.take_up(process_sets)
    except BaseException:
        if is_first:
            shutdown()
        raise
    sets.number(given)


def shutdown() -> None:
    """Leave the job; collectives are refused afterwards, until the next `init`."""
    sets.forget_all()
    blinkrun.shutdown()


def _control(comm: Any) -> Any:
    """Return the control plane of `comm`; None is everyone."""
    if comm is None or (isinstance(comm, list | tuple) and not comm):
        return None
    from blinkrun.comm.mpi import control_of  # noqa: PLC0415

    return control_of(comm)


def rank() -> int:
    """Return the number of this process in the job, from 0."""
    return int(blinkrun.world().rank)


def size() -> int:
    """Return how many processes the job has."""
    return int(blinkrun.world().size)


def local_rank() -> int:
    """Return the number of this process on its host, from 0."""
    return int(blinkrun.world().local_rank)


def local_size() -> int:
    """Return how many processes of the job run on this host."""
    return int(blinkrun.world().local_size)


def cross_rank() -> int:
    """Return the number of this host among those that have a process with this local rank."""
    return int(blinkrun.world().cross_rank)


def cross_size() -> int:
    """Return how many hosts have a process with this local rank."""
    return int(blinkrun.world().cross_size)


def is_homogeneous() -> bool:
    """Whether every host has as many processes as any other."""
    return len({len(group) for group in blinkrun.world()._world.groups}) == 1


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begin to write a Chrome trace of the collectives to `file_path`; rank 0 writes it.

    Parameters
    ----------
    file_path : path
        Overwritten if it exists. At every moment it holds valid JSON. Other ranks do nothing.
    mark_cycles : bool
        Also mark each round of negotiation.
    """
    engine.current().start_timeline(os.fspath(file_path), mark_cycles=mark_cycles)


def stop_timeline() -> None:
    """End the trace and close its file."""
    engine.current().stop_timeline()
