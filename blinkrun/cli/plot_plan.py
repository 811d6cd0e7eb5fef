"""The picture of ``blinkrun plan --plot``: every tree in its own colour over the machine.

Above, all trees together: lines that share a link lie side by side, each as wide as the rate that
it has there, so that a full link looks full. Below, each tree by itself, its root filled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from blinkrun.cli.figures import format_rate
from blinkrun.cli.plan_text import headline
from blinkrun.cli.plot_draw import Page, Strand, text_width
from blinkrun.cli.plot_layout import Layout, Segment, mesh_layout, stacked, tree_layout
from blinkrun.cli.plot_machine import draw_places, fabric_layout
from blinkrun.cli.plot_tree import TreeShape, shape_of
from blinkrun.topology.fabric import Fabric
from blinkrun.topology.graph import LinkKind
from blinkrun.topology.machine import Machine, PciNode

_HEAD = 0.8  # inches above the picture
_FULLEST = 17.0  # points, of the bundle that carries most
_GAP = 0.5  # points between lines of a bundle
_THINNEST = 0.6  # points
_LEGEND_ROW = 0.2  # inches
_LEGEND_TEXT = 8  # points
_TITLE_TEXT = 12
_SMALL = 0.42  # size of a tree by itself
_CAPTION = 0.25  # inches above it
_MOST_ALONE = 16
_MOST_LISTED = 24
_COLUMNS = 4  # of trees by themselves
_WIDEST = 13.0  # inches of them
_MARGIN = 0.3
_HOSTED = (LinkKind.PCIE, LinkKind.STAGED)


def draw_plan(
    machine: Machine,
    fabric: Fabric,
    nodes: Sequence[PciNode],
    report: Mapping[str, Any],
    path: Path,
) -> None:
    """Write the picture of a plan to `path`.

    Parameters
    ----------
    machine : Machine
    fabric : Fabric
        Of the machine.
    nodes : sequence of PciNode
        Its PCI tree, as stated or rebuilt.
    report : mapping
        The plan, as ``blinkrun plan --json`` prints it.
    path : Path
        The suffix says which kind of file.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    scene = _scene(machine, fabric, nodes, report)
    words = _words(report)
    sheet = _sheet(scene, words)
    page = Page(sheet.width + 2 * _MARGIN, _HEAD + sheet.upper + sheet.lower + _MARGIN)
    base = _MARGIN + sheet.lower
    top = base + sheet.upper
    page.text((_MARGIN, top + _HEAD - 0.38), words.title, size=_TITLE_TEXT)
    page.text((_MARGIN, top + _HEAD - 0.62), words.subtitle)
    numbers = range(len(scene.rates))
    _draw(page, scene, numbers, (_MARGIN, top - scene.layout.height, 1.0))
    for row, entry in enumerate(words.legend):
        at = (_MARGIN + scene.layout.width + 0.1, top - 0.3 - row * _LEGEND_ROW)
        _entry(page, at, row if row < min(len(numbers), _MOST_LISTED) else None, entry)
    for number in range(sheet.alone):
        row, column = divmod(number, sheet.columns)
        x = _MARGIN + column * sheet.cell[0]
        y = base - (row + 1) * sheet.cell[1]
        _draw(page, scene, [number], (x, y, _SMALL))
        page.text((x + 0.15, y + sheet.cell[1] - _CAPTION), f"tree {number + 1}", size=8)
    page.save(path)


@dataclass(frozen=True, slots=True)
class _Words:
    """What is written beside the trees."""

    title: str
    subtitle: str
    legend: list[str]

    @property
    def legend_width(self) -> float:
        """Inches, with the samples of lines."""
        return max(text_width(line, _LEGEND_TEXT) for line in self.legend) + 0.6


@dataclass(frozen=True, slots=True)
class _Sheet:
    """How the page is divided: all trees above, `alone` of them by themselves below.

    `cell` is width and height of such a tree with its caption.
    """

    width: float
    upper: float
    lower: float
    alone: int
    columns: int
    cell: tuple[float, float]


