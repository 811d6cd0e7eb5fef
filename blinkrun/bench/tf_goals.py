"""What this version promises of training with TensorFlow, and whether a report reaches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blinkrun.bench.framework import TF_WAYS
from blinkrun.bench.goals import Result, Spread
from blinkrun.bench.tf_training import OURS

Take = Callable[[Result], float | None]


@dataclass(frozen=True, slots=True)
class Goal:
    """In the runs on `ranks` ranks, the figure of `model` is from `least` to `most`."""

    ranks: int
    model: str
    text: str
    take: Take
    least: float = 0.0
    most: float = float("inf")


def over(ours: str, way: str, *, times: int = 1) -> Take:
    """Return the rate of one of ours over so many `times` that of `way`, if both were measured."""

    def take(result: Result) -> float | None:
        rates = result["samples_per_s"]
        if OURS[ours] not in rates or TF_WAYS[way] not in rates:
            return None
        return float(rates[OURS[ours]]["median"] / rates[TF_WAYS[way]]["median"] / times)

    return take


def timeline_over_difference(result: Result) -> float | None:
    """Return the share of communication by the timeline over that by step times, for Keras' fit."""
    share = result["share"].get(OURS["fit"])
    if share is None or share["difference"] <= 0:
        return None
    return float(share["timeline"] / share["difference"])


def more_memory(result: Result) -> float | None:
    """Return what a rank takes more than one process, over model and one copy of the gradients."""
    memory = result.get("memory")
    if memory is None:
        return None
    return float((memory["peak_bytes"] - memory["plain_peak_bytes"]) / memory["allowed_bytes"])


def goals() -> list[Goal]:
    """Return the goals of this version."""
    found = [
        Goal(2, "mlp25m", ">= 1.3x MultiWorkerMirroredStrategy", over("fit", "mwms"), least=1.3),
        Goal(2, "cnn", ">= 0.85x twice one process", over("fit", "single", times=2), least=0.85),
        Goal(
            2,
            "mlp25m",
            "communication by the timeline within 20 % of that by step times",
            timeline_over_difference,
            least=0.8,
            most=1.2,
        ),
        Goal(
            2,
            "mlp25m",
            "peak memory above one process <= model and one copy of the gradients",
            more_memory,
            least=-float("inf"),
            most=1.0,
        ),
    ]
    for model in ("mlp25m", "cnn"):
        text = "at least 98 % of Keras without the wrapper"
        found.append(Goal(1, model, text, over("fit", "single"), least=0.98))
    return found


def tf_goal_lines(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the rows of a table that says of each goal whether `runs`, by name, reach it."""
    lines = ["| goal | median | reached |", "| --- | --- | --- |"]
    for goal in goals():
        figures = _figures(goal, runs)
        if figures:
            spread = Spread.of(figures)
            reached = "yes" if goal.least <= spread.median <= goal.most else "**no**"
            lines.append(
                f"| {goal.ranks} ranks, {goal.model}: {goal.text} | {spread.text()} | {reached} |"
            )
    return lines


def _figures(goal: Goal, runs: Mapping[str, Sequence[Any]]) -> list[float]:
    """Return the figure of every launch that has measured it."""
    models = [
        launch["models"][goal.model]
        for launches in runs.values()
        for launch in launches
        if launch["ranks"] == goal.ranks and goal.model in launch["models"]
    ]
    return [figure for model in models if (figure := goal.take(model)) is not None]
