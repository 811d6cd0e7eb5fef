"""What the negotiation tells the engine: the same values in the same order on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from blinkrun.engine.request import Request
from blinkrun.errors import BlinkrunError
from blinkrun.types import Rank

JOIN = ""  # stands where a request's name would: no request has an empty one


class Verdict(IntEnum):
    """Why a rank wants a request to fail on all ranks.

    MISMATCH and TIMEOUT end it at once, for the ranks that have offered it. NON_FINITE is about
    this rank's own offer and ends it when all ranks have offered: so all of them get the error.
    """

    MISMATCH = 0
    TIMEOUT = 1
    NON_FINITE = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that all ranks of its set have offered, or have joined instead.

    Attributes
    ----------
    request : Request
        This rank's own; that of the lowest rank that offered if this rank did not.
    requests : tuple of (Request or None)
        Of each rank of the process set, in the set's order; None for a rank that has joined.
    is_mine : bool
        Whether this rank offered it.
    number : int
        ADD_SET, REMOVE_SET: the process set that is made or removed.
    """

    request: Request
    requests: tuple[Request | None, ...]
    is_mine: bool
    number: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """Requests to run now, in this order; those of sets without this rank are skipped."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that cannot run; `ranks` had offered it and get `error`.

    The name is `JOIN` where ranks wait in vain for the others to join.
    """

    process_set: int
    name: str
    error: BlinkrunError
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """All ranks of the set have joined, `last_rank` last; from here on none has."""

    process_set: int
    last_rank: Rank


@dataclass(frozen=True, slots=True)
class SetAdded:
    """A process set exists from here on."""

    number: int
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class SetRemoved:
    """A process set exists no more; its number is not used again."""

    number: int


@dataclass(frozen=True, slots=True)
class Noted:
    """What another engine, or this one, has to say."""

    sender: Rank
    payload: bytes


@dataclass(frozen=True, slots=True)
class Left:
    """A rank's engine has stopped; nothing that needs this rank will run."""

    rank: Rank


Event = Ready | Failed | Joined | SetAdded | SetRemoved | Noted | Left


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that some rank of its set has not offered yet. Ranks are those of the world.

    Attributes
    ----------
    request : Request
        This rank's own, or that of the lowest rank that has offered.
    have, missing, joined : tuple of Rank
        Who has offered it, who has not, and who has joined and so is not waited for.
    number : int
        Which of the requests that ever had this name: no two share a number.
    conflict : str
        Why it can never become ready, empty if it can: two sets wait for each other's ranks.
    """

    request: Request
    have: tuple[Rank, ...]
    missing: tuple[Rank, ...]
    joined: tuple[Rank, ...]
    number: int
    conflict: str = ""