def _sheet(scene: _Scene, words: _Words) -> _Sheet:
    count = len(scene.rates)
    alone = min(count, _MOST_ALONE) if count > 1 else 0
    cell = (scene.layout.width * _SMALL, scene.layout.height * _SMALL + _CAPTION)
    width = max(
        scene.layout.width + words.legend_width,
        text_width(words.title, _TITLE_TEXT),
        text_width(words.subtitle, 9),
    )
    columns = max(1, int(width / cell[0]), min(alone, _COLUMNS, int(_WIDEST / cell[0])))
    return _Sheet(
        width=max(width, min(alone, columns) * cell[0]),
        upper=max(scene.layout.height, _LEGEND_ROW * len(words.legend) + 0.2),
        lower=-(-alone // columns) * cell[1],
        alone=alone,
        columns=columns,
        cell=cell,
    )


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is drawn: places, which trees take which line how often, and their rates in GB/s."""

    layout: Layout
    use: Mapping[Segment, Counter[int]]
    rates: Sequence[float]
    roots: Sequence[int]
    idle: frozenset[int]

    def strands(self, segment: Segment, numbers: Sequence[int], fullest: float) -> list[Strand]:
        """Return the lines of these trees along a segment, together at most `fullest` points."""
        taken = self.use.get(segment, Counter())
        per_rate = fullest / self.most(numbers)
        widths = {
            number: max(_THINNEST, taken[number] * self.rates[number] * per_rate)
            for number in numbers
            if taken[number]
        }
        room = fullest - _GAP * (len(widths) - 1)
        shrink = min(1.0, max(room, fullest / 2) / max(sum(widths.values()), 1e-9))
        return [Strand(number, width * shrink) for number, width in widths.items()]

    def most(self, numbers: Sequence[int]) -> float:
        """Return the largest rate of these trees together on one line."""
        loads = (sum(taken[n] * self.rates[n] for n in numbers) for taken in self.use.values())
        return max(loads, default=1.0)


def _scene(
    machine: Machine, fabric: Fabric, nodes: Sequence[PciNode], report: Mapping[str, Any]
) -> _Scene:
    trees = report["trees"]
    hosted = any(part in _HOSTED for tree in trees for part in _parts(tree))
    shape = shape_of(machine, nodes, with_nics=False) if hosted else None
    used = any(part not in _HOSTED for tree in trees for part in _parts(tree))
    upper = fabric_layout(machine.num_gpus, fabric) if used or shape is None else None
    lower = None if shape is None else tree_layout(shape)
    places = [part for part in (upper, lower) if part is not None]
    use: dict[Segment, Counter[int]] = {}
    for number, tree in enumerate(trees):
        for src, dst, kind in tree["edges"]:
            for part in kind.split("/"):
                for segment in _segments(shape, src, dst, LinkKind(part)):
                    use.setdefault(segment, Counter())[number] += 1
    return _Scene(
        layout=stacked(places or [mesh_layout(range(machine.num_gpus), ())]),
        use=use,
        rates=[tree["rate_gb_per_s"] for tree in trees],
        roots=[tree["root"] for tree in trees],
        idle=frozenset(range(machine.num_gpus)) - {*report["devices"], *report["relays"]},
    )


def _parts(tree: Mapping[str, Any]) -> set[str]:
    return {part for _, _, kind in tree["edges"] for part in kind.split("/")}


def _segments(shape: TreeShape | None, src: int, dst: int, kind: LinkKind) -> list[Segment]:
    """Return the lines that a link runs along."""
    if kind is LinkKind.NVSWITCH:
        return [("port", src, 0), ("port", dst, 0)]
    if kind not in _HOSTED:
        return [("wire", min(src, dst), max(src, dst))]
    if shape is None:
        return []
    nodes, roots = shape.path(src, dst, by_host=kind is LinkKind.STAGED)
    lines: list[Segment] = [("pcie", node, 0) for node in nodes]
    return lines + [("joint", one, other) for one, other in pairwise(roots)]


def _draw(
    page: Page, scene: _Scene, numbers: Sequence[int], where: tuple[float, float, float]
) -> None:
    """Draw the machine and some of the trees; `where` is the corner and the scale."""
    x, y, scale = where
    layout = scene.layout.moved(x, y, scale)
    for segment, line in layout.lines.items():
        strands = scene.strands(segment, numbers, _FULLEST * scale)
        if strands:
            gap = min(_GAP, _FULLEST * scale / 2 / max(1, len(strands) - 1))
            page.bundle(line, strands, gap=gap, is_dashed=len(numbers) > 1)
        else:
            page.line(line, 1.2 * scale)
    root = scene.roots[numbers[0]] if len(numbers) == 1 else None
    marks = {} if root is None else {root: numbers[0]}
    draw_places(page, layout, scale=scale, marks=marks, idle=scene.idle)


def _words(report: Mapping[str, Any]) -> _Words:
    legend = [
        f"tree {number}: {format_rate(tree['rate_gb_per_s'])} GB/s, root {tree['root']},"
        f" depth {tree['depth']}"
        for number, tree in enumerate(report["trees"], start=1)
    ]
    more = len(legend) - _MOST_LISTED
    if more > 0:
        legend = [*legend[:_MOST_LISTED], f"and {more} more"]
    rate, bound = (format_rate(report[f"{key}_gb_per_s"]) for key in ("rate", "bound"))
    ring = format_rate(report["ring"]["rate_gb_per_s"])
    subtitle = f"{rate} GB/s; no plan exceeds {bound} GB/s; a ring library gets {ring} GB/s"
    return _Words(headline(report), subtitle, legend)


def _entry(page: Page, at: tuple[float, float], number: int | None, line: str) -> None:
    x, y = at
    if number is not None:
        page.bundle(
            ((x, y + 0.04), (x + 0.35, y + 0.04)), [Strand(number, 3.0)], gap=0.0, is_dashed=True
        )
    page.text((x + 0.42, y), line, size=_LEGEND_TEXT)
