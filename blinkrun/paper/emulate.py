"""The simulator against the emulator: every allocation, broadcast and allreduce, trees and rings.

``blinkrun bench --emulate`` runs real ranks that move real bytes, every link held to its rate over
a scale, and says what the simulator predicts for the same programs. The commands run one after the
other, since they need all cores.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from blinkrun.errors import InternalError
from blinkrun.log import say
from blinkrun.paper import data
from blinkrun.paper.figure import (
    OURS,
    RING,
    Column,
    Figure,
    Goal,
    Panel,
    Row,
    Series,
    Shape,
    number,
    rounded,
)
from blinkrun.paper.links import BANDWIDTHS, allocation
from blinkrun.paper.subprocesses import run_until
from blinkrun.paper.theory import SETS
from blinkrun.planner.compare import best_root
from blinkrun.planner.packing import Flow
from blinkrun.topology.bandwidth import write_bandwidths
from blinkrun.types import Collective

SCALE = 1000
SIZE = "4M"
DEADLINE_S = 180.0  # of one command, which takes 5 to 20 seconds
_NEAR = (0.9, 1.1)
_WANTED = 90.0  # percent of rows whose ratio is within that of 1
_COLLECTIVES = (Collective.BROADCAST, Collective.ALLREDUCE)


@dataclass(frozen=True, slots=True)
class Emulation:
    """A command to run: a collective on an allocation."""

    machine: str
    gpus: tuple[int, ...]
    collective: Collective

    @property
    def name(self) -> str:
        """The command's subject in words."""
        return f"{self.collective.label} on GPUs {','.join(map(str, self.gpus))} of {self.machine}"

    def arguments(self, bandwidths: Path, result: Path) -> list[str]:
        """Return what follows ``blinkrun``."""
        words = ["bench", "--emulate", self.machine, "--gpus", ",".join(map(str, self.gpus))]
        words += ["--collective", self.collective.label, "--against", "ring"]
        words += ["--scale", str(SCALE), "--sizes", SIZE]
        if self.collective.is_rooted:
            links = allocation(self.machine, self.gpus)
            words += ["--root", str(links.devices[best_root(links, Flow.DOWN)])]
        return [*words, "--bandwidths", str(bandwidths), "--json", str(result)]


Bench = Callable[[Emulation], Mapping[str, Any]]
"""Runs one command and returns what it wrote as JSON."""


def emulations() -> list[Emulation]:
    """Return all commands: 46 and 14 allocations, two collectives each.

    >>> len(emulations())
    120
    """
    return [
        Emulation(machine, data.gpus_of(row["gpus"]), collective)
        for machine, file in SETS.items()
        for collective in _COLLECTIVES
        for row in data.rows(file)
    ]


def emulated(bench: Bench | None = None, wanted: Sequence[Emulation] | None = None) -> Figure:
    """Return emulated and simulated times of all allocations beside each other.

    Parameters
    ----------
    bench : callable, optional
        Runs one command; starts ``blinkrun bench`` if not given.
    wanted : sequence of Emulation, optional
        All if not given.

    Raises
    ------
    BlinkrunError
        If a command fails or does not end in time; says which, and what it said last.
    """
    every = emulations() if wanted is None else wanted
    with tempfile.TemporaryDirectory(prefix="blinkrun-paper-") as folder:
        run = bench or _Command(Path(folder))
        rows = []
        for number, one in enumerate(every, start=1):
            row = _row(one, run(one))
            rows.append(row)
            say(
                f"simulate --paper: emulated {number} of {len(every)}, {one.name}: emulated over "
                f"simulated {row['ratio']}, ring {row['ring_ratio']}"
            )
    return _figure(rows)


