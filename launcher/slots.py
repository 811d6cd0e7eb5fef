"""How the cores of a host are shared by its ranks."""

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


def thread_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that are to give each rank its share of threads: those that are not set.

    Without them every rank starts a thread per core, and N ranks fight over each core N-fold.

    >>> thread_names({"TF_NUM_INTEROP_THREADS": "8"})
    ('OMP_NUM_THREADS', 'TF_NUM_INTRAOP_THREADS')
    """
    return tuple(name for name in (THREADS, *TENSORFLOWS) if not environ.get(name))
