"""What this version promises of several hosts, and whether a report reaches it; its tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blinkrun.bench.goals import MIB, Result, Spread, ratio
from blinkrun.bench.host_runs import RATES, TRAINED, run_name
from blinkrun.bench.predicted import predicted_us
from blinkrun.bench.runs import Outcome
from blinkrun.bench.training import WAYS
from blinkrun.planner.hosts_plan import HostsPlan
from blinkrun.units import KIB, format_size

GIGABIT, FREE = RATES
BYTES_PER_US = {GIGABIT: 125.0}
PEERS = {"mpi": "Open MPI", "mpich": "MPICH", "gloo": "gloo"}

Figure = Callable[[Result, Mapping[str, Any]], float | None]  # of a launch and one of its rows


def bound_us(size_bytes: int, num_hosts: int, rate: str) -> float | None:
    """Return the least time of an allreduce: every host sends 2(h-1)/h of its bytes.

    >>> round(bound_us(16 << 20, 2, "1 Gbit/s"))
    134218
    """
    if rate not in BYTES_PER_US:
        return None
    return 2 * (num_hosts - 1) / num_hosts * size_bytes / BYTES_PER_US[rate]


def share_of_bound(launch: Result, row: Mapping[str, Any]) -> float | None:
    """Return the bound at 1 Gbit/s over the time, as a part of 1."""
    bound = bound_us(row["size_bytes"], len(launch["hosts"]), GIGABIT)
    return None if bound is None else bound / float(row["time_us"])


def over_best(launch: Result, row: Mapping[str, Any]) -> float | None:
    """Return how many times faster than the best peer."""
    return ratio(row)


def over(*peers: str) -> Figure:
    """Return the figure that says how many times faster than the fastest of `peers`."""

    def figure(launch: Result, row: Mapping[str, Any]) -> float | None:
        times = [row["peers"][peer]["time_us"] for peer in peers if peer in row["peers"]]
        return min(times) / float(row["time_us"]) if times else None

    return figure


@dataclass(frozen=True, slots=True)
class HostGoal:
    """In run `run`, from `first` to `last` bytes, a figure of at least `least`."""

    run: str
    first: int
    last: int
    text: str
    figure: Figure
    least: float

    def line(self, launches: Sequence[Result]) -> str | None:
        """Return the goal's row, judged at its lowest size; None where nothing was measured."""
        lowest: tuple[Spread, int] | None = None
        for index, row in enumerate(launches[0]["rows"] if launches else ()):
            size_bytes = row["size_bytes"]
            values = [self.figure(launch, launch["rows"][index]) for launch in launches]
            known = [value for value in values if value is not None]
            if self.first <= size_bytes <= self.last and known:
                spread = Spread.of(known)
                if lowest is None or spread.median < lowest[0].median:
                    lowest = spread, size_bytes
        if lowest is None:
            return None
        reached = "yes" if lowest[0].median >= self.least else "**no**"
        found = f"{lowest[0].text()} at {format_size(lowest[1])}"
        return f"| {self.run}: {self.text} | {found} | {reached} |"


def goals() -> list[HostGoal]:
    """Return the goals of this version."""
    found = []

    def at_a_gigabit(slots: tuple[int, ...], text: str, figure: Figure, least: float) -> None:
        name, span = run_name(slots, GIGABIT), "16 MiB and 64 MiB"
        found.append(HostGoal(name, 16 * MIB, 64 * MIB, f"{span}, {text}", figure, least))

    for slots in ((2, 2), (4, 4)):
        at_a_gigabit(slots, ">= 93 % of the network's bound", share_of_bound, 0.93)
        at_a_gigabit(slots, "not slower than the best peer", over_best, 1.0)
        at_a_gigabit(slots, ">= 1.3x gloo and MPICH", over("gloo", "mpich"), 1.3)
    for slots in ((1, 3), (2, 6)):
        at_a_gigabit(slots, ">= 88 % of the network's bound", share_of_bound, 0.88)
        at_a_gigabit(slots, ">= 1.2x the best peer", over_best, 1.2)
    for many in ((2, 2, 2), (2, 2, 2, 2)):
        at_a_gigabit(many, ">= 88 % of the network's bound", share_of_bound, 0.88)
    for slots in ((2, 2), (4, 4)):
        name = run_name(slots, FREE)
        large, small = "1 MiB to 64 MiB, ahead of the best peer", "below, within 1.5x of its time"
        found.append(HostGoal(name, MIB, 64 * MIB, large, over_best, 1.0))
        found.append(HostGoal(name, 4, 256 * KIB, small, over_best, 2 / 3))
    return found


