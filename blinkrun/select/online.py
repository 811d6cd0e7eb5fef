"""Chunk sizes tuned while a job runs: a search (`miad`) for each collective and class of sizes.

Only the first rank decides: what it posts with a call is the chunk of all ranks, so nobody needs
to agree on anything. The other ranks have no tuner, or one that nobody asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.errors import PlanError, UsageError
from blinkrun.schedule.chunking import ALIGN_BYTES
from blinkrun.select.miad import Miad
from blinkrun.types import Collective, Rank

LEAST_BYTES = 64 << 10  # smaller calls are over before chunks matter
LEAST_CHUNK = 4 << 10
MOST_CHUNK = 8 << 20
SAMPLES = 3  # calls with each chunk, of which the median counts
TOLERANCE = Fraction(1, 8)  # for times that differ by 5 % from call to call: see `Miad`
_VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """Calls that are tuned together.

    Attributes
    ----------
    collective : Collective
    root : Rank
        0 where there is none.
    size_class : int
        Bytes of the collective are in ``[2**size_class, 2**(size_class + 1))``.
    """

    collective: Collective
    root: Rank
    size_class: int


class OnlineTuner:
    """The chunk size of the next call, learned from how long the calls before took.

    Parameters
    ----------
    settled : mapping of Kind to int, optional
        Chunk sizes that an earlier job ended with: they stay.

    Examples
    --------
    >>> tuner = OnlineTuner()
    >>> size = 1 << 20
    >>> while not tuner.is_settled(Collective.ALLREDUCE, size):
    ...     chunk = tuner.chunk_bytes(Collective.ALLREDUCE, size)
    ...     tuner.record(Collective.ALLREDUCE, size, abs(chunk - 100_000))
    >>> tuner.chunk_bytes(Collective.ALLREDUCE, size)
    98304
    """

    def __init__(self, settled: Mapping[Kind, int] | None = None) -> None:
        self._chunks = dict(settled or {})
        self._searches: dict[Kind, Miad] = {}

    def chunk_bytes(self, collective: Collective, size_bytes: int, root: Rank = 0) -> int:
        """Return the chunk of the next call; 0 where it is left to the executor."""
        kind = kind_of(collective, size_bytes, root)
        if kind is None:
            return 0
        if kind in self._chunks:
            return self._chunks[kind]
        return self._search(kind).chunk_bytes

    def record(self, collective: Collective, size_bytes: int, time_ns: int, root: Rank = 0) -> None:
        """Learn that a call with the chunk that `chunk_bytes` gave took so long.

        Raises
        ------
        UsageError
            If the time is negative.
        """
        if time_ns < 0:
            raise UsageError(f"a call took {time_ns} ns; no time is negative")
        kind = kind_of(collective, size_bytes, root)
        if kind is None or kind in self._chunks:
            return
        # sizes of a class differ by less than twice: what counts is the time for as many bytes
        scaled = time_ns * (1 << kind.size_class) // size_bytes
        state = self._search(kind).record(scaled)
        self._searches[kind] = state
        if state.is_settled:
            self._chunks[kind] = state.chunk_bytes

    def is_settled(self, collective: Collective, size_bytes: int, root: Rank = 0) -> bool:
        """Whether the chunk of such calls stays as it is."""
        kind = kind_of(collective, size_bytes, root)
        return kind is None or kind in self._chunks

    def settled(self) -> dict[Kind, int]:
        """Return the chunk sizes that stay, to be kept for the next job."""
        return dict(sorted(self._chunks.items()))

    def _search(self, kind: Kind) -> Miad:
        if kind not in self._searches:
            most = max(LEAST_CHUNK, min(MOST_CHUNK, (1 << kind.size_class) // ALIGN_BYTES * 64))
            self._searches[kind] = Miad(LEAST_CHUNK, most, samples=SAMPLES, tolerance=TOLERANCE)
        return self._searches[kind]


def kind_of(collective: Collective, size_bytes: int, root: Rank = 0) -> Kind | None:
    """Return what a call is tuned with; None if it is too small to be tuned.

    >>> kind_of(Collective.ALLREDUCE, 1 << 20), kind_of(Collective.ALLREDUCE, 1000)
    (Kind(collective=<Collective.ALLREDUCE: 0>, root=0, size_class=20), None)
    """
    if size_bytes < LEAST_BYTES or collective is Collective.BARRIER:
        return None
    return Kind(collective, root if collective.is_rooted else 0, size_bytes.bit_length() - 1)


def settled_to_json(settled: Mapping[Kind, int]) -> str:
    """Return chunk sizes as JSON text; equal ones give equal text."""
    rows = [
        [kind.collective.label, kind.root, kind.size_class, chunk]
        for kind, chunk in sorted(settled.items())
    ]
    return json.dumps({"version": _VERSION, "chunks": rows}, separators=(",", ":"))


def settled_from_json(text: str) -> dict[Kind, int]:
    """Return the chunk sizes that `settled_to_json` wrote.

    Raises
    ------
    PlanError
        If `text` is something else.
    """
    try:
        data = json.loads(text)
        if data["version"] != _VERSION:
            raise PlanError(f"chunk sizes of version {data['version']}, this is {_VERSION}")
        found = {
            Kind(Collective[label.upper()], int(root), int(size_class)): int(chunk)
            for label, root, size_class, chunk in data["chunks"]
        }
    except PlanError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as err:
        raise PlanError(f"text holds no chunk sizes: {type(err).__name__}: {err}") from err
    for kind, chunk in found.items():
        if chunk < ALIGN_BYTES or chunk % ALIGN_BYTES:
            raise PlanError(f"chunk of {chunk} bytes for {kind.collective.label}: no cache lines")
    return found
