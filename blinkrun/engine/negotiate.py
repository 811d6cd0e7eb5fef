"""The negotiation: which named requests all ranks have, hence which may run. No I/O, no clock.

Every rank has a `Negotiator` and feeds it the same messages in the same order (the journal). What
it decides depends on nothing else, so all ranks decide the same without asking each other, over all
process sets at once: there is one order of everything, which overlapping sets cannot turn into a
deadlock. What this rank wants goes to the outbox, and counts when its message has come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from blinkrun.engine.agree import find_conflicts, is_repeat
from blinkrun.engine.events import (
    JOIN,
    Entry,
    Event,
    Failed,
    Joined,
    Left,
    Noted,
    Pending,
    Ready,
    SetAdded,
    SetRemoved,
    Verdict,
)
from blinkrun.engine.messages import Control, Repeats, encode, pack_slots
from blinkrun.engine.replica import MINE, Group, Replica, Waiting
from blinkrun.engine.request import WORLD, Request
from blinkrun.errors import DuplicateNameError, NotInitializedError, ProcessSetError
from blinkrun.types import Rank

__all__ = [
    "JOIN",
    "Entry",
    "Event",
    "Failed",
    "Joined",
    "Left",
    "Negotiator",
    "Noted",
    "Pending",
    "Ready",
    "SetAdded",
    "SetRemoved",
    "Verdict",
]


_Key = tuple[int, int]  # process set, generation of its cache


class _Posted:
    """What this rank may have to say again of a message that it has posted."""

    __slots__ = ("repeats", "verdicts")

    def __init__(self, verdicts: list[tuple[Any, ...]]) -> None:
        self.repeats: dict[_Key, list[Request]] = {}
        self.verdicts = verdicts


class Negotiator:
    """One rank's part in the negotiation.

    It holds no lock: callers see to it that one method runs at a time. Every message that `outbox`
    returns must be posted, in this order; after `feed`, `outbox` may have something again.

    Parameters
    ----------
    rank : Rank
        This rank.
    size : int
        Ranks of the world, which is process set `WORLD`.
    cache_capacity : int
        Requests of each process set that are remembered, so that repeating one costs a bit; the
        same on all ranks. 0: none.
    """

    def __init__(self, rank: Rank, size: int, *, cache_capacity: int = 8192) -> None:
        self.rank = rank
        self._replica = Replica(rank, size, cache_capacity)
        self._groups = self._replica.groups
        self._is_leaving = False
        self._offers: list[Request] = []
        self._controls: list[tuple[Any, ...]] = []
        self._verdicts: list[
            tuple[Any, ...]
        ] = []  # first of a message: before a join completes all
        self._joining: set[int] = set()
        self._joins: list[int] = []
        self._posted: deque[_Posted] = deque()  # messages on their way

    # ---- what this rank wants ------------------------------------------------------------------

    def offer(self, request: Request) -> None:
        """Ask for a collective; it is under way until it comes as `Ready` or `Failed`.

        Raises
        ------
        DuplicateNameError
            If this rank has a request of this name under way in the process set.
        ProcessSetError
            If there is no such process set, or this rank is not in it.
        NotInitializedError
            After `leave`.
        """
        group = self._groups.get(request.process_set)
        if group is None or not group.my_bit or self._is_leaving:
            raise self._refusal(f"{request.kind.label} '{request.name}'", request.process_set)
        name = request.name
        mine = group.mine
        if name in mine:
            raise DuplicateNameError(
                f"rank {self.rank}: {request.kind.label} '{name}' is submitted{_at(request)} while"
                f" one of this name, submitted before{_at(mine[name])}, is still under way; wait"
                " for it first or give this one another name"
            )
        mine[name] = request
        self._offers.append(request)

    def join(self, process_set: int = WORLD) -> None:
        """Say that this rank has no more data; it ends with `Joined`, or `Failed` of `JOIN`.

        Raises as `offer` does.
        """
        group = self._groups.get(process_set)
        if group is None or not group.my_bit or self._is_leaving:
            raise self._refusal("join", process_set)
        if process_set in self._joining:
            raise DuplicateNameError(
                f"rank {self.rank}: join of process set {process_set} is still under way"
            )
        self._joining.add(process_set)
        self._joins.append(process_set)

    def leave(self, rank: Rank | None = None) -> None:
        """Say that this rank's engine stops, or that `rank` was found dead."""
        if rank is None or rank == self.rank:
            self._is_leaving = True
        self._controls.append((int(Control.LEAVE), self.rank if rank is None else int(rank)))

    def note(self, payload: bytes) -> None:
        """Tell all engines something; it comes as `Noted`."""
        self._controls.append((int(Control.NOTE), bytes(payload)))

    def fail(
        self, process_set: int, name: str, reason: str, verdict: Verdict = Verdict.MISMATCH
    ) -> None:
        """Make a request that is under way fail on all ranks, with `reason` as the error's text.

        Nothing happens if it has become ready, or has failed, before the verdict arrives. One that
        is given between `offer` and the `outbox` after it is sure to be in time.
        """
        group = self._groups.get(process_set)
        waiting = None if group is None else group.pending.get(name)
        if group is not None and name in group.mine:
            number = MINE
        elif waiting is not None and verdict is not Verdict.NON_FINITE:
            number = waiting.number
        else:
            return
        self._verdicts.append((int(Control.FAIL), process_set, name, number, int(verdict), reason))

    def outbox(self) -> bytes | None:
        """Return the message to post now, None if there is nothing to say."""
        joins = self._take_joins()
        if not (self._offers or self._controls or self._verdicts or joins):
            return None
        offers, self._offers = self._offers, []
        verdicts, self._verdicts = self._verdicts, []
        controls, self._controls = self._controls, []
        posted = _Posted(verdicts)
        slots: dict[_Key, list[int]] = {}
        if not joins:
            offers = self._sort_out(offers, posted.repeats, slots)
        self._posted.append(posted)
        repeats: list[Repeats] = [(*key, pack_slots(slots[key])) for key in slots]
        return encode(repeats, offers, verdicts + joins + controls)

    # ---- what all ranks want -------------------------------------------------------------------

    def feed(self, sender: Rank, message: bytes) -> list[Event]:
        """Take the next message of the journal; return what follows, the same on all ranks."""
        events, forgotten = self._replica.take(sender, message)
        if sender == self.rank:
            posted = self._posted.popleft()
            for key in forgotten:
                self._repeat_in_full(posted, key)
        for event in events:
            if isinstance(event, Joined) or (isinstance(event, Failed) and event.name == JOIN):
                self._joining.discard(event.process_set)
        return events

    @property
    def sets(self) -> Mapping[int, tuple[Rank, ...]]:
        """Process sets by number, of the messages fed so far; 0 is the world."""
        return {number: group.ranks for number, group in self._groups.items()}

    @property
    def left(self) -> frozenset[Rank]:
        """Ranks whose engines have stopped."""
        return frozenset(self._replica.left)

    def pending(self) -> list[Pending]:
        """Return what some ranks have offered and others not, the oldest first."""
        found = [
            self._describe(group, waiting)
            for group in self._groups.values()
            for waiting in group.pending.values()
        ]
        return find_conflicts(sorted(found, key=lambda pending: pending.number), self.sets)

    def not_joined(self, process_set: int) -> tuple[Rank, ...]:
        """Return the ranks of a process set for which those that have joined wait."""
        group = self._groups[process_set]
        return group.ranks_of(group.full & ~group.joined)

    def is_idle(self) -> bool:
        """Whether this rank wants nothing and has nothing on its way."""
        return not (
            self._offers
            or self._controls
            or self._verdicts
            or self._joining
            or self._posted
            or any(group.mine for group in self._groups.values())
        )

    # ---- inside --------------------------------------------------------------------------------

    def _take_joins(self) -> list[tuple[Any, ...]]:
        """Return joins to post; they wait while repeats are on their way.

        Should those turn out to be forgotten, they are offered again: that must not come after
        this rank has joined, when the others no longer wait for its offer.
        """
        if not self._joins or any(posted.repeats for posted in self._posted):
            return []
        joins, self._joins = self._joins, []
        return [(int(Control.JOIN), number) for number in joins]

    def _sort_out(
        self,
        offers: list[Request],
        repeats: dict[_Key, list[Request]],
        slots: dict[_Key, list[int]],
    ) -> list[Request]:
        """Put what this rank only repeats into `repeats` and `slots`; return the others."""
        others: list[Request] = []
        key, group, index = (-1, -1), None, 0
        asked, numbers = others, [0]
        for request in offers:
            number = request.process_set
            if group is None or group.number != number:
                group = self._groups.get(number)
                if group is None:
                    others.append(request)  # removed since it was offered: fails when it lands
                    continue
                index = group.index[self.rank]
            known = group.cache.find(request.name)
            if known is None or not is_repeat(known.requests[index], request):
                others.append(request)
                continue
            if key[1] != known.generation or key[0] != number:
                key = (number, known.generation)
                asked, numbers = repeats.setdefault(key, []), slots.setdefault(key, [])
            asked.append(request)
            numbers.append(known.slot)
        return others

    def _repeat_in_full(self, posted: _Posted, key: _Key) -> None:
        """Offer again what all replicas have forgotten since this rank sent bits for it."""
        requests = posted.repeats[key]
        names = {request.name for request in requests}
        self._offers += requests
        self._verdicts += [
            verdict for verdict in posted.verdicts if verdict[1] == key[0] and verdict[2] in names
        ]

    def _describe(self, group: Group, waiting: Waiting) -> Pending:
        return Pending(
            request=group.any_request(waiting, group.my_bit),
            have=group.ranks_of(waiting.have),
            missing=group.ranks_of(group.full & ~(waiting.have | group.joined)),
            joined=group.ranks_of(group.joined & ~waiting.have),
            number=waiting.number,
        )

    def _refusal(self, what: str, process_set: int) -> Exception:
        group = self._groups.get(process_set)
        if self._is_leaving:
            return NotInitializedError(what)
        if group is None:
            return ProcessSetError(
                f"rank {self.rank}: {what}: there is no process set {process_set};"
                f" there are {sorted(self._groups)}"
            )
        return ProcessSetError(
            f"rank {self.rank}: {what}: process set {process_set} has the ranks"
            f" {list(group.ranks)} and not this one"
        )


def _at(request: Request) -> str:
    return f" at {request.where}" if request.where else ""