def host_goal_lines(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the rows of a table that says of each goal whether `runs` reach it."""
    rows = [goal.line(runs.get(goal.run, ())) for goal in goals()]
    lines = ["| goal | lowest | reached |", "| --- | --- | --- |", *filter(None, rows)]
    name = run_name(TRAINED, GIGABIT, what=" training")
    factors = [_over_ddp(launch["models"]["mlp25"]) for launch in runs.get(name, ())]
    if factors:
        spread = Spread.of(factors)
        reached = "yes" if spread.median >= 1.3 else "**no**"
        lines.append(f"| {name}: mlp25 >= 1.3x DDP over gloo | {spread.text()} | {reached} |")
    return lines


def _over_ddp(model: Result) -> float:
    rates = model["samples_per_s"]
    return float(rates[model["auto"]]["median"] / rates[WAYS["ddp"]]["median"])


def host_table(outcome: Outcome) -> list[str]:
    """Return a run's table: medians over launches, in ms, and how many cores were kept busy."""
    launches, rate = outcome.launches, outcome.run.name.rpartition(", ")[2]
    known = [peer for peer in PEERS if peer in launches[0]["rows"][0]["peers"]]
    names = ["size", "blinkrun", *(PEERS[peer] for peer in known), "best peer by blinkrun"]
    names += ["of the bound"] if rate in BYTES_PER_US else []
    names += ["over MPICH"] if "mpich" in known else []
    plans = [HostsPlan.from_json(json.dumps(each["plan"])) for each in launches if "plan" in each]
    names += ["simulated"] if plans else []
    names += [f"cores: {', '.join(['blinkrun', *(PEERS[peer] for peer in known)])}"]
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]
    for index in range(len(launches[0]["rows"])):
        rows = [launch["rows"][index] for launch in launches]
        cells = _cells(rows, known, len(outcome.run.slots), rate)
        if plans:
            cells.insert(-1, _simulated(plans, rows[0]["size_bytes"]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cells(rows: Sequence[Any], known: Sequence[str], num_hosts: int, rate: str) -> list[str]:
    ours = statistics.median(row["time_us"] for row in rows)
    peers = {p: statistics.median(row["peers"][p]["time_us"] for row in rows) for p in known}
    cells = [format_size(rows[0]["size_bytes"]), _ms(ours), *map(_ms, peers.values())]
    factors = [factor for row in rows if (factor := ratio(row)) is not None]
    cells.append(Spread.of(factors).text() if factors else "")
    bound = bound_us(rows[0]["size_bytes"], num_hosts, rate)
    cells += [] if bound is None else [f"{100 * bound / ours:.0f} %"]
    if "mpich" in known:
        cells.append(_ms(statistics.median(row["over_mpich"]["time_us"] for row in rows)))
    busy = [
        [row["cores"] for row in rows],
        *([r["peers"][p]["cores"] for r in rows] for p in known),
    ]
    return [*cells, ", ".join(f"{statistics.median(each):.1f}" for each in busy)]


def _simulated(plans: Sequence[HostsPlan], size_bytes: int) -> str:
    """Return the median of what is predicted for the networks that the launches have measured."""
    times = [time for plan in plans if (time := predicted_us(plan, size_bytes)) is not None]
    return _ms(statistics.median(times)) if times else ""


def _ms(time_us: float) -> str:
    """Return milliseconds with three digits that count.

    >>> _ms(141234), _ms(52.3)
    ('141', '0.052')
    """
    time_ms = time_us / 1e3
    return (
        f"{time_ms:.0f}"
        if time_ms >= 100
        else f"{time_ms:.3g}"
        if time_ms >= 1
        else f"{time_ms:.3f}"
    )
