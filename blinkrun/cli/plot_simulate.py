"""A picture of simulated algbw over size: trees, the bound, and rings where they were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blinkrun.cli.plot_draw import COLOURS, INK, chart, save_figure
from blinkrun.cli.simulate_text import headline, size_text

_TREES, _RINGS = COLOURS[0], COLOURS[1]
_MOST_TICKS = 16


def draw_simulated(report: Mapping[str, Any], path: Path) -> None:
    """Write the picture of what ``simulate --json`` prints to `path`; equal input, equal bytes.

    Every point of the trees carries its ratio to the rings.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    rows = report["rows"]
    figure, axes = chart(9, 5.5)
    _line(axes, "trees", _TREES, "o", rows)
    ringed = [row["ring"] | {"bytes": row["bytes"]} for row in rows if row["ring"] is not None]
    if ringed:
        _line(axes, "rings", _RINGS, "s", ringed)
    axes.axhline(report["bound_gb_per_s"], color=INK, linestyle="--", linewidth=1, label="bound")
    _ratios(axes, rows)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.margins(y=0.12)
    sizes = [row["bytes"] for row in rows]
    shown = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    axes.set_xticks(shown, [size_text(size) for size in shown], rotation=30, ha="right")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("size")
    axes.set_ylabel("algbw (GB/s)")
    axes.set_title(f"{headline(report)}, simulated", parse_math=False, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    save_figure(figure, path)


def _line(
    axes: Any, name: str, colour: str, marker: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    sizes = [row["bytes"] for row in rows]
    rates = [row["algbw_gb_per_s"] for row in rows]
    axes.plot(sizes, rates, label=name, color=colour, marker=marker)


def _ratios(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if row["ring"] is None:
            continue
        axes.annotate(
            f"{row['ring']['ratio']:.1f}x",
            (row["bytes"], row["algbw_gb_per_s"]),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=_TREES,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )
