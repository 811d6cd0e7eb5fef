"""Messages between hosts, for the reference executor: MPI's promises and none beyond them."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from blinkrun.executors.numerics import Array
from blinkrun.schedule.streams import Stream

_COPIED, _LATE = 0.3, 0.7  # how often a send is through at once, and a message is not yet


@dataclass(slots=True)
class _Ends:
    """What has been started of one stream, as views of memory, and which messages are through."""

    sends: list[Array] = field(default_factory=list)
    copies: dict[int, Array] = field(default_factory=dict)  # of sends that are through already
    recvs: list[Array] = field(default_factory=list)
    arrived: set[int] = field(default_factory=set)


class Mailbox:
    """The messages of one run.

    Without `order` a message is through as soon as both ends have started. With it, MPI's freedom
    is used at random: data moves some time later, messages of a stream overtake each other, and
    a send may be through before anyone receives, by way of a copy.
    """

    def __init__(self, order: random.Random | None) -> None:
        self._order = order
        self._ends: dict[Stream, _Ends] = defaultdict(_Ends)
        self._under_way: list[tuple[Stream, int]] = []  # both ends have started

    def send(self, stream: Stream, source: Array) -> None:
        """Start the next message; `source` is looked at when it moves."""
        ends = self._ends[stream]
        number = len(ends.sends)
        ends.sends.append(source)
        if self._order is not None and self._order.random() < _COPIED:
            ends.copies[number] = source.copy()
        if number < len(ends.recvs):
            self._under_way.append((stream, number))

    def recv(self, stream: Stream, target: Array) -> None:
        """Start to receive the next message, into `target`."""
        ends = self._ends[stream]
        number = len(ends.recvs)
        ends.recvs.append(target)
        if number < len(ends.sends):
            self._under_way.append((stream, number))

    def is_sent(self, stream: Stream, number: int) -> bool:
        """Return whether the memory of that send is free again."""
        return number in self._ends[stream].copies or self.has_arrived(stream, number)

    def has_arrived(self, stream: Stream, number: int) -> bool:
        """Return whether that message is there."""
        return number in self._ends[stream].arrived

    def move(self, *, every: bool = False) -> bool:
        """Let messages through, all or as the random order says; return whether any was."""
        started, self._under_way = self._under_way, []
        if self._order is not None:
            self._order.shuffle(started)
        for stream, number in started:
            if self._order is not None and not every and self._order.random() < _LATE:
                self._under_way.append((stream, number))
                continue
            ends = self._ends[stream]
            ends.recvs[number][...] = ends.copies.get(number, ends.sends[number])
            ends.arrived.add(number)
        return len(self._under_way) < len(started)
