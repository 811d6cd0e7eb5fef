"""How the cores of the host are shared by the ranks."""

from __future__ import annotations

from collections.abc import Mapping

THREADS = "OMP_NUM_THREADS"
TENSORFLOWS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")  # it knows no other


def threads_per_rank(cores: int, local_ranks: int) -> int:
    """Return the threads of one rank: an equal share of the cores, at least 1.

    >>> threads_per_rank(8, 2), threads_per_rank(8, 3), threads_per_rank(2, 16)
    (4, 2, 1)
    """
    if cores < 1 or local_ranks < 1:
        raise ValueError(f"{cores} cores for {local_ranks} ranks: need at least 1 of each")
    return max(1, cores // local_ranks)


def thread_environ(cores: int, local_ranks: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give each rank its share of threads, but for those that are set.

    Without this every rank starts a thread per core, and N ranks fight over each core N-fold.

    >>> thread_environ(8, 2, {"TF_NUM_INTEROP_THREADS": "8"})
    {'OMP_NUM_THREADS': '4', 'TF_NUM_INTRAOP_THREADS': '4'}
    """
    share = str(threads_per_rank(cores, local_ranks))
    return {name: share for name in (THREADS, *TENSORFLOWS) if not environ.get(name)}
