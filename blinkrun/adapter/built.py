"""What this build has and what the job uses, under the names that Horovod scripts ask for."""

from __future__ import annotations

import importlib.util
import sys

import blinkrun
from blinkrun.errors import UsageError


def mpi_built() -> bool:
    """Whether ranks can meet over MPI: mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Whether the ranks of this job have met over MPI; before `init`, whether they could.

    MPI says who is where and moves nothing else: collectives run over shared memory.
    """
    if not blinkrun.is_initialized():
        return mpi_built()
    mpi = sys.modules.get("blinkrun.comm.mpi")
    return mpi is not None and isinstance(blinkrun.world().control, mpi.MpiControl)


def mpi_threads_supported() -> bool:
    """Whether the MPI in use may be called from several threads at once.

    Raises
    ------
    UsageError
        If the job does not use MPI.
    """
    blinkrun.world()  # says so before init
    if not mpi_enabled():
        raise UsageError("this job does not use MPI: it has one process, or met in another way")
    mpi = sys.modules["blinkrun.comm.mpi"].MPI
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def gloo_built() -> bool:
    """False: gloo is not used."""
    return False


def gloo_enabled() -> bool:
    """False: gloo is not used."""
    return False


def nccl_built() -> int:
    """0, no version of NCCL: it is not used."""
    return 0


def cuda_built() -> bool:
    """Whether what CUDA devices need is installed: cupy, by the extras cuda12 and cuda13."""
    return importlib.util.find_spec("cupy") is not None


def rocm_built() -> bool:
    """False: tensors are moved on the CPU and on CUDA devices."""
    return False


def ddl_built() -> bool:
    """False: IBM DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: oneCCL is not used."""
    return False
