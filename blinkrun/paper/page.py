"""The page of the evaluation: for every figure its goals, picture, table, and what differs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from blinkrun.paper.figure import Figure, plain
from blinkrun.paper.links import BANDWIDTHS
from blinkrun.simulator.cost import OURS, RINGS

_HEAD = """\
# The Blink paper's evaluation

Figures of Wang et al., "Blink: Fast and Generic Collectives for Distributed ML" (MLSys 2020), run
again on blinkrun's simulator: programs that its executors run, over the paper's machines, beside a
library of rings on the same links and the paper's own two bars. There is no such machine here:
the figures are computed. Where there is a section *emulated*, ranks moved real bytes at the pace of
the machines' links, and that was measured. The paper's values were read off its figures (about
1 GB/s either way, 15 % on logarithmic axes).

`make paper PAPER_FLAGS=--emulate` writes this page, and beside it every figure as JSON, CSV and
picture; without the flag the section *emulated* is left out:

    blinkrun simulate --paper all --emulate --out docs/paper --page docs/paper.md

GB/s are 10^9 bytes a second. *blink* is the best of our trees, channels and chunks for the size,
over NVLink and PCIe together; *blink, NVLink* the same without PCIe, as the paper's figures 14 to
16. *ring* is the ring library on the same links. *bound* is what no program exceeds on these links,
proven by the planner's certificate.
"""


def page(figures: Sequence[Figure], *, out: Path, at: Path) -> str:
    """Return the page that will lie at `at`, with pictures in `out`."""
    folder = Path(os.path.relpath(out.absolute(), at.absolute().parent))
    lines = [*_HEAD.splitlines(), "", "## At a glance", "", *_glance(figures)]
    for figure in figures:
        lines += ["", *_section(figure, folder)]
    return "\n".join([*lines, "", *_costs()]) + "\n"


def _glance(figures: Sequence[Figure]) -> list[str]:
    """Return the table of all goals."""
    lines = [
        "| figure | what | wanted | reached | paper |",
        "| --- | --- | --: | --: | --- |",
    ]
    for figure in figures:
        for goal in figure.goals:
            reached = f"{goal.reached:.4g}" + ("" if goal.is_met else " (not met)")
            lines.append(
                f"| {figure.name} | {goal.what} | {goal.wanted:.4g} | {reached} | {goal.paper} |"
            )
    return lines


def _section(figure: Figure, folder: Path) -> list[str]:
    """Return what the page says of one figure."""
    lines = [f"## {figure.name}: {figure.title}", ""]
    lines += [f"![{figure.title}]({(folder / figure.name).as_posix()}.svg)", ""]
    if figure.how:
        lines += [figure.how, ""]
    for sentence in figure.says:
        lines += [sentence, ""]
    lines += [*table(figure), ""]
    if figure.causes:
        lines += ["Where this differs from the paper by more than 15 %, and why:", ""]
        lines += [f"- {cause}" for cause in figure.causes]
    else:
        lines.append("Nothing here differs from the paper by more than 15 %.")
    return lines


def table(figure: Figure) -> list[str]:
    """Return the rows as a table in Markdown."""
    lines = [
        "| " + " | ".join(column.heading for column in figure.columns) + " |",
        "| --- " + "| --: " * (len(figure.columns) - 1) + "|",
    ]
    for row in figure.rows:
        cells = (plain(row[column.key], column.digits) for column in figure.columns)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _costs() -> list[str]:
    """Return what links and kernels are taken to achieve, and where that is from."""
    lines = [
        "## What was assumed",
        "",
        "One figure per kind of link and machine (`blinkrun/paper/links.py`), one set of costs per"
        " library (`blinkrun/simulator/cost.py`); none is fitted row by row.",
        "",
        "| machine | link | achieves, per direction | source |",
        "| --- | --- | --: | --- |",
    ]
    shown = {
        "dgx-1v": ("nvlink2_lane", "pcie3_x16", "qpi"),
        "dgx-1p": ("nvlink1_lane", "pcie3_x16", "qpi"),
        "dgx-2": ("nvlink2_lane", "pcie3_x16"),
    }
    for machine, names in shown.items():
        for figure in BANDWIDTHS[machine].figures:
            if figure.name in names:
                rate = f"{figure.value / 1000:g} GB/s"
                lines.append(f"| {machine} | {figure.name} | {rate} | {figure.source} |")
    lines += [
        "",
        "| library | launch | step | part of a link's rate |",
        "| --- | --: | --: | --: |",
    ]
    for cost in (OURS, RINGS):
        times = f"{cost.launch_ns / 1000:g} us | {cost.step_ns / 1000:g} us"
        lines.append(f"| {cost.name} | {times} | {float(cost.efficiency):g} |")
    return lines
