"""Process sets: groups of ranks that run collectives among themselves.

A set is an object on every rank, members or not. It gets its number when it is registered, by
`init(process_sets=...)` or `add_process_set`, both collective over all ranks of the job.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakSet

import blinkrun
from blinkrun.adapter.where import caller
from blinkrun.engine import engine
from blinkrun.engine.request import WORLD
from blinkrun.errors import ProcessSetError, UsageError


class ProcessSet:
    """Some ranks of the job, to be handed to collectives as ``process_set=``.

    Parameters
    ----------
    ranks_or_comm : iterable of int, or mpi4py.MPI.Comm
        Numbers of ranks in any order, or a communicator. Of communicators that divide the job each
        rank gives its own: they count as one set each.

    Attributes
    ----------
    process_set_id : int or None
        The number of the set; None before it is registered, after it is removed and after
        `shutdown`.
    ranks : list of int or None
        Ascending. None for a communicator that is not registered yet.
    mpi_comm : mpi4py.MPI.Comm or None
        What the set was made from.

    Raises
    ------
    ProcessSetError
        If it is neither.

    Examples
    --------
    >>> ProcessSet([2, 0]).ranks
    [0, 2]
    """

    process_set_id: int | None
    ranks: Any  # None for a communicator that is not registered yet
    mpi_comm: Any

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.process_set_id = None
        self.ranks = None
        self.mpi_comm = None
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = sorted(_whole_numbers(ranks_or_comm))

    def size(self) -> int | None:
        """Return how many ranks the set has; None while it has no number."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return the place of this rank among those of the set; None while it has no number.

        Roots are given as ranks of the job all the same.

        Raises
        ------
        ProcessSetError
            If this rank does not belong to the set.
        """
        if self.process_set_id is None:
            return None
        me = blinkrun.rank()
        if me not in self.ranks:
            raise ProcessSetError(
                f"rank {me} does not belong to process set {self.process_set_id} of ranks "
                f"{self.ranks}; ask included() first"
            )
        return int(self.ranks.index(me))

    def included(self) -> bool | None:
        """Whether this rank belongs to the set; None if its ranks are not known yet."""
        return None if self.ranks is None else blinkrun.rank() in self.ranks

    def __repr__(self) -> str:
        numbers = f"process_set_id={self.process_set_id}, ranks={self.ranks}"
        return f"ProcessSet({numbers}, mpi_comm={self.mpi_comm})"


class _AllRanks(ProcessSet):
    """The set of all ranks: always registered, and never out of date."""

    def __init__(self) -> None:
        self.process_set_id = WORLD
        self.mpi_comm = None

    @property
    def ranks(self) -> list[int] | None:
        return list(range(blinkrun.size())) if blinkrun.is_initialized() else None

    def size(self) -> int | None:
        return blinkrun.size() if blinkrun.is_initialized() else None

    def rank(self) -> int | None:
        return blinkrun.rank() if blinkrun.is_initialized() else None

    def included(self) -> bool | None:
        return True if blinkrun.is_initialized() else None


global_process_set = _AllRanks()
_registered: WeakSet[ProcessSet] = WeakSet()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set after `init` and return it with its number.

    Collective over all ranks of the job, members or not, in the same order among the calls that
    add and remove sets. Works at any time, whatever HOROVOD_DYNAMIC_PROCESS_SETS says.

    Raises
    ------
    ProcessSetError
        If a rank does not exist or comes twice, or there is a set of these ranks already.
    MismatchError
        If ranks give different sets; raised on every rank.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks is None:
        _name_ranks([process_set])
    _bind(process_set, engine.current().add_process_set(process_set.ranks, where=caller()))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; False if it has no number or is that of all ranks.

    Collective over all ranks of the job. The set's number is not used again.
    """
    number = process_set.process_set_id
    if number is None or number == WORLD:
        return False
    removed = engine.current().remove_process_set(number, where=caller())
    process_set.process_set_id = None
    _registered.discard(process_set)
    return bool(removed)


def number_of(process_set: ProcessSet) -> int:
    """Return the number of a set that can be used."""
    number = process_set.process_set_id if isinstance(process_set, ProcessSet) else None
    if number is None:
        if not isinstance(process_set, ProcessSet):
            raise ProcessSetError(f"process_set takes a ProcessSet, got {process_set!r}")
        raise ProcessSetError(
            f"the process set of ranks {process_set.ranks} is not registered (or no more); give "
            "it to init(process_sets=[...]) or add_process_set()"
        )
    return number


