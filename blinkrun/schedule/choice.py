"""What is chosen for a collective by its size: which trees, how many channels, which chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from blinkrun.errors import PlanError
from blinkrun.planner.plan import PlannedPacking


@dataclass(frozen=True, slots=True)
class Choice:
    """Trees for blocks of up to `upto_bytes`.

    Attributes
    ----------
    upto_bytes : int or None
        Largest size that they are for (bytes of the collective as nccl-tests counts them); None
        for the last: any.
    trees : str
        What they are, for people: ``packed``, ``few packed``, ``one-hop``, ``shallow``.
    packing : PlannedPacking
    chunk_bytes : int
        Of a pipelined program; 0 leaves it to the executor.
    channels_per_tree : int
        As for `lower`.
    """

    upto_bytes: int | None
    trees: str
    packing: PlannedPacking
    chunk_bytes: int = 0
    channels_per_tree: int = 1

    def __post_init__(self) -> None:
        if self.chunk_bytes < 0 or self.channels_per_tree < 1 or (self.upto_bytes or 0) < 0:
            raise PlanError(
                f"choice up to {self.upto_bytes} bytes: chunks of {self.chunk_bytes} bytes, "
                f"{self.channels_per_tree} channels per tree"
            )


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices for one collective and root, by ascending size; the last is for any size."""

    by_size: tuple[Choice, ...]

    def __post_init__(self) -> None:
        limits = [choice.upto_bytes for choice in self.by_size]
        if not limits or limits[-1] is not None or None in limits[:-1]:
            raise PlanError("choices by size need one for any size, at the end")
        if any(low >= high for low, high in pairwise(_numbers(limits[:-1]))):
            raise PlanError(f"choices are not in the order of their sizes: {limits}")

    def of(self, size_bytes: int) -> Choice:
        """Return the choice for that size."""
        for choice in self.by_size[:-1]:
            if size_bytes <= (choice.upto_bytes or 0):
                return choice
        return self.by_size[-1]


def _numbers(limits: Sequence[int | None]) -> list[int]:
    return [limit for limit in limits if limit is not None]
