"""NCCL's calls by NCCL's names, on blinkrun: the interface of ``cupy.cuda.nccl``.

Code that was written for that module runs when its import is changed:

    from blinkrun import nccl

    comm = nccl.NcclCommunicator(size, unique_id, rank)
    comm.allReduce(x.ctypes.data, y.ctypes.data, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)

Ranks are processes or threads of one host that know the same unique id; they need no launcher and
no MPI. This version moves memory of the CPU: buffers are given as addresses, as for NCCL, and an
address cannot be checked. One that is no memory of this process, or of a GPU, ends the process.

Calls return when they are done. Those between `groupStart` and `groupEnd` run together at
`groupEnd`, in whatever order they can go on. docs/nccl.md says what else differs from NCCL.
"""

from __future__ import annotations

from blinkrun.nccl.communicator import NcclCommunicator
from blinkrun.nccl.constants import (
    NCCL_AVG,
    NCCL_BFLOAT16,
    NCCL_CHAR,
    NCCL_DOUBLE,
    NCCL_FLOAT,
    NCCL_FLOAT16,
    NCCL_FLOAT32,
    NCCL_FLOAT64,
    NCCL_HALF,
    NCCL_INT,
    NCCL_INT8,
    NCCL_INT32,
    NCCL_INT64,
    NCCL_MAX,
    NCCL_MIN,
    NCCL_PROD,
    NCCL_SPLIT_NOCOLOR,
    NCCL_SUM,
    NCCL_UINT8,
    NCCL_UINT32,
    NCCL_UINT64,
    NCCL_UNIQUE_ID_BYTES,
    NCCL_VERSION_CODE,
)
from blinkrun.nccl.group import groupEnd, groupStart
from blinkrun.nccl.status import NcclError
from blinkrun.nccl.unique_id import new_id

available = True

__all__ = [
    "NCCL_AVG",
    "NCCL_BFLOAT16",
    "NCCL_CHAR",
    "NCCL_DOUBLE",
    "NCCL_FLOAT",
    "NCCL_FLOAT16",
    "NCCL_FLOAT32",
    "NCCL_FLOAT64",
    "NCCL_HALF",
    "NCCL_INT",
    "NCCL_INT8",
    "NCCL_INT32",
    "NCCL_INT64",
    "NCCL_MAX",
    "NCCL_MIN",
    "NCCL_PROD",
    "NCCL_SPLIT_NOCOLOR",
    "NCCL_SUM",
    "NCCL_UINT8",
    "NCCL_UINT32",
    "NCCL_UINT64",
    "NCCL_UNIQUE_ID_BYTES",
    "NCCL_VERSION_CODE",
    "NcclCommunicator",
    "NcclError",
    "available",
    "get_build_version",
    "get_unique_id",
    "get_version",
    "groupEnd",
    "groupStart",
]


def get_unique_id() -> tuple[int, ...]:
    """Return a new id for one communicator, to be given to all its ranks.

    It is a secret: whoever runs as the same user on this host and knows it can join. A rank on
    another host that is given it gets an NcclError (invalid usage) at once.

    Returns
    -------
    tuple of int
        128 numbers from -128 to 127, as ``cupy.cuda.nccl`` has them.
    """
    return tuple(each - 256 if each > 127 else each for each in new_id())


def get_version() -> int:
    """Return the version of NCCL whose calls these are, as NCCL counts: 2.27.0 is 22700."""
    return NCCL_VERSION_CODE


def get_build_version() -> int:
    """Return the same as `get_version`: nothing was built against another."""
    return NCCL_VERSION_CODE
