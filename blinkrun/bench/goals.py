"""The speeds that this version promises, and whether a report reaches them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blinkrun.units import KIB, format_size

MIB = KIB * KIB
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some launches, and their range."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return Spread(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        """Return the median, with the range behind it where there is one."""
        middle = f"{self.median:.{digits}f}"
        if self.least == self.most:
            return middle
        return f"{middle} ({self.least:.{digits}f} to {self.most:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Goal:
    """In run `run`, from `first` to `last` bytes, at least `factor` times the best peer's algbw.

    A factor of 2/3 says: at most 1.5 times the peer's time.
    """

    run: str
    first: int
    last: int
    factor: float

    def text(self) -> str:
        """Return the goal in words."""
        sizes = format_size(self.first)
        if self.first != self.last:
            sizes += f" to {format_size(self.last)}"
        if self.factor < 1:
            return f"{self.run}, {sizes}: at most {1 / self.factor:.1f}x the best peer's time"
        more = ">=" if self.factor > 1 else "ahead of"
        what = f"{self.factor:g}x the best peer" if self.factor > 1 else "the best peer"
        return f"{self.run}, {sizes}: {more} {what}"


def goals() -> list[Goal]:
    """Return the goals of this version, against the better of MPI and gloo in the same run."""
    found = [
        Goal("2 ranks arena", 256 * KIB, 256 * MIB, 3),
        Goal("2 ranks arena", 16 * KIB, 16 * KIB, 2),
        Goal("2 ranks arena", 4, KIB, 2 / 3),
        Goal("2 ranks user", 256 * KIB, 256 * MIB, 2),
        Goal("2 ranks user", 16 * KIB, 16 * KIB, 1.5),
        Goal("2 ranks user", 4, KIB, 2 / 3),
        Goal("4 ranks arena", 16 * KIB, 256 * MIB, 3),
        Goal("4 ranks user", 16 * KIB, 256 * MIB, 1.5),
    ]
    for ranks in (8, 16):
        found += [
            Goal(f"{ranks} ranks {kind}", 16 * KIB, 64 * MIB, 1) for kind in ("arena", "user")
        ]
    return found


def ratio(row: Result) -> float | None:
    """Return blinkrun's algbw over the best peer's, None without a peer."""
    best = max((peer["algbw_gb_per_s"] for peer in row["peers"].values()), default=None)
    return None if best is None else float(row["algbw_gb_per_s"] / best)


def ratios(launches: Sequence[Result]) -> dict[int, Spread]:
    """Return the ratio to the best peer by size, over the launches of one run."""
    sizes = [row["size_bytes"] for row in launches[0]["rows"]]
    found: dict[int, Spread] = {}
    for index, size_bytes in enumerate(sizes):
        values = [ratio(launch["rows"][index]) for launch in launches]
        if None not in values:
            found[size_bytes] = Spread.of([value for value in values if value is not None])
    return found


def goal_lines(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the rows of a table that says of each goal whether `runs` reach it.

    `runs` are the JSON results of the launches of each run, by its name.
    """
    lines = ["| goal | lowest | reached |", "| --- | --- | --- |"]
    for goal in goals():
        found = ratios(runs[goal.run]) if runs.get(goal.run) else {}
        inside = {size: s for size, s in found.items() if goal.first <= size <= goal.last}
        if inside:
            size = min(inside, key=lambda size: inside[size].median)
            is_met = inside[size].median >= goal.factor
            lowest = f"{inside[size].text()} at {format_size(size)}"
            lines.append(f"| {goal.text()} | {lowest} | {'yes' if is_met else '**no**'} |")
    return [*lines, *_against_float32(runs), *_against_memory(runs)]