class _Command:
    """Runs ``blinkrun bench --emulate``; its files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for machine, table in BANDWIDTHS.items():
            self._bandwidths(machine).write_text(write_bandwidths(table), encoding="utf-8")

    def _bandwidths(self, machine: str) -> Path:
        return self._folder / f"{machine}.txt"

    def __call__(self, one: Emulation) -> Mapping[str, Any]:
        result = self._folder / "result.json"
        run_until(one.arguments(self._bandwidths(one.machine), result), DEADLINE_S, one.name)
        found: Mapping[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found


def _row(one: Emulation, result: Mapping[str, Any]) -> Row:
    """Return what a command wrote as a row."""
    try:
        (row,) = result["rows"]
        ring = row["peers"]["ring"]
        return {
            "machine": one.machine,
            "collective": one.collective.label,
            "gpus": list(one.gpus),
            "size_bytes": row["size_bytes"],
            "emulated_ms": rounded(row["time_us"] / 1000),
            "simulated_ms": rounded(row["simulated_us"] / 1000),
            "ratio": rounded(row["time_us"] / row["simulated_us"]),
            "ring_emulated_ms": rounded(ring["time_us"] / 1000),
            "ring_simulated_ms": rounded(ring["simulated_us"] / 1000),
            "ring_ratio": rounded(ring["time_us"] / ring["simulated_us"]),
            "emulated_blink_over_ring": rounded(ring["time_us"] / row["time_us"]),
            "simulated_blink_over_ring": rounded(ring["simulated_us"] / row["simulated_us"]),
            "wrong": row["wrong"] + ring["wrong"],
        }
    except (LookupError, TypeError, ValueError) as err:
        raise InternalError(
            f"{one.name}: what bench wrote has not the form that is expected: {err!r}"
        ) from err


def _figure(rows: Sequence[Row]) -> Figure:
    ratios = {key: [number(row, key) for row in rows] for key in ("ratio", "ring_ratio")}
    near = {key: _near_pct(values) for key, values in ratios.items()}
    wrong = sum(number(row, "wrong") for row in rows)
    emulated_ratios = [number(row, "emulated_blink_over_ring") for row in rows]
    simulated_ratios = [number(row, "simulated_blink_over_ring") for row in rows]
    return Figure(
        name="emulated",
        title="Emulated against simulated, all allocations",
        rows=tuple(rows),
        columns=(
            Column("machine", "machine"),
            Column("collective", "collective"),
            Column("gpus", "GPUs"),
            Column("emulated_ms", "blink emulated, ms"),
            Column("simulated_ms", "simulated, ms"),
            Column("ratio", "e/s", 3),
            Column("ring_emulated_ms", "ring emulated, ms"),
            Column("ring_simulated_ms", "simulated, ms"),
            Column("ring_ratio", "e/s", 3),
            Column("emulated_blink_over_ring", "blink / ring, emulated", 2),
            Column("simulated_blink_over_ring", "simulated", 2),
        ),
        panels=(
            _points("simulated_ms", (("emulated_ms", "blink", OURS),), "time of blink, ms"),
            _points("ring_simulated_ms", (("ring_emulated_ms", "ring", RING),), "time of ring, ms"),
            _points(
                "simulated_blink_over_ring",
                (("emulated_blink_over_ring", "all allocations", "#4d8f4d"),),
                "blink over ring",
            ),
        ),
        summary={
            "geomean_ratio": rounded(geometric_mean(emulated_ratios)),
            "max_ratio": rounded(max(emulated_ratios)),
            "simulated_geomean_ratio": rounded(geometric_mean(simulated_ratios)),
            "near_pct": near["ratio"],
            "ring_near_pct": near["ring_ratio"],
            "wrong": wrong,
        },
        goals=(
            Goal("rows whose trees are emulated within 10 %, percent", _WANTED, near["ratio"]),
            Goal("rows whose rings are emulated within 10 %, percent", _WANTED, near["ring_ratio"]),
        ),
        says=tuple(
            f"Emulated over simulated time of {what}: median {median(values):.3f}, "
            f"{min(values):.3f} to {max(values):.3f}; within 10 % in {_near_pct(values):.1f} % "
            f"of {len(values)} rows."
            for what, values in zip(("blink", "ring"), ratios.values(), strict=True)
        ),
        how=(
            f"Allreduce and broadcast of {SIZE}iB on ranks that move real bytes through shared "
            f"memory, every link held to 1/{SCALE} of its rate (`blinkrun bench --emulate`); "
            f"{wrong:.0f} elements were wrong. Both instruments run the same programs, chosen for "
            "this size. *e/s* is the emulated over the simulated time; the dotted lines are 10 % "
            "off."
        ),
    )


def _points(x: str, series: Sequence[tuple[str, str, str]], what: str) -> Panel:
    return Panel(
        Shape.POINTS,
        x,
        tuple(Series(*each) for each in series),
        x_label=f"{what}, simulated",
        y_label=f"{what}, emulated",
        is_log=True,
        title=what,
    )


def _near_pct(ratios: Sequence[float]) -> float:
    return rounded(100 * sum(_NEAR[0] <= ratio <= _NEAR[1] for ratio in ratios) / len(ratios))
