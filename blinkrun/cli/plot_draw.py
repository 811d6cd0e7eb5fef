"""Drawing in inches: lines, bundles of coloured lines, GPUs and bars, and files of the same bytes.

The page is one pair of axes with an inch as its unit, so that a width in points is a distance on
the page, lines of a bundle can lie side by side, and nothing moves by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blinkrun.cli.plot_layout import Line, Point
from blinkrun.errors import UsageError

_INCH = 72.0  # points
# Okabe and Ito's colours, told apart by people of any colour vision, without the yellow, which a
# white page swallows; then the same again, dashed and dotted.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B4C9A", "#5C4B3A")
_DASHES = ((), (7.0, 2.0), (2.0, 1.5))  # in points
_LIGHT = ("#CC79A7", "#E69F00", "#56B4E9")  # of these: dark letters can be read on them
INK = "#222222"
GREY = "#C8C8C8"
PALE = "#EFEFEF"
NIC = "#F6E9C8"


@dataclass(frozen=True, slots=True)
class Strand:
    """A line of a bundle: which colour (by number), and its width in points."""

    number: int
    width: float


class Page:
    """A page of `width` x `height` inches; the origin is at the lower left."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure  # noqa: PLC0415  (an extra; no window is opened)

        self.figure = Figure(figsize=(width, height))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(0, height)
        self.axes.set_axis_off()

    def line(self, ends: Line, width: float, colour: str = GREY) -> None:
        """Draw a line of `width` points."""
        (x0, y0), (x1, y1) = ends
        self.axes.plot(
            [x0, x1], [y0, y1], color=colour, linewidth=width, solid_capstyle="butt", zorder=1
        )

    def bundle(self, ends: Line, strands: Sequence[Strand], *, gap: float, is_dashed: bool) -> None:
        """Draw lines side by side, `gap` points apart, around the line between `ends`.

        With `is_dashed` those whose colours are taken already are told apart by dashes.
        """
        (x0, y0), (x1, y1) = ends
        length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-9)
        across = (-(y1 - y0) / length, (x1 - x0) / length)
        at = -(sum(strand.width for strand in strands) + gap * (len(strands) - 1)) / 2
        for strand in strands:
            shift = (at + strand.width / 2) / _INCH
            dx, dy = across[0] * shift, across[1] * shift
            (line,) = self.axes.plot(
                [x0 + dx, x1 + dx],
                [y0 + dy, y1 + dy],
                color=COLOURS[strand.number % len(COLOURS)],
                linewidth=strand.width,
                solid_capstyle="butt",
                zorder=2,
            )
            dashes = dash(strand.number, strand.width)
            if is_dashed and dashes:
                line.set_dashes(dashes)
            at += strand.width + gap

    def gpu(
        self,
        at: Point,
        label: str,
        *,
        radius: float,
        mark: int | None = None,
        is_pale: bool = False,
    ) -> None:
        """Draw a GPU; `mark` is the number of the tree whose colour fills it."""
        from matplotlib.patches import Circle  # noqa: PLC0415

        face = "white" if mark is None else COLOURS[mark % len(COLOURS)]
        ink = "#A8A8A8" if is_pale else INK
        circle = Circle(at, radius, facecolor=face, edgecolor=ink, lw=4.5 * radius, zorder=4)
        self.axes.add_patch(circle)
        colour = ink if mark is None or face in _LIGHT else "white"
        self.text(at, label, size=max(5.5, 47 * radius), middle=True, colour=colour)

    def box(self, at: Point, size: Point, face: str) -> None:
        """Draw a box of `size` (width, height) around a point."""
        from matplotlib.patches import Rectangle  # noqa: PLC0415

        corner = (at[0] - size[0] / 2, at[1] - size[1] / 2)
        self.axes.add_patch(
            Rectangle(corner, *size, facecolor=face, edgecolor=INK, lw=0.7, zorder=3)
        )

    def text(
        self,
        at: Point,
        words: str,
        *,
        size: float = 9,
        middle: bool = False,
        colour: str = INK,
    ) -> None:
        """Write `words` from `at` to the right, or around it."""
        self.axes.text(
            *at,
            words,
            fontsize=size,
            color=colour,
            ha="center" if middle else "left",
            va="center_baseline" if middle else "baseline",
            parse_math=False,
            zorder=6,
        )

    def save(self, path: Path) -> None:
        """Write the page; the same page gives the same bytes.

        Raises
        ------
        UsageError
            If the file cannot be written.
        """
        save_figure(self.figure, path)


def chart(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of `width` x `height` inches, and axes that fill it with their labels."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra; no window is opened)

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib's; the same figure gives the same bytes.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415

    # SVG and PDF would carry the time, and SVG random names
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    kind = path.suffix.lower().lstrip(".")
    try:
        with mpl.rc_context({"svg.hashsalt": "blinkrun"}):
            figure.savefig(path, dpi=150, format=kind, metadata=dated.get(kind))
    except OSError as err:
        raise UsageError(f"--plot {path}: {err.strerror or err}") from err


def dash(number: int, width: float) -> tuple[float, ...]:
    """Return the dashes and gaps of a tree's line, in widths of it; the first trees have none.

    >>> dash(0, 2.0), dash(8, 2.0)
    ((), (3.5, 1.0))
    """
    return tuple(part / width for part in _DASHES[number // len(COLOURS) % len(_DASHES)])


def text_width(words: str, size: float) -> float:
    """Return about how many inches `words` take; the font is not asked."""
    return 0.6 * size / _INCH * len(words)
