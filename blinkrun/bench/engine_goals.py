"""The speeds that the engine promises, and whether a report reaches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blinkrun.bench.goals import MIB, Result, Spread
from blinkrun.units import KIB

SMALL_US = {2: 150.0, 4: 1000.0}


@dataclass(frozen=True, slots=True)
class EngineGoal:
    """A figure of one launch of `run`, which must be at least or at most `bound`."""

    run: str
    text: str
    figure: Callable[[Result], float | None]
    bound: float
    is_most: bool = False

    def line(self, launches: Sequence[Result]) -> str | None:
        """Return the goal's row, None where no launch has the figure."""
        values = [value for launch in launches if (value := self.figure(launch)) is not None]
        if not values:
            return None
        found = Spread.of(values)
        met = found.median <= self.bound if self.is_most else found.median >= self.bound
        return f"| {self.run}: {self.text} | {found.text()} | {'yes' if met else '**no**'} |"


def engine_goals() -> list[EngineGoal]:
    """Return the goals of named allreduces."""
    goals = [
        EngineGoal(
            f"{ranks} ranks engine",
            f"4 B to 16 KiB at most {bound:.0f} us",
            _longest,
            bound,
            is_most=True,
        )
        for ranks, bound in SMALL_US.items()
    ]
    beside = "2 ranks engine, Horovod"
    for run, peer, factor in ((beside, "horovod", 2.0), ("2 ranks engine", "gloo", 1.0)):
        goals.append(
            EngineGoal(
                run,
                f"1 to 64 MiB at least {factor:g}x the speed of {peer}",
                _least_ratio(peer),
                factor,
            )
        )
    goals.append(
        EngineGoal(beside, "1,000 small tensors at 10x Horovod's rate", _burst("horovod"), 10.0)
    )
    return goals


def engine_goal_lines(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the rows of a table that says of each goal whether `runs` reach it."""
    found = [goal.line(runs.get(goal.run, ())) for goal in engine_goals()]
    return ["| goal | median | reached |", "| --- | --- | --- |", *filter(None, found)]


def _longest(result: Result) -> float | None:
    times = [row["time_us"] for row in result["rows"] if row["size_bytes"] <= 16 * KIB]
    return float(max(times)) if times else None


def _least_ratio(peer: str) -> Callable[[Result], float | None]:
    def figure(result: Result) -> float | None:
        ratios = [
            row["peers"][peer]["time_us"] / row["time_us"]
            for row in result["rows"]
            if row["size_bytes"] >= MIB and peer in row["peers"]
        ]
        return float(min(ratios)) if ratios else None

    return figure


def _burst(peer: str) -> Callable[[Result], float | None]:
    def figure(result: Result) -> float | None:
        seconds = result["burst"]["seconds"]
        return float(seconds[peer] / seconds["blinkrun"]) if peer in seconds else None

    return figure
