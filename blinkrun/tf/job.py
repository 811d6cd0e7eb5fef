"""Joining the job in a process that uses TensorFlow."""

from __future__ import annotations

from typing import Any

import blinkrun
from blinkrun.adapter import job
from blinkrun.tf import threads


def init(comm: Any = None, process_sets: Any = None, *, timeout_s: float | None = None) -> None:
    """Join the other ranks of the job; every rank calls it. A second call only numbers sets.

    TensorFlow gets this rank's share of the cores, and one GPU where it has several, unless it has
    been told otherwise. It is not imported for that, nor is its runtime started.

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
        If a set has ranks that do not exist, is no set or a duplicate.
    """
    try:
        job.init(comm, process_sets, timeout_s=timeout_s)
    finally:
        if blinkrun.is_initialized():  # a duplicate set leaves the job as it is
            threads.configure()
