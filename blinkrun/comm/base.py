"""What the ranks need to find each other: a small control plane. Data never takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from blinkrun.errors import UsageError
from blinkrun.types import Rank


@dataclass(frozen=True, slots=True)
class Wire:
    """A communicator of the process's MPI as native code uses it, for messages between hosts.

    Attributes
    ----------
    functions : mapping of str to int
        Addresses of ``isend``, ``irecv``, ``test``, ``testsome``, ``cancel``, ``request_free``,
        ``get_count``, ``error_string`` and ``finalized``; ``test`` is 0 where no send needs it.
    handles : mapping of str to int
        ``comm`` (all ranks of the control plane, in its order, for this alone), ``byte`` and
        ``request_null``, as words.
    sizes : mapping of str to int
        ``request_bytes`` and ``status_bytes``; ``piece_bytes``: of the messages into which data is
        best cut, 0 where that does not matter.
    swap : callable
        ``swap(dst, src, given, taken, timeout_s)`` sends the bytes `given` to rank `dst` while
        `taken` comes from rank `src`, and returns when that is there. Native code has its own way.
    meet : callable
        ``meet(timeout_s)`` returns when all ranks have called it, and sleeps until then.
    before_end : callable
        ``before_end(method)`` has a bound method called before MPI ends, whoever ends it, if its
        object is there then; the latest first. Nothing of the wire may be used afterwards.
    owner : object
        Keeps the communicator; it is freed with the control plane.
    """

    functions: Mapping[str, int]
    handles: Mapping[str, int]
    sizes: Mapping[str, int]
    swap: Callable[[Rank, Rank, bytearray, bytearray, float], None]
    meet: Callable[[float], None]
    before_end: Callable[[Callable[[], None]], None]
    owner: Any


class ControlPlane(Protocol):
    """Exchange of small Python objects between all ranks; every call is collective."""

    rank: Rank
    size: int

    def allgather(self, item: Any) -> list[Any]:
        """Return the `item` of every rank, in the order of ranks."""
        ...

    def broadcast(self, item: Any, root: Rank = 0) -> Any:
        """Return the `item` of `root`."""
        ...

    def sub(self, ranks: Sequence[Rank], *, timeout_s: float) -> ControlPlane:
        """Return the control plane of `ranks` alone, in which they count in the order given.

        Collective among `ranks`, which give the same list; nobody else takes part. Ends after
        `timeout_s` if one of them does not come.

        Raises
        ------
        UsageError
            If `ranks` is no list of different ranks that this rank belongs to.
        CollectiveTimeoutError
            If a rank did not come; `err.ranks` are numbers in this control plane.
        """
        ...

    def wire(self) -> Wire | None:
        """Return a communicator for messages between hosts, or None where there is no MPI.

        Collective. Every call makes another one.

        Raises
        ------
        LaunchError
            If the MPI does not let several threads call it at a time.
        """
        ...

    def finalize(self) -> None:
        """End the control plane; waits for the other ranks where the system under it does."""
        ...

    def abort(self, code: int) -> None:
        """End all ranks now. Returns only where nothing but this process can be ended."""
        ...


def check_subset(ranks: Sequence[Rank], *, rank: Rank, size: int) -> tuple[Rank, ...]:
    """Return `ranks` as a tuple if they are different ranks of `size`, `rank` among them.

    Raises
    ------
    UsageError
        Otherwise.

    Examples
    --------
    >>> check_subset([2, 0], rank=0, size=3)
    (2, 0)
    """
    chosen = tuple(int(each) for each in ranks)
    if not chosen:
        raise UsageError("a group needs at least one rank")
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"ranks {list(chosen)}: a rank can be in a group once only")
    strangers = [each for each in chosen if not 0 <= each < size]
    if strangers:
        raise UsageError(f"ranks {strangers} do not exist; there are ranks 0 to {size - 1}")
    if rank not in chosen:
        raise UsageError(
            f"rank {rank} is none of the ranks {list(chosen)}; only they make the group"
        )
    return chosen
