"""Ranks that negotiate over a journal that is a list; each reads it when it is told to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from blinkrun.engine.negotiate import Event, Failed, Negotiator, Ready
from blinkrun.engine.request import Kind, Member, Request
from blinkrun.types import DType, Rank


def tensor(name: str, *shape: int, kind: Kind = Kind.ALLREDUCE, **more: Any) -> Request:
    """Return a request for one float32 tensor."""
    return Request(name, kind, (Member(DType.FLOAT32, shape),), **more)


class Negotiators:
    """The negotiators of all ranks, and every event that each of them has returned."""

    def __init__(self, size: int, cache_capacity: int = 8192) -> None:
        self.size = size
        self.ranks = [Negotiator(rank, size, cache_capacity=cache_capacity) for rank in range(size)]
        self.journal: list[tuple[Rank, bytes]] = []
        self.events: list[list[Event]] = [[] for _ in range(size)]
        self._read = [0] * size

    def offer(self, request: Request, ranks: Iterable[Rank] | None = None) -> None:
        """Offer the same request on `ranks`, on all of them if not given."""
        for rank in range(self.size) if ranks is None else ranks:
            self.ranks[rank].offer(request)

    def post(self, rank: Rank) -> int:
        """Post what a rank has to say; return the bytes of it."""
        message = self.ranks[rank].outbox()
        if message is None:
            return 0
        self.journal.append((rank, message))
        return len(message)

    def post_all(self) -> bool:
        """Post what any rank has to say; return whether a rank has anything to read."""
        for rank in range(self.size):
            self.post(rank)
        return min(self._read) < len(self.journal)

    def read(self, rank: Rank, most: int = 1 << 30) -> list[Event]:
        """Let a rank read on, at most so many messages; return what came of them."""
        begin = self._read[rank]
        messages = self.journal[begin : begin + most]
        self._read[rank] = begin + len(messages)
        fresh = [e for sender, text in messages for e in self.ranks[rank].feed(sender, text)]
        self.events[rank] += fresh
        return fresh

    def settle(self) -> list[Event]:
        """Post and read until nobody has anything to say; return the new events of rank 0.

        Every other rank's must be the same.
        """
        begin = len(self.events[0])
        while self.post_all():
            for rank in range(self.size):
                self.read(rank)
        same = [list(map(canonical, events)) for events in self.events]
        assert all(events == same[0] for events in same)
        return self.events[0][begin:]


def canonical(event: Event) -> Any:
    """Return an event without what may differ between ranks."""
    if isinstance(event, Ready):
        return [(entry.requests, entry.number) for entry in event.entries]
    if isinstance(event, Failed):
        error = event.error
        return (event.process_set, event.name, event.ranks, type(error), str(error), vars(error))
    return event
