"""Pictures like those of the paper: bars by allocation, lines by size, box plots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from blinkrun.errors import UsageError
from blinkrun.paper.figure import MARK, Figure, Panel, Series, Shape, Value

_BAR_ROOM = 0.84  # of the space between two groups of bars
_LETTERS = 11  # of a legend or of labels, that have room in an inch


def draw(figure: Figure, path: Path) -> None:
    """Write the picture of `figure` to `path`, the same bytes for the same figure.

    Raises
    ------
    UsageError
        If matplotlib is missing; it is the extra ``plot``.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra; no window is opened
        from matplotlib.figure import Figure as Page  # noqa: PLC0415
    except ImportError as err:
        raise UsageError(
            "pictures need matplotlib; install blinkrun[plot], or leave them out: --no-pictures"
        ) from err
    height = sum(_height(panel) for panel in figure.panels)
    page = Page(figsize=(_width(figure), height), layout="constrained")
    axes = page.subplots(len(figure.panels), squeeze=False)
    shapes: dict[Shape, Callable[[Any, Figure, Panel], None]] = {
        Shape.BARS: _bars,
        Shape.LINES: _lines,
        Shape.BOXES: _boxes,
        Shape.POINTS: _points,
    }
    for (plot,), panel in zip(axes, figure.panels, strict=True):
        shapes[panel.shape](plot, figure, panel)
        plot.set_xlabel(panel.x_label)
        plot.set_ylabel(panel.y_label)
        plot.set_title(panel.title or figure.title, fontsize=11)
        plot.grid(axis="both" if panel.shape is Shape.POINTS else "y", alpha=0.3)
        plot.set_axisbelow(True)
    with mpl.rc_context({"svg.hashsalt": "blinkrun", "svg.fonttype": "none"}):
        page.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _width(figure: Figure) -> float:
    """Return the picture's width in inches: every group of bars needs its room."""
    bars = [p for p in figure.panels if p.shape is Shape.BARS]
    most = max((sum(not s.is_mark for s in panel.series) for panel in bars), default=0)
    return max(8.0, min(18.0, 1.5 + 0.095 * most * len(figure.rows)))


def _height(panel: Panel) -> float:
    return 5.6 if panel.shape is Shape.POINTS else 4.6


def _numbers(figure: Figure, key: str) -> list[float]:
    """Return a column; what is missing is no number, which is drawn as nothing."""
    return [_number(row.get(key)) for row in figure.rows]


def _number(value: Value) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _label(value: Value) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _bars(axes: Any, figure: Figure, panel: Panel) -> None:
    bars = [series for series in panel.series if not series.is_mark]
    width = _BAR_ROOM / len(bars)
    for number, series in enumerate(bars):
        offset = (number - (len(bars) - 1) / 2) * width
        places = [at + offset for at in range(len(figure.rows))]
        axes.bar(
            places, _numbers(figure, series.key), width, label=series.label, color=series.color
        )
    for series in panel.series:
        if series.is_mark:
            _marks(axes, figure, series)
    labels = [_label(row[panel.x]) for row in figure.rows]
    is_crowded = sum(map(len, labels)) > _LETTERS * _width(figure)
    axes.set_xticks(range(len(labels)), labels, rotation=90 if is_crowded else 0, fontsize=9)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    if panel.is_log:
        axes.set_yscale("log")
    axes.margins(y=0.16)
    letters = sum(len(series.label) + 6 for series in panel.series)
    lines = -(-letters // int(_LETTERS * _width(figure)))
    per_line = -(-len(panel.series) // lines)
    axes.legend(loc="upper left", ncols=per_line, fontsize=9, framealpha=0.9)


def _marks(axes: Any, figure: Figure, series: Series) -> None:
    values = _numbers(figure, series.key)
    half = _BAR_ROOM / 2
    starts = [at - half for at in range(len(values))]
    ends = [at + half for at in range(len(values))]
    axes.hlines(values, starts, ends, colors=MARK, linewidth=1.2, label=series.label)


def _lines(axes: Any, figure: Figure, panel: Panel) -> None:
    at = _numbers(figure, panel.x)
    for series in panel.series:
        style = "--" if series.is_mark else "-"
        values = _numbers(figure, series.key)
        axes.plot(at, values, style, marker="o", ms=4, label=series.label, color=series.color)
    if panel.is_log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_tick)
    labels = [_label(row.get("size", row[panel.x])) for row in figure.rows]
    axes.set_xticks(at, labels, rotation=45, ha="right", fontsize=9)
    axes.minorticks_off()
    axes.legend(fontsize=9)


def _boxes(axes: Any, figure: Figure, panel: Panel) -> None:
    width = _BAR_ROOM / len(panel.series)
    for number, series in enumerate(panel.series):
        offset = (number - (len(panel.series) - 1) / 2) * width
        boxes = [
            {
                "med": row[f"{series.key}median"],
                "q1": row[f"{series.key}q1"],
                "q3": row[f"{series.key}q3"],
                "whislo": row[f"{series.key}p05"],
                "whishi": row[f"{series.key}p95"],
                "fliers": [],
            }
            for row in figure.rows
        ]
        drawn = axes.bxp(
            boxes,
            positions=[at + offset for at in range(len(boxes))],
            widths=width * 0.8,
            patch_artist=True,
            boxprops={"facecolor": series.color},
            medianprops={"color": MARK},
            manage_ticks=False,
        )
        drawn["boxes"][0].set_label(series.label)
    labels = [_label(row[panel.x]) for row in figure.rows]
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    axes.legend(fontsize=9)


def _points(axes: Any, figure: Figure, panel: Panel) -> None:
    at = _numbers(figure, panel.x)
    for series in panel.series:
        values = _numbers(figure, series.key)
        axes.plot(at, values, "o", ms=4, alpha=0.7, label=series.label, color=series.color)
    ends = [min(at), max(at)]
    axes.plot(ends, ends, color=MARK, linewidth=0.8)
    axes.plot(ends, [end * 1.1 for end in ends], color=MARK, linewidth=0.6, linestyle=":")
    axes.plot(ends, [end * 0.9 for end in ends], color=MARK, linewidth=0.6, linestyle=":")
    if panel.is_log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_tick)
            axis.set_minor_formatter(_tick)
    axes.legend(fontsize=9)


def _tick(value: float, _: int) -> str:
    """Return a number of an axis in full, at 1, 2, 3, 5 and their tens.

    >>> [_tick(value, 0) for value in (0.5, 1.0, 40.0, 50.0, 3000.0)]
    ['0.5', '1', '', '50', '3,000']
    """
    text = f"{value:.1e}"
    return f"{value:,g}" if text[0] in "1235" and text[2] == "0" else ""
