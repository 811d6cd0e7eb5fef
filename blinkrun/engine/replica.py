"""The replicated half of the negotiation: what follows from the messages of the journal.

A `Replica` is fed the same messages in the same order on every rank, and comes to the same events.
`negotiate` adds the other half: what this rank wants to say.
"""

from __future__ import annotations

from typing import Any

from blinkrun.engine.agree import describe, find_disagreement, name_ranks
from blinkrun.engine.cache import Known, ResponseCache
from blinkrun.engine.events import (
    JOIN,
    Entry,
    Event,
    Failed,
    Joined,
    Left,
    Noted,
    Ready,
    SetAdded,
    SetRemoved,
    Verdict,
)
from blinkrun.engine.messages import Control, decode, unpack, unpack_slots
from blinkrun.engine.names import is_made_up
from blinkrun.engine.request import WORLD, Kind, Request
from blinkrun.errors import (
    BlinkrunError,
    CollectiveTimeoutError,
    InternalError,
    MismatchError,
    NonFiniteError,
    PeerLeftError,
    ProcessSetError,
)
from blinkrun.types import Rank

MINE = -1  # in place of a number: the request of this name that the sender itself has offered


class Waiting:
    """A request that some rank has offered. Bit i of `have` is rank i of the set.

    While every offer was a repeat of `known`, that says what was asked; else `requests` does.
    """

    __slots__ = ("defect", "have", "known", "name", "number", "requests")

    def __init__(self, name: str, number: int, known: Known | None) -> None:
        self.name = name
        self.number = number
        self.known = known
        self.have = 0
        self.requests: dict[int, Request | None] = {}
        self.defect: BlinkrunError | None = None

    def put(self, index: int, request: Request | None) -> None:
        """Note what a rank asks, other than by repeating `known`."""
        if self.known is not None:
            asked = enumerate(self.known.requests)
            self.requests = {i: request for i, request in asked if self.have >> i & 1}
            self.known = None
        self.requests[index] = request
        self.have |= 1 << index

    def asked(self, index: int) -> Request | None:
        """Return what a rank asks, None if it has not offered."""
        if not self.have >> index & 1:
            return None
        return self.requests[index] if self.known is None else self.known.requests[index]


class Group:
    """A process set: who is in it, what its ranks wait for, what they are known to ask."""

    def __init__(self, number: int, ranks: tuple[Rank, ...], rank: Rank, capacity: int) -> None:
        self.number = number
        self.ranks = ranks
        self.index = {member: index for index, member in enumerate(ranks)}
        self.my_bit = 1 << self.index[rank] if rank in self.index else 0
        self.full = (1 << len(ranks)) - 1
        self.joined = 0
        self.gone: tuple[Rank, ...] = ()
        self.pending: dict[str, Waiting] = {}
        self.mine: dict[str, Request] = {}  # what this rank has under way
        self.cache = ResponseCache(capacity)

    def ranks_of(self, mask: int) -> tuple[Rank, ...]:
        """Return the ranks whose bits are set."""
        return tuple(rank for index, rank in enumerate(self.ranks) if mask >> index & 1)

    def any_request(self, waiting: Waiting, prefer: int = 0) -> Request:
        """Return the request of the first rank that has one, the same on all ranks.

        With a bit in `prefer`: that rank's, if it has one.
        """
        bit = waiting.have & prefer or waiting.have & -waiting.have
        request = waiting.asked(bit.bit_length() - 1)
        if request is None:
            raise InternalError(f"nobody asked for '{waiting.name}'")
        return request


