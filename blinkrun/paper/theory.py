"""Figure 13: rates of packed trees over those of rings, in theory, over all allocations.

Theory means rates alone: what trees and rings carry on the same links, with no kernel's cost on
either side. Where NVLink closes no ring the ring library runs over PCIe.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from statistics import geometric_mean, quantiles

from blinkrun.paper import data
from blinkrun.paper.figure import (
    OURS,
    PAPER_OURS,
    Column,
    Figure,
    Panel,
    Row,
    Series,
    Shape,
    Value,
    number,
    rounded,
)
from blinkrun.paper.links import allocation, fabric_alone, lane_of
from blinkrun.paper.pool import mapped
from blinkrun.planner.compare import best_root
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import ring_peer
from blinkrun.planner.solve import pack

SETS = {"dgx-1v": "fig14_16_dgx1v", "dgx-1p": "fig15_dgx1p_broadcast"}
"""The files that list every NVLink-connected allocation of 3 to 8 GPUs of a machine."""

_BOXES = {
    "AllReduce P100": ("dgx-1p", Flow.BOTH),
    "AllReduce V100": ("dgx-1v", Flow.BOTH),
    "Broadcast P100": ("dgx-1p", Flow.DOWN),
    "Broadcast V100": ("dgx-1v", Flow.DOWN),
}
_PARTS = ("p05", "q1", "median", "q3", "p95")
_LIMIT = 0.15  # differences beyond are explained


def fig13() -> Figure:
    """Return the box plots of all allocations, NVLink alone and all links, beside the paper's."""
    items = [
        (machine, flow, data.gpus_of(row["gpus"]))
        for machine, flow in _BOXES.values()
        for row in data.rows(SETS[machine])
    ]
    ratios = dict(zip(items, mapped(_ratios, items), strict=True))
    rows = []
    for paper in data.rows("fig13_theory_speedup"):
        machine, flow = _BOXES[paper["box"]]
        found = [pair for item, pair in ratios.items() if item[:2] == (machine, flow)]
        rows.append(_row(paper["box"], found, [float(paper[part]) for part in _PARTS]))
    every = list(ratios.values())
    return Figure(
        name="fig13",
        title="Trees over rings in theory, all allocations (5 %, quartiles, 95 %)",
        rows=tuple(rows),
        columns=_columns(),
        panels=(
            Panel(
                Shape.BOXES,
                "box",
                (
                    Series("", "trees over NVLink / rings", OURS),
                    Series("all_", "trees over all links / rings", "#4d8f4d"),
                    Series("paper_", "paper", PAPER_OURS),
                ),
                x_label="",
                y_label="ratio of rates",
            ),
        ),
        summary={
            "geomean_ratio": rounded(geometric_mean(all_links for _, all_links in every)),
            "max_ratio": rounded(max(all_links for _, all_links in every)),
            "slower_than_rings": sum(all_links < 1 for _, all_links in every),
        },
        says=(
            f"{len(every)} comparisons; trees over all links are slower than rings in "
            f"{sum(all_links < 1 for _, all_links in every)}.",
        ),
        causes=_causes(rows),
        how=(
            "Rates of the exact planner over those of the rings that the same links close. Every "
            "allocation counts once, however often a machine has it."
        ),
    )


def _ratios(item: tuple[str, Flow, Sequence[int]]) -> tuple[float, float]:
    """Return trees over rings for one allocation: over NVLink alone, and over all links."""
    machine, flow, gpus = item
    part = allocation(machine, gpus)
    found = []
    for links in (fabric_alone(part), part):
        root = best_root(links, flow) if flow.is_rooted else None
        packing, _ = pack(links, flow, root, loss=Fraction(0))
        ring = ring_peer(part, flow, root, lane=lane_of(machine))
        found.append(float(packing.rate / ring.rate))
    return found[0], found[1]


def _row(box: str, ratios: Sequence[tuple[float, float]], paper: Sequence[float]) -> Row:
    row: dict[str, Value] = {"box": box, "allocations": len(ratios)}
    for prefix, values in (("", [one for one, _ in ratios]), ("all_", [two for _, two in ratios])):
        row |= {
            f"{prefix}{part}": rounded(value)
            for part, value in zip(_PARTS, five_numbers(values), strict=True)
        }
        row[f"{prefix}geomean"] = rounded(geometric_mean(values))
        row[f"{prefix}max"] = rounded(max(values))
    return row | {f"paper_{part}": value for part, value in zip(_PARTS, paper, strict=True)}


def five_numbers(values: Sequence[float]) -> tuple[float, ...]:
    """Return what a box plot shows: 5 %, 25 %, 50 %, 75 % and 95 %, between values if need be.

    >>> five_numbers([1.0, 2.0, 3.0, 4.0, 5.0])[1:4]
    (2.0, 3.0, 4.0)
    """
    cuts = quantiles(values, n=20, method="inclusive")
    return cuts[0], cuts[4], cuts[9], cuts[14], cuts[18]


def _columns() -> tuple[Column, ...]:
    heads = {"": "NVLink", "all_": "all links", "paper_": "paper"}
    return (
        Column("box", "collective, GPUs"),
        Column("allocations", "allocations"),
        *(
            Column(f"{prefix}{part}", f"{head}: {part}", 2)
            for part in ("median", "q3", "p95")
            for prefix, head in heads.items()
        ),
        Column("all_geomean", "all links: geo-mean", 2),
        Column("all_max", "all links: best", 2),
    )


def _causes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return why parts of the boxes differ from the paper's."""
    far: dict[str, list[str]] = {}
    for row in rows:
        for part in _PARTS:
            ours, paper = number(row, part), number(row, f"paper_{part}")
            if abs(ours / paper - 1) > _LIMIT:
                side = "above" if ours > paper else "below"
                far.setdefault(side, []).append(f"{row['box']} {part} {ours:.2f} ({paper:.2f})")
    causes = []
    if "above" in far:
        causes.append(
            "Above the paper's box: " + "; ".join(far["above"]) + ". These are allocations without "
            "an NVLink ring, whose ratio depends on what PCIe carries beside a lane. The paper's "
            "quartiles of 1.99 would be a lane over a PCIe link of half its width; here PCIe is as "
            "wide as the paper's own bars in figures 14 and 15 say."
        )
    if "below" in far:
        causes.append(
            "Below the paper's box: " + "; ".join(far["below"]) + ". No allocation reaches that "
            "with PCIe as wide as in the paper's own bars in figures 14 and 15."
        )
    return tuple(causes)
