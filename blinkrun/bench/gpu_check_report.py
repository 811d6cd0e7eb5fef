"""What `gpu_check` found, as values, as a table in Markdown, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NAME = "gpu_check"


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the check came to.

    Attributes
    ----------
    name : str
        Of the part.
    state : str
        ``passed``, ``failed`` or ``left out``.
    told : str
        What was found, or why it failed or was left out; one line.
    seconds : float
        That it took.
    values : mapping
        For JSON, and for the tables.
    """

    name: str
    state: str
    told: str
    seconds: float = 0.0
    values: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return it for people who wait."""
        return f"{self.name:<14} {self.state:<8} {self.seconds:6.1f} s  {self.told}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A number that is asked for, and what was measured; None: it was not."""

    what: str
    wanted: str
    measured: str | None
    is_met: bool | None


def goals(parts: Sequence[Part]) -> list[Goal]:
    """Return what the project asks of one device."""
    times = {part.name: part.values for part in parts if part.state == "passed"}
    large = _row(times.get("times-4", {}), 256 << 20)
    small = _row(times.get("times-2", {}), 4096)
    graph = times.get("times-2", {}).get("graph_us")
    share = None if large is None else large["copy_us"] / large["allreduce_us"]
    call = None if small is None else small["allreduce_us"]
    compared = [part.values for part in parts if "compared" in part.values]
    wrong = sum(sum(each["wrong"].values()) for each in compared) if compared else None
    return [
        Goal(
            "256 MiB, 4 ranks on one device, share of a copy's speed",
            "at least 80 %",
            None if share is None else f"{share * 100:.0f} %",
            None if share is None else share >= 0.8,
        ),
        _at_most("4 KiB, 2 ranks on one device, a call from Python", call, 25.0),
        _at_most("4 KiB, 2 ranks on one device, a call in a graph", graph, 12.0),
        Goal(
            "wrong elements",
            "none",
            None if wrong is None else f"{wrong}",
            None if wrong is None else wrong == 0,
        ),
    ]


def _at_most(what: str, measured_us: float | None, most_us: float) -> Goal:
    if measured_us is None:
        return Goal(what, f"under {most_us:g} us", None, None)
    return Goal(what, f"under {most_us:g} us", f"{measured_us:.1f} us", measured_us < most_us)


def _row(values: Mapping[str, Any], size_bytes: int) -> Mapping[str, float] | None:
    return next((row for row in values.get("rows", ()) if row["size_bytes"] == size_bytes), None)


def page(device: Mapping[str, Any], when: str, parts: Sequence[Part]) -> str:
    """Return the report in Markdown."""
    told = [
        "# The GPU check",
        "",
        f"`make gpu-check` on {when}, {device['name']} (compute capability"
        f" {'.'.join(map(str, device['capability']))}, driver {device['driver']}, runtime"
        f" {device['runtime']}). All ranks share that one device. The numbers are in"
        f" [{NAME}.json]({NAME}.json).",
        "",
        "| part | | seconds | what was found |",
        "|---|---|---:|---|",
        *(f"| {part.name} | {part.state} | {part.seconds:.1f} | {part.told} |" for part in parts),
        "",
        "## Goals",
        "",
        "| goal | wanted | measured | |",
        "|---|---|---|---|",
        *(
            f"| {goal.what} | {goal.wanted} | {goal.measured or 'not measured'} |"
            f" {_verdict(goal.is_met)} |"
            for goal in goals(parts)
        ),
    ]
    for part in parts:
        if rows := part.values.get("rows"):
            told += ["", f"## Allreduce of float32 on {part.values['ranks']} ranks", ""]
            told += _table(rows)
    return "\n".join(told) + "\n"


def _verdict(is_met: bool | None) -> str:
    return "" if is_met is None else "met" if is_met else "missed"


def _us(value: float) -> str:
    return f"{value:.1f}" if value else "-"


def _table(rows: Sequence[Mapping[str, float]]) -> list[str]:
    return [
        "Time from one call to the next, in place; beside it a copy on the device of the bytes that"
        " must move, and cupy's sum of as many arrays.",
        "",
        "| bytes | allreduce, us | to enqueue, us | copy, us | of its speed | cupy's sum, us |",
        "|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row['size_bytes']} | {row['allreduce_us']:.1f} | {row['enqueue_us']:.1f} |"
            f" {row['copy_us']:.1f} | {row['copy_us'] / row['allreduce_us'] * 100:.0f} % |"
            f" {_us(row['sum_us'])} |"
            for row in rows
        ),
    ]


def write(folder: Path, device: Mapping[str, Any], when: str, parts: Sequence[Part]) -> None:
    """Write page and JSON into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "when": when,
        "device": dict(device),
        "parts": [asdict(part) for part in parts],
        "goals": [asdict(goal) for goal in goals(parts)],
    }
    (folder / f"{NAME}.json").write_text(json.dumps(values, indent=1) + "\n")
    (folder / f"{NAME}.md").write_text(page(device, when, parts))
