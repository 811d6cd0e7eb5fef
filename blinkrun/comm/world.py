"""Who runs where: the ranks of the job, grouped by host."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blinkrun import env
from blinkrun.comm.base import ControlPlane
from blinkrun.comm.loopback import LoopbackControl
from blinkrun.errors import LaunchError
from blinkrun.types import Rank

# Set in every rank by the process managers of Open MPI, MPICH, Intel MPI and Slurm.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID")


@dataclass(frozen=True, slots=True)
class World:
    """Place of one rank among all.

    Attributes
    ----------
    rank, size : int
        Among all ranks.
    hosts : tuple of str
        Name of the host of every rank.
    groups : tuple of tuple of int
        Ranks of each host, hosts in the order of their first rank.
    """

    rank: Rank
    size: int
    hosts: tuple[str, ...]
    groups: tuple[tuple[Rank, ...], ...]

    @property
    def cross_rank(self) -> int:
        """Index of this rank's host."""
        return next(i for i, group in enumerate(self.groups) if self.rank in group)

    @property
    def cross_size(self) -> int:
        """Number of hosts."""
        return len(self.groups)

    @property
    def host_of(self) -> tuple[int, ...]:
        """Index of every rank's host."""
        found = {rank: index for index, group in enumerate(self.groups) for rank in group}
        return tuple(found[rank] for rank in range(self.size))

    @property
    def host_names(self) -> tuple[str, ...]:
        """Name of each host, by its index."""
        return tuple(self.hosts[group[0]] for group in self.groups)

    @property
    def leaders(self) -> tuple[Rank, ...]:
        """First rank of each host."""
        return tuple(group[0] for group in self.groups)

    @property
    def local_ranks(self) -> tuple[Rank, ...]:
        """Ranks of this rank's host."""
        return self.groups[self.cross_rank]

    @property
    def local_rank(self) -> int:
        """Index of this rank on its host."""
        return self.local_ranks.index(self.rank)

    @property
    def local_size(self) -> int:
        """Number of ranks on this rank's host."""
        return len(self.local_ranks)


def group_by_host(names: Sequence[tuple[str, str]]) -> tuple[tuple[Rank, ...], ...]:
    """Return the ranks of each host, given every rank's (host name, boot id).

    >>> group_by_host([("a", "1"), ("b", "2"), ("a", "1")])
    ((0, 2), (1,))
    """
    groups: dict[tuple[str, str], list[Rank]] = {}
    for rank, name in enumerate(names):
        groups.setdefault(name, []).append(rank)
    return tuple(tuple(group) for group in groups.values())


def gather_world(control: ControlPlane) -> World:
    """Return the world as all ranks of `control` see it; every rank must call it."""
    names = control.allgather(this_host())
    return World(
        rank=control.rank,
        size=control.size,
        hosts=tuple(host for host, _ in names),
        groups=group_by_host(names),
    )


def this_host() -> tuple[str, str]:
    """Return the name of this process's host, and what tells it from others of that name."""
    return os.environ.get(env.HOST) or platform.node(), _boot_id()


def is_mpi_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an MPI started this process, or the program has loaded MPI already."""
    return "mpi4py.MPI" in sys.modules or any(name in environ for name in _RANK_VARIABLES)


def connect(environ: Mapping[str, str] = os.environ) -> ControlPlane:
    """Return the control plane of this process: MPI's, or a loopback if it is alone.

    Raises
    ------
    LaunchError
        If the launcher started another number of ranks than MPI sees: two MPIs are mixed; or if
        srun started tasks that no MPI joins.
    """
    if not is_mpi_rank(environ):
        _check_srun(environ, size=1)
        return LoopbackControl()
    from blinkrun.comm.mpi import MpiControl, library  # noqa: PLC0415 - initialises MPI

    control = MpiControl()
    expected = environ.get(env.SIZE, "")
    if expected and int(expected) != control.size:
        raise LaunchError(
            f"the launcher started {expected} ranks but MPI sees {control.size}: the mpiexec and"
            f" mpi4py's MPI ({library()}) are different ones; choose with --mpi, or keep one MPI"
            " per environment"
        )
    _check_srun(environ, size=control.size)
    return control


def _check_srun(environ: Mapping[str, str], *, size: int) -> None:
    """Raise LaunchError if srun started several tasks that see no one but themselves."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if size == 1 and tasks.isdigit() and int(tasks) > 1 and env.LAUNCHED not in environ:
        raise LaunchError(
            f"srun started {tasks} tasks, but each sees only itself: start them with srun"
            " --mpi=pmix (or pmi2; srun --mpi=list shows what there is), or with blinkrun -np"
        )


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
