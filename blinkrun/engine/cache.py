"""The response cache of one process set: what each rank last asked under each name.

A rank that asks for the same again sends a bit instead of the request. Every rank keeps the same
cache, since all feed it the same requests in the same order. Slots are numbered within a
*generation*; when one is full the next begins, and the one before stays readable, for bits that are
on their way. So a slot never stands for two names, and memory is bounded by two generations.
"""

from __future__ import annotations

from collections.abc import Sequence

from blinkrun.engine.events import Entry
from blinkrun.engine.request import Request


class Known:
    """A request that has completed.

    Attributes
    ----------
    name : str
        Its name; a changed request of this name takes its place.
    requests : list of (Request or None)
        The last of each rank of the set: what the rank's bit stands for.
    entry : Entry or None
        What becomes ready when all ranks repeat theirs; None: they must be compared first, since
        one of them had joined and has not taken part in the last.
    generation, slot : int
        Its newest number.
    """

    __slots__ = ("entry", "generation", "name", "requests", "slot")

    def __init__(self, name: str, requests: Sequence[Request | None]) -> None:
        self.name = name
        self.requests = list(requests)
        self.entry: Entry | None = None
        self.generation = -1
        self.slot = -1


class ResponseCache:
    """Requests of a process set that may be repeated by a bit; `capacity` 0 keeps none."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.generation = 0
        self._slots: dict[int, list[Known]] = {0: []}
        self._by_name: dict[str, Known] = {}
        self.find = self._by_name.get  # the known request of a name, or None

    def __len__(self) -> int:
        return len(self._by_name)

    def readable(self, generation: int) -> list[Known] | None:
        """Return a generation's requests by slot, None if it is forgotten."""
        return self._slots.get(generation)

    def store(self, name: str, requests: Sequence[Request | None], entry: Entry) -> None:
        """Remember a request that has completed; None for a rank that had joined."""
        if not self._capacity:
            return
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = Known(name, requests)
        else:
            for index, request in enumerate(requests):
                if request is not None:
                    known.requests[index] = request
        known.entry = None if None in requests else entry
        self.keep(known)

    def keep(self, known: Known) -> None:
        """Give a request that is in use a slot in the newest generation."""
        if known.generation == self.generation:
            return
        if len(self._slots[self.generation]) == self._capacity:
            self._turn()
        newest = self._slots[self.generation]
        self._by_name[known.name] = known  # it may have been forgotten while it was under way
        known.generation, known.slot = self.generation, len(newest)
        newest.append(known)

    def _turn(self) -> None:
        """Begin a generation and forget the one before the last."""
        for known in self._slots.pop(self.generation - 1, ()):
            if known.generation == self.generation - 1:
                del self._by_name[known.name]
        self.generation += 1
        self._slots[self.generation] = []
