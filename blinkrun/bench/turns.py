"""Ways to train take turns, block by block, and what that gives: rates, and what they share.

A way is anything that runs some steps and says how long they took; what it is made of is not known
here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from blinkrun.bench.libraries import Control
from blinkrun.bench.shares import by_difference

WARM_UP = 3  # steps before anything is timed, and steps by which the length of a block is found


class Way(Protocol):
    """A model in training, or what stands for one in another process."""

    def run(self, steps: int) -> float:
        """Return the seconds of `steps` steps; one more goes before them, in which ranks meet."""
        ...

    def digest(self) -> str:
        """Return a word that stands for the weights, bit for bit."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """A way under its name; one that does not take all ranks runs on rank 0, the others asleep."""

    name: str
    way: Way
    takes_all_ranks: bool = True


def timed(turn: Turn, steps: int, control: Control) -> list[float]:
    """Return the seconds of a block of steps that the ranks begin together, by rank.

    Every rank must call it.
    """
    control.barrier()
    takes_part = turn.takes_all_ranks or control.rank == 0
    seconds = turn.way.run(steps) if takes_part else 0.0
    everyone: list[float] = control.allgather_object(seconds)
    return everyone if turn.takes_all_ranks else everyone[:1]


def block_length(turn: Turn, control: Control, block_s: float) -> int:
    """Return the steps of a block of about `block_s` seconds, the same on all ranks."""
    timed(turn, WARM_UP, control)
    return max(1, round(block_s * WARM_UP / max(timed(turn, WARM_UP, control))))


def rates(
    turns: Sequence[Turn], *, rounds: int, batch: int, block_s: float, control: Control
) -> dict[str, list[float]]:
    """Return the samples per second of every way in every round, all ranks together."""
    steps = {turn.name: block_length(turn, control, block_s) for turn in turns}
    found: dict[str, list[float]] = {turn.name: [] for turn in turns}
    for _ in range(rounds):
        for turn in turns:
            seconds = timed(turn, steps[turn.name], control)
            found[turn.name].append(len(seconds) * steps[turn.name] * batch / max(seconds))
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and most of `values`."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


@dataclass(frozen=True, slots=True)
class Observed:
    """What one block said about its communication: seconds of a step, and parts of that."""

    step_s: float
    timeline: float
    busy: float


def shares(
    plain: Turn,
    observe: Callable[[int], Observed],
    *,
    rounds: int,
    block_s: float,
    control: Control,
) -> dict[str, float]:
    """Return how much of a step of rank 0 is communication, each the median over rounds.

    Parameters
    ----------
    plain : Turn
        The same training on all ranks at the same time, with nothing reduced.
    observe : callable
        Runs a block of so many steps with a timeline, and returns what was seen.
    rounds, block_s, control
        As for `rates`. Every rank must call this.

    Returns
    -------
    dict
        ``step_ms``, ``plain_step_ms``, and as parts of a step ``timeline``, in which a tensor was
        negotiated or travelled; ``busy``, in which the engine carried out requests;
        ``difference``, by which a step is longer than one of `plain`.
    """
    steps = block_length(plain, control, block_s)
    found: list[tuple[float, Observed]] = []
    for _ in range(rounds):
        plain_s = timed(plain, steps, control)[0] / steps
        control.barrier()
        seen: Observed = control.broadcast_object(observe(steps))
        found.append((plain_s, seen))
    middle: dict[str, Callable[[tuple[float, Observed]], float]] = {
        "step_ms": lambda pair: 1e3 * pair[1].step_s,
        "plain_step_ms": lambda pair: 1e3 * pair[0],
        "timeline": lambda pair: pair[1].timeline,
        "busy": lambda pair: pair[1].busy,
        "difference": lambda pair: by_difference(pair[1].step_s, pair[0]),
    }
    return {name: statistics.median(map(take, found)) for name, take in middle.items()}


def agreeing(digests: Mapping[str, str], control: Control) -> dict[str, bool]:
    """Return of each way whether its digest is the same on all ranks; every rank must call it."""
    everyone: list[dict[str, Any]] = control.allgather_object(dict(digests))
    return {name: len({each[name] for each in everyone}) == 1 for name in digests}
