"""What is chosen for a collective by its size: which trees, how many channels, which chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from blinkrun.errors import PlanError
from blinkrun.planner.plan import PlannedPacking, packing_in, packing_out

CHOICES_VERSION = 1  # raised when the text has another form


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

    def to_json(self) -> str:
        """Return the choices as JSON text; equal choices give equal text.

        Every packing is written once: it usually serves several sizes.
        """
        packings = list(dict.fromkeys(choice.packing for choice in self.by_size))
        return json.dumps(
            {
                "version": CHOICES_VERSION,
                "packings": [packing_out(one) | {"joint": one.joint} for one in packings],
                "by_size": [_choice_out(choice, packings) for choice in self.by_size],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Choices:
        """Return the choices that `to_json` wrote.

        Raises
        ------
        PlanError
            If `text` holds no choices of this version, or such that contradict themselves.
        """
        try:
            data = json.loads(text)
            if data["version"] != CHOICES_VERSION:
                raise PlanError(f"choices of version {data['version']}, this is {CHOICES_VERSION}")
            packings = [packing_in(one, joint=one["joint"]) for one in data["packings"]]
            return cls(tuple(_choice_in(entry, packings) for entry in data["by_size"]))
        except PlanError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as err:
            raise PlanError(f"text holds no choices: {type(err).__name__}: {err}") from err


def _choice_out(choice: Choice, packings: Sequence[PlannedPacking]) -> dict[str, Any]:
    return {
        "upto_bytes": choice.upto_bytes,
        "trees": choice.trees,
        "packing": packings.index(choice.packing),
        "chunk_bytes": choice.chunk_bytes,
        "channels_per_tree": choice.channels_per_tree,
    }


def _choice_in(entry: dict[str, Any], packings: Sequence[PlannedPacking]) -> Choice:
    at = entry["packing"]
    if at not in range(len(packings)):
        raise PlanError(f"choice of packing {at}, there are {len(packings)}")
    return Choice(
        entry["upto_bytes"],
        entry["trees"],
        packings[at],
        entry["chunk_bytes"],
        entry["channels_per_tree"],
    )


def _numbers(limits: Sequence[int | None]) -> list[int]:
    return [limit for limit in limits if limit is not None]