def checked_root(root_rank: int, process_set: ProcessSet = global_process_set) -> int:
    """Return `root_rank`, or raise if it is no rank of the process set."""
    try:
        root = operator.index(root_rank)
    except TypeError:
        raise UsageError(f"root_rank is {root_rank!r}; give the number of a rank") from None
    number_of(process_set)  # says so if it has none
    blinkrun.world()
    ranks = process_set.ranks
    if process_set is global_process_set:
        if not 0 <= root < len(ranks):
            raise UsageError(f"root_rank is {root_rank}, ranks are 0 to {len(ranks) - 1}")
    elif root not in ranks:
        raise UsageError(
            f"root_rank is {root_rank}, which is not in process set "
            f"{process_set.process_set_id} of ranks {ranks}; roots are ranks of the job"
        )
    return root


def take_up(process_sets: Any) -> list[tuple[ProcessSet, int]]:
    """Start the engine, if it is not there, with the sets given to `init`; collective.

    Returns
    -------
    list of (ProcessSet, int)
        The sets and their numbers; those that are there already have the number that they had.

    Raises
    ------
    ProcessSetError
        If an entry is no set; on every rank, and none is there then.
    """
    if process_sets is None or isinstance(process_sets, str):
        if process_sets is not None and process_sets.lower() != "dynamic":
            raise ProcessSetError(f"process_sets is '{process_sets}'; give a list, or 'dynamic'")
        engine.start()
        return []
    sets = [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in process_sets]
    everyone = blinkrun.world().allgather_object([_ranks_of(each) for each in sets])
    if len({len(each) for each in everyone}) > 1:
        counts = ", ".join(f"rank {r}: {len(each)}" for r, each in enumerate(everyone))
        raise ProcessSetError(f"init got different numbers of process sets: {counts}")
    agreed = _agreed(everyone)
    known = set(engine.start().process_sets().values())
    running = engine.start([ranks for ranks in agreed if ranks not in known])
    numbers = {tuple(ranks): number for number, ranks in running.process_sets().items()}
    return [(each, numbers[tuple(each.ranks)]) for each in sets]


def number(sets: list[tuple[ProcessSet, int]]) -> None:
    """Give sets their numbers, each number once.

    Raises
    ------
    ProcessSetError
        If a number comes twice or is that of all ranks; all other sets have theirs then.
    """
    taken = {WORLD}
    twice: list[int] = []
    for entry, (each, its_number) in enumerate(sets):
        if its_number in taken:
            twice.append(entry)
        else:
            taken.add(its_number)
            _bind(each, its_number)
    if twice:
        raise ProcessSetError(
            f"process_sets entry {twice[0]} with ranks {sets[twice[0]][0].ranks} is a duplicate of "
            "an earlier one or of the set of all ranks; the job goes on with the others"
        )


def forget_all() -> None:
    """Take the numbers from all sets but that of all ranks: the job is over."""
    global_process_set.mpi_comm = None
    for each in list(_registered):
        each.process_set_id = None
    _registered.clear()


def _agreed(everyone: list[list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """Return the sets in the order of their numbers, from what every rank gave.

    Entry i is one set if all ranks gave the same ranks there, else (communicators that divide the
    job) as many as there are different ones, the one with the lowest rank first.
    """
    size = len(everyone)
    agreed: dict[tuple[int, ...], None] = {}
    for entry, given in enumerate(zip(*everyone, strict=True)):
        for ranks in sorted(set(given)):
            if not ranks or ranks[0] < 0 or ranks[-1] >= size or len(set(ranks)) < len(ranks):
                raise ProcessSetError(
                    f"process_sets entry {entry} has ranks {list(ranks)}; need different ranks of "
                    f"0 to {size - 1}"
                )
            agreed[ranks] = None
    return [ranks for ranks in agreed if len(ranks) < size]


def _ranks_of(process_set: ProcessSet) -> tuple[int, ...]:
    if process_set.ranks is None:
        _name_ranks([process_set])
    return tuple(process_set.ranks)


def _name_ranks(sets: list[ProcessSet]) -> None:
    """Fill in the ranks of sets made from communicators; collective over each."""
    for each in sets:
        each.ranks = sorted(each.mpi_comm.allgather(blinkrun.rank()))


def _bind(process_set: ProcessSet, number: int) -> None:
    process_set.process_set_id = number
    _registered.add(process_set)


def _whole_numbers(ranks: Any) -> list[int]:
    try:
        numbers = list(ranks)
    except TypeError:
        numbers = [None]
    if any(isinstance(each, bool) or not isinstance(each, int) for each in numbers):
        raise ProcessSetError(
            f"a ProcessSet is made of a list of ranks or an mpi4py communicator, got {ranks!r}"
        )
    return numbers
