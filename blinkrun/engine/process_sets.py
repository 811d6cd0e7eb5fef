"""The communicators of process sets: made and closed where the order of all requests says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blinkrun.engine.events import Entry
from blinkrun.engine.request import WORLD
from blinkrun.errors import ProcessSetError
from blinkrun.types import Rank

if TYPE_CHECKING:
    from blinkrun.communicator import Communicator

Subgroup = Callable[[Sequence[Rank]], "Communicator"]


class ProcessSets:
    """Which process sets there are, and the communicators of those that this rank is in.

    Parameters
    ----------
    world : Communicator
        Of all ranks; that of set 0.
    subgroup : callable
        Makes a communicator of some of the ranks; collective among them.
    """

    def __init__(self, world: Communicator, subgroup: Subgroup) -> None:
        self._rank = world.rank
        self._subgroup = subgroup
        self._members: dict[int, tuple[Rank, ...]] = {WORLD: tuple(range(world.size))}
        self._communicators: dict[int, Communicator] = {WORLD: world}

    def members(self) -> dict[int, tuple[Rank, ...]]:
        """Return the ranks of every set, by number."""
        return dict(self._members)

    def ranks(self, number: int) -> tuple[Rank, ...]:
        """Return the ranks of a set; raises ProcessSetError if there is no such set."""
        try:
            return self._members[number]
        except KeyError:
            known = ", ".join(map(str, sorted(self._members)))
            raise ProcessSetError(
                f"process set {number} does not exist (there are {known})"
            ) from None

    def is_mine(self, number: int) -> bool:
        """Whether this rank belongs to a set; sets that do not exist are nobody's."""
        return number in self._communicators

    def size(self, number: int) -> int:
        """Return how many ranks a set has; 1 if there is no such set, which others refuse."""
        return len(self._members.get(number, (0,)))

    def communicator(self, number: int) -> Communicator:
        """Return the communicator of a set.

        Raises
        ------
        ProcessSetError
            If there is no such set, or this rank is not in it.
        """
        found = self._communicators.get(number)
        if found is None:
            ranks = self.ranks(number)
            raise ProcessSetError(
                f"process set {number} has the ranks {', '.join(map(str, ranks))}, not rank"
                f" {self._rank}"
            )
        return found

    def of_mine(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return those of process sets that this rank is in."""
        mine = self._communicators
        if len(self._members) == len(mine):
            return entries
        return tuple(entry for entry in entries if entry.request.process_set in mine)

    def add(self, number: int, ranks: tuple[Rank, ...]) -> None:
        """Take up a new set; collective among its ranks."""
        if self._rank in ranks:
            self._communicators[number] = self._subgroup(ranks)
        self._members[number] = ranks

    def remove(self, number: int) -> None:
        """Give up a set and close its communicator."""
        self._members.pop(number, None)
        communicator = self._communicators.pop(number, None)
        if communicator is not None:
            communicator.close()

    def abort(self, text: str) -> None:
        """End the waits of all ranks with an error, whichever communicator they wait on."""
        for communicator in list(self._communicators.values()):
            if not communicator.is_closed:
                communicator.executor.group.abort(text)

    def close(self) -> None:
        """Close the communicators of all sets but the world's, which is not ours."""
        for number in [each for each in self._members if each != WORLD]:
            self.remove(number)