def _against_float32(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """16-bit floats: at least float32's algbw from 1 MiB up."""
    lines = []
    for dtype in ("bfloat16", "float16"):
        ours, base = runs.get(f"2 ranks {dtype}"), runs.get("2 ranks float32")
        if not ours or not base:
            continue
        pairs = zip(_bandwidths(ours).items(), _bandwidths(base).values(), strict=True)
        shares = {size: mine / theirs for (size, mine), theirs in pairs if size >= MIB}
        size = min(shares, key=lambda size: shares[size])
        reached = "yes" if shares[size] >= 1 else "**no**"
        lines.append(
            f"| 2 ranks {dtype}, from 1 MiB up: at least float32's algbw"
            f" | {shares[size]:.2f}x at {format_size(size)} | {reached} |"
        )
    return lines


def _bandwidths(launches: Sequence[Result]) -> dict[int, float]:
    """Return the median algbw by size."""
    columns = zip(*(launch["rows"] for launch in launches), strict=True)
    return {
        rows[0]["size_bytes"]: statistics.median(row["algbw_gb_per_s"] for row in rows)
        for rows in columns
    }


def _against_memory(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """64 MiB in the arena at 2 ranks: at least 70 % of the machine's read+write rate."""
    shares = [
        row["memory"]["share"]
        for launch in runs.get("2 ranks arena", ())
        for row in launch["rows"]
        if row["size_bytes"] == 64 * MIB and "memory" in row
    ]
    if not shares:
        return []
    found = Spread.of([100 * share for share in shares])
    reached = "yes" if found.median >= 70 else "**no**"
    return [
        "| 2 ranks arena, 64 MiB: >= 70 % of the machine's read+write rate"
        f" | {found.text(0)} % | {reached} |"
    ]


BLINK_DDP = "DDP over blink"
HOROVOD_MLP25 = 1338  # images/s of Horovod over MPI at 2 ranks on 2 cores, as measured there


def training_goal_lines(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the rows of a table that says of each goal of training whether `runs` reach it."""
    lines = ["| goal | median | reached |", "| --- | --- | --- |"]
    for ranks, model, what, least, share in _training_goals():
        launches = runs.get(f"{ranks} ranks training", ())
        models = [launch["models"][model] for launch in launches if model in launch["models"]]
        found = [figure for each in models if (figure := share(each)) is not None]
        if found:
            spread = Spread.of(found)
            reached = "yes" if spread.median >= least else "**no**"
            lines.append(f"| {ranks} ranks, {model}: {what} | {spread.text()} | {reached} |")
    return lines


def _training_goals() -> list[tuple[int, str, str, float, Callable[[Result], float | None]]]:
    """Return ranks, model, text, least figure, and how the figure is taken."""
    best = "the better of one flat MPI allreduce and Horovod's 1338"
    goals: list[tuple[int, str, str, float, Callable[[Result], float | None]]] = [
        (2, "mlp25", f">= 1.15x {best}", 1.15, _over_flat),
    ]
    for ours in ("blinkrun", BLINK_DDP):
        goals += [
            (2, "mlp25", f"{ours} >= 1.5x DDP over gloo", 1.5, _over("DDP over gloo", ours)),
            (2, "cnn1", f"{ours} >= 0.95x twice one process", 0.95, _over_twice_single(ours)),
        ]
    alone = "one process alone"
    goals += [
        (1, model, f"at least 98 % of {alone}", 0.98, _over(alone, "blinkrun"))
        for model in ("mlp25", "cnn1")
    ]
    return goals


def _rate(model: Result, way: str) -> float | None:
    """Return the samples per second of `way`; "blinkrun" is what it chooses by itself."""
    rates = model["samples_per_s"]
    way = model["auto"] if way == "blinkrun" else way
    return float(rates[way]["median"]) if way in rates else None


def _over(way: str, ours: str) -> Callable[[Result], float | None]:
    def share(model: Result) -> float | None:
        mine, theirs = _rate(model, ours), _rate(model, way)
        return None if mine is None or theirs is None else mine / theirs

    return share


def _over_flat(model: Result) -> float | None:
    mine, flat = _rate(model, "blinkrun"), _rate(model, "one flat MPI allreduce")
    return None if mine is None or flat is None else mine / max(flat, HOROVOD_MLP25)


def _over_twice_single(ours: str) -> Callable[[Result], float | None]:
    share = _over("one process alone", ours)

    def half(model: Result) -> float | None:
        whole = share(model)
        return None if whole is None else whole / 2

    return half
