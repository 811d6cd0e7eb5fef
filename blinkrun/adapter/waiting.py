"""What waits for all other ranks."""

from __future__ import annotations

from blinkrun.adapter.process_sets import ProcessSet, global_process_set, number_of
from blinkrun.adapter.where import caller
from blinkrun.engine import engine
from blinkrun.engine.request import WORLD
from blinkrun.errors import UsageError


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of the process set has called it."""
    engine.current().barrier(number_of(process_set), where=caller())


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and return the rank that said so last.

    Until every rank has joined, this rank takes part in the others' allreduces with neutral
    elements (zeros for sums) without being asked; averages still divide by the number of all
    ranks. Allgather, broadcast, alltoall and reducescatter fail for the others meanwhile.

    Parameters
    ----------
    device : int
        Accepted for Horovod scripts: no memory is needed on any device.
    """
    if not isinstance(device, int):
        raise UsageError(f"join takes the number of a device or -1, got {device!r}")
    return int(engine.current().join(WORLD, where=caller()))