class Replica:
    """Process sets and requests as the messages read so far have made them.

    Parameters
    ----------
    rank : Rank
        Whose replica: it decides which request stands first in an `Entry`, and nothing else.
    size : int
        Ranks of the world.
    capacity : int
        Of each process set's response cache.
    """

    def __init__(self, rank: Rank, size: int, capacity: int) -> None:
        self.rank = rank
        self._capacity = capacity
        self.groups = {WORLD: Group(WORLD, tuple(range(size)), rank, capacity)}
        self.left: set[Rank] = set()
        self._next_set = 1
        self._next_number = 0  # of requests: in the order of their first offers
        self._complete: list[tuple[Group, Waiting]] = []  # by the message that is being taken
        self._events: list[Event] = []
        self._ready: list[Entry] = []

    def take(self, sender: Rank, message: bytes) -> tuple[list[Event], list[tuple[int, int]]]:
        """Return what follows from a message, and the repeats in it that nobody can read any more.

        The latter are (process set, generation of its cache); the sender must offer those requests
        in full.
        """
        if sender in self.left:
            return [], []
        repeats, offers, controls = decode(message)
        forgotten = [
            (number, generation)
            for number, generation, packed in repeats
            if not self._take_repeats(sender, number, generation, packed)
        ]
        for packed_request in offers:
            self._take_offer(sender, unpack(packed_request))
        for code, *fields in controls:
            _CONTROLS[code](self, sender, *fields)
        self._settle_all()
        events, self._events = self._events, []
        return events, forgotten

    # ---- offers --------------------------------------------------------------------------------

    def _take_repeats(
        self, sender: Rank, number: int, generation: int, packed: int | tuple[int, ...]
    ) -> bool:
        """Take offers that repeat a known request; False if its generation is forgotten."""
        group = self.groups.get(number)
        lines = None if group is None else group.cache.readable(generation)
        if group is None or lines is None:
            return False
        index = group.index[sender]
        bit = 1 << index
        full, joined, pending = group.full, group.joined, group.pending
        for slot in unpack_slots(packed):
            known = lines[slot]
            name = known.name
            waiting = pending.get(name)
            if waiting is None:
                pending[name] = waiting = Waiting(name, self._next_number, known)
                self._next_number += 1
                waiting.have = bit
            elif waiting.known is known:
                waiting.have |= bit
            else:
                waiting.put(index, known.requests[index])
            if waiting.have | joined == full:
                self._complete.append((group, waiting))
        if group.gone:
            self._fail_all(group)
        return True

    def _take_offer(self, sender: Rank, request: Request) -> None:
        group = self.groups.get(request.process_set)
        if group is None:
            error = ProcessSetError(
                f"{request.kind.label} '{request.name}': process set {request.process_set} was"
                " removed while the request was under way"
            )
            self._events.append(Failed(request.process_set, request.name, error, (sender,)))
            return
        index = group.index[sender]
        if sender == self.rank:
            request = group.mine.get(request.name, request)
        waiting = group.pending.get(request.name)
        if waiting is None:
            waiting = group.pending[request.name] = Waiting(request.name, self._next_number, None)
            self._next_number += 1
        elif waiting.have >> index & 1:
            raise InternalError(f"rank {sender} offered '{request.name}' twice")
        waiting.put(index, request)
        if group.gone:
            self._fail_all(group)
        elif waiting.have | group.joined == group.full:
            self._complete.append((group, waiting))

    # ---- controls ------------------------------------------------------------------------------

    def _take_join(self, sender: Rank, number: int) -> None:
        group = self.groups.get(number)
        if group is None:
            error = ProcessSetError(f"join: process set {number} was removed meanwhile")
            self._events.append(Failed(number, JOIN, error, (sender,)))
            return
        group.joined |= 1 << group.index[sender]
        if group.gone:
            self._fail_join(group, _left_error("join", group.gone, (sender,)))
            return
        self._complete += [
            (group, waiting)
            for waiting in group.pending.values()
            if waiting.have | group.joined == group.full
        ]
        if group.joined == group.full:
            self._settle_all()  # what waited for this rank comes before the end
        if group.joined == group.full:  # still: the set may have been removed by what was settled
            group.joined = 0
            self._events.append(Joined(number, sender))

    def _take_leave(self, _: Rank, rank: Rank) -> None:
        if rank in self.left:
            return
        self._settle_all()
        self.left.add(rank)
        for group in self.groups.values():
            if rank in group.index:
                group.gone = (*group.gone, rank)
                self._fail_all(group)
                self._fail_join(group, _left_error("join", group.gone, group.ranks))
        self._events.append(Left(rank))

    def _take_note(self, sender: Rank, payload: bytes) -> None:
        self._events.append(Noted(sender, payload))

    def _take_verdict(self, sender: Rank, *fields: Any) -> None:
        number, name, which, verdict, reason = fields
        group = self.groups.get(number)
        waiting = None if group is None else group.pending.get(name)
        if group is None or waiting is None:
            return
        if which == MINE:
            if not waiting.have >> group.index[sender] & 1:
                return
        elif which != waiting.number:
            return
        ranks = group.ranks_of(waiting.have)
        if verdict == Verdict.NON_FINITE:
            if waiting.defect is None:
                waiting.defect = NonFiniteError(reason, name, sender)
        elif verdict == Verdict.TIMEOUT:
            missing = group.ranks_of(group.full & ~(waiting.have | group.joined))
            self._fail(group, waiting, CollectiveTimeoutError(reason, missing))
        else:
            asked = ((rank, waiting.asked(group.index[rank])) for rank in ranks)
            calls = {rank: describe(call) for rank, call in asked if call is not None}
            self._fail(group, waiting, MismatchError(reason, calls))

    # ---- decisions -----------------------------------------------------------------------------

    def _settle_all(self) -> None:
        """Decide on the requests that have become complete, in the order of their first offers."""
        complete, self._complete = self._complete, []
        complete.sort(key=_number)
        ready = self._ready
        for group, waiting in complete:
            name = waiting.name
            if group.pending.get(name) is not waiting:
                continue  # failed by something else in this message
            known = waiting.known
            if (
                known is None
                or known.entry is None
                or waiting.have != group.full
                or waiting.defect is not None
            ):
                self._settle(group, waiting)
                continue
            del group.pending[name]
            group.mine.pop(name, None)
            if known.generation != group.cache.generation:
                group.cache.keep(known)
            ready.append(known.entry)
        self._flush()

    def _settle(self, group: Group, waiting: Waiting) -> None:
        """Decide on one request whose ranks have not all repeated what they agreed on before."""
        requests = tuple(waiting.asked(index) for index in range(len(group.ranks)))
        request = group.any_request(waiting, group.my_bit)
        error = find_disagreement(group.ranks, requests) or waiting.defect
        if error is None and request.kind in (Kind.ADD_SET, Kind.REMOVE_SET):
            error = self._set_error(request)
        if error is not None:
            self._fail(group, waiting, error)
            return
        self._forget(group, waiting)
        is_mine = bool(waiting.have & group.my_bit)
        if request.kind is Kind.ADD_SET:
            self._add_set(Entry(request, requests, is_mine, self._next_set))
        elif request.kind is Kind.REMOVE_SET:
            self._remove_set(Entry(request, requests, is_mine, request.ranks[0]))
        else:
            entry = Entry(request, requests, is_mine)
            if not is_made_up(waiting.name):
                group.cache.store(waiting.name, requests, entry)
            self._ready.append(entry)

    def _set_error(self, request: Request) -> BlinkrunError | None:
        """Return what is wrong with a set that all ranks want to add or remove."""
        ranks = request.ranks
        size = len(self.groups[WORLD].ranks)
        if request.kind is Kind.REMOVE_SET:
            if ranks[0] == WORLD:
                return ProcessSetError("process set 0 is the world and cannot be removed")
            if ranks[0] not in self.groups:
                return ProcessSetError(f"there is no process set {ranks[0]} to remove")
            return None
        if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(size)):
            return ProcessSetError(
                f"a process set of ranks {list(ranks)} cannot be made: name at least one rank of"
                f" 0 to {size - 1}, each once"
            )
        for group in self.groups.values():
            if set(group.ranks) == set(ranks):
                return ProcessSetError(
                    f"process set {group.number} already has exactly the ranks {sorted(ranks)}"
                )
        return None

    def _add_set(self, entry: Entry) -> None:
        number, ranks = entry.number, entry.request.ranks
        group = self.groups[number] = Group(number, ranks, self.rank, self._capacity)
        group.gone = tuple(rank for rank in ranks if rank in self.left)
        self._next_set += 1
        self._ready.append(entry)
        self._flush()
        self._events.append(SetAdded(number, ranks))

    def _remove_set(self, entry: Entry) -> None:
        """Run what is ready, fail what waits, then remove the set."""
        self._flush()
        number = entry.number
        group = self.groups[number]
        for waiting in list(group.pending.values()):
            request = group.any_request(waiting)
            text = f"{request.kind.label} '{request.name}': process set {number} was removed before"
            self._fail(group, waiting, ProcessSetError(f"{text} all its ranks had called it"))
        self._fail_join(group, ProcessSetError(f"join: process set {number} was removed meanwhile"))
        del self.groups[number]
        self._ready.append(entry)
        self._flush()
        self._events.append(SetRemoved(number))

    # ---- failures ------------------------------------------------------------------------------

    def _fail_all(self, group: Group) -> None:
        """Fail what waits for ranks that have left, or has them among those that asked."""
        for waiting in list(group.pending.values()):
            request = group.any_request(waiting)
            what = f"{request.kind.label} '{request.name}'"
            self._fail(group, waiting, _left_error(what, group.gone, group.ranks))

    def _fail(self, group: Group, waiting: Waiting, error: BlinkrunError) -> None:
        self._forget(group, waiting)
        ranks = group.ranks_of(waiting.have)
        self._events.append(Failed(group.number, waiting.name, error, ranks))

    def _fail_join(self, group: Group, error: BlinkrunError) -> None:
        joined, group.joined = group.joined, 0
        if joined:
            self._events.append(Failed(group.number, JOIN, error, group.ranks_of(joined)))

    def _forget(self, group: Group, waiting: Waiting) -> None:
        del group.pending[waiting.name]
        if waiting.have & group.my_bit:
            group.mine.pop(waiting.name, None)

    def _flush(self) -> None:
        if self._ready:
            self._events.append(Ready(tuple(self._ready)))
            self._ready.clear()


def _number(item: tuple[Group, Waiting]) -> int:
    return item[1].number


def _left_error(what: str, gone: tuple[Rank, ...], ranks: tuple[Rank, ...]) -> PeerLeftError:
    others = (
        name_ranks(rank for rank in ranks if rank not in gone) if set(ranks) - set(gone) else ""
    )
    waiting = f"; {others} cannot go on with it alone" if others else ""
    has = "has" if len(gone) == 1 else "have"
    return PeerLeftError(f"{what}: {name_ranks(gone)} {has} left the job{waiting}", gone[0])


_CONTROLS: dict[int, Any] = {
    Control.JOIN: Replica._take_join,
    Control.LEAVE: Replica._take_leave,
    Control.NOTE: Replica._take_note,
    Control.FAIL: Replica._take_verdict,
}
