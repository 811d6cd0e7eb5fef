"""Where the parts of a picture go, in inches; no drawing here.

GPUs that are wired to one another are a circle, or two squares for a cube mesh; GPUs behind a
switch are rows along a bar. A PCIe tree has its bridges and CPUs as bars above what hangs on them,
so that every link is a vertical line and none crosses another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise, permutations
from math import cos, pi, sin

from blinkrun.cli.plot_tree import TreeShape

Point = tuple[float, float]
Line = tuple[Point, Point]
# What is drawn as one line: ("wire", low, high), ("port", gpu, 0), ("pcie", node, 0) for the link
# above a node of the tree, ("joint", left, right) for what joins two CPUs or switches.
Segment = tuple[str, int, int]

GPU_RADIUS = 0.19
BAR_HEIGHT = 0.26
SPACING = 0.62  # of GPUs in a row
_MARGIN = 0.35
_PORT = 1.1  # from a row of GPUs to their switch
_LEVEL = 0.85  # between levels of a PCIe tree
_GAP = 0.2  # between what is stacked
_LETTER = 0.065  # inches of a letter on a bar
_OUTER = 0.6  # from a row of GPUs to the one outside of it
_MAX_IN_ONE_ROW = 8
_MAX_IN_TWO_ROWS = 32
_WIDEST_TREE = 16.0  # inches, before hosts go one below the other
# A cube mesh: two squares face each other, drawn as a cube seen from one side. Of each square two
# corners are far out and two near the middle, so that no link runs through a GPU.
_CUBE = ((0.0, 3.0), (1.75, 2.1), (1.75, 0.9), (0.0, 0.0))
_CUBE_WIDTH = 6.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A switch, bridge or CPU: a bar of `BAR_HEIGHT` whose lower edge is at `y`."""

    left: float
    right: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of everything.

    Attributes
    ----------
    width, height : float
    gpus : tuple of (int, Point)
        A GPU may stand in several places.
    boxes : tuple of (str, Point)
        NICs, by name.
    bars : tuple of Bar
    lines : mapping of Segment to Line
    """

    width: float
    height: float
    gpus: tuple[tuple[int, Point], ...]
    boxes: tuple[tuple[str, Point], ...] = ()
    bars: tuple[Bar, ...] = ()
    lines: Mapping[Segment, Line] = field(default_factory=dict)

    def moved(self, right: float, up: float, scale: float = 1.0) -> Layout:
        """Return the same elsewhere, and larger or smaller."""

        def move(point: Point) -> Point:
            return right + scale * point[0], up + scale * point[1]

        return Layout(
            self.width * scale,
            self.height * scale,
            tuple((gpu, move(at)) for gpu, at in self.gpus),
            tuple((name, move(at)) for name, at in self.boxes),
            tuple(
                Bar(right + scale * b.left, right + scale * b.right, up + scale * b.y, b.label)
                for b in self.bars
            ),
            {segment: (move(a), move(b)) for segment, (a, b) in self.lines.items()},
        )


def stacked(parts: Sequence[Layout]) -> Layout:
    """Return the parts one below the other, the first on top, centred."""
    width = max(part.width for part in parts)
    placed = []
    y = 0.0
    for part in reversed(parts):
        placed.append(part.moved((width - part.width) / 2, y))
        y += part.height + _GAP
    return Layout(
        width,
        y - _GAP,
        tuple(item for part in placed for item in part.gpus),
        tuple(item for part in placed for item in part.boxes),
        tuple(bar for part in placed for bar in part.bars),
        {segment: line for part in placed for segment, line in part.lines.items()},
    )


def mesh_layout(gpus: Sequence[int], pairs: Iterable[tuple[int, int]]) -> Layout:
    """Return places for GPUs of which `pairs` (lower first) are wired to each other.

    >>> mesh_layout([0, 1, 2], [(0, 2)]).lines.keys()
    dict_keys([('wire', 0, 2)])
    """
    wired = sorted(set(pairs))
    squares = cube_of(gpus, wired)
    if squares is None:
        width, height, places = _circle(gpus)
    else:
        width, height, places = _CUBE_WIDTH, _CUBE[0][1], {}
        for (x, y), left, right in zip(_CUBE, *squares, strict=True):
            places |= {left: (_MARGIN + x, _MARGIN + y)}
            places |= {right: (_MARGIN + width - x, _MARGIN + y)}
    return Layout(
        width=width + 2 * _MARGIN,
        height=height + 2 * _MARGIN,
        gpus=tuple((gpu, places[gpu]) for gpu in gpus),
        lines={("wire", low, high): (places[low], places[high]) for low, high in wired},
    )


def cube_of(
    gpus: Sequence[int], pairs: Iterable[tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the two squares of a cube mesh, corners that are wired in the same places; or None.

    >>> square = list(combinations(range(4), 2))
    >>> both = [*square, *((a + 4, b + 4) for a, b in square), *((a, a + 4) for a in range(4))]
    >>> cube_of(range(8), both)
    ((0, 1, 2, 3), (4, 5, 6, 7))
    """
    wired = {frozenset(pair) for pair in pairs}
    if len(gpus) != 8 or len(wired) != 16:
        return None
    first, *others = sorted(gpus)
    for rest in combinations(others, 3):
        left = (first, *rest)
        right = tuple(gpu for gpu in others if gpu not in rest)
        inside = (frozenset(pair) for side in (left, right) for pair in combinations(side, 2))
        if wired.issuperset(inside):
            for order in permutations(right):
                if wired.issuperset(map(frozenset, zip(left, order, strict=True))):
                    return left, order
    return None


def switch_layout(groups: Sequence[tuple[str, Sequence[int]]]) -> Layout:
    """Return places for GPUs along switches, given by label and GPUs, side by side.

    Up to 8 GPUs are a row below their switch, up to 32 a row below and one above, more two rows on
    each side, the outer one in the gaps of the inner. A group with an empty label is a row without
    a switch.
    """
    gpus: list[tuple[int, Point]] = []
    bars: list[Bar] = []
    lines: dict[Segment, Line] = {}
    outside = _OUTER if any(len(members) > _MAX_IN_TWO_ROWS for _, members in groups) else 0.0
    y = _MARGIN + outside + _PORT
    left, top = _MARGIN, y + BAR_HEIGHT
    for label, members in groups:
        rows = _rows(members)
        row_width = (len(rows[0]) - 1) * SPACING + 2 * GPU_RADIUS
        row_width += SPACING / 2 if len(rows) > 2 else 0.0
        right = left + max(row_width, 0.085 * len(label) + 0.2)
        start = (left + right - row_width) / 2 + GPU_RADIUS
        for number, row in enumerate(rows):
            is_above, is_outer = number % 2 == 1, number > 1
            away = _PORT + (_OUTER if is_outer else 0.0)
            edge = y + BAR_HEIGHT if is_above else y
            height = edge + away if is_above else edge - away
            top = max(top, height)
            for at, gpu in enumerate(row):
                x = start + (at + (0.5 if is_outer else 0.0)) * SPACING
                gpus.append((gpu, (x, height)))
                if label:
                    lines["port", gpu, 0] = ((x, height), (x, edge))
        bars += [Bar(left, right, y, label)] if label else []
        left = right + SPACING
    return Layout(left - SPACING + _MARGIN, top + _MARGIN, tuple(gpus), (), tuple(bars), lines)


def _rows(members: Sequence[int]) -> list[Sequence[int]]:
    """Return the GPUs of a switch in rows: below, above, further below, further above."""
    number = 1 if len(members) <= _MAX_IN_ONE_ROW else 2 if len(members) <= _MAX_IN_TWO_ROWS else 4
    size = -(-len(members) // number)
    return [members[at * size : (at + 1) * size] for at in range(number)]


def tree_layout(shape: TreeShape, spacing: float = SPACING) -> Layout:
    """Return places for a PCIe tree, leaves on one line from left to right.

    CPUs of one host have lines between them; hosts that do not fit side by side go one below the
    other.
    """
    rows: list[list[int]] = [[]]
    for host in shape.hosts():
        together = sum(shape.num_leaves(root) for root in (*rows[-1], *host))
        if rows[-1] and together * spacing > _WIDEST_TREE:
            rows.append([])
        rows[-1] += host
    return stacked([_row_of_trees(shape, roots, spacing) for roots in rows])


def _row_of_trees(shape: TreeShape, roots: Sequence[int], spacing: float) -> Layout:
    top = _MARGIN + max(shape.height(root) for root in roots) * _LEVEL
    spots: dict[int, tuple[float, float, float]] = {}  # left end, right end, lower edge
    x = _MARGIN + GPU_RADIUS
    for root in roots:
        x = _place(shape, root, (x, top), spacing, spots) + spacing * 0.6
    lines: dict[Segment, Line] = {}
    for node in spots.keys() & shape.above.keys():
        left, right, y = spots[node]
        low = y + BAR_HEIGHT if node in shape.below else y
        middle = (left + right) / 2
        lines["pcie", node, 0] = ((middle, low), (middle, spots[shape.above[node]][2]))
    for one, other in pairwise(roots):
        if shape.nodes[one].host == shape.nodes[other].host:
            y = top + BAR_HEIGHT / 2
            lines["joint", one, other] = ((spots[one][1], y), (spots[other][0], y))
    leaves = [node for node in spots if node not in shape.below]
    boxes = [node for node in leaves if not shape.nodes[node].gpus]
    return Layout(
        width=x - spacing * 1.6 + GPU_RADIUS + _MARGIN,
        height=top + BAR_HEIGHT + _MARGIN,
        gpus=tuple((gpu, _corner(spots[at])) for at in leaves for gpu in shape.nodes[at].gpus),
        boxes=tuple((shape.label(at), _corner(spots[at])) for at in boxes),
        bars=tuple(_bar(shape, at, spots[at]) for at in spots if at in shape.below),
        lines={segment: lines[segment] for segment in sorted(lines)},
    )


def _place(
    shape: TreeShape,
    at: int,
    corner: Point,
    spacing: float,
    spots: dict[int, tuple[float, float, float]],
) -> float:
    """Place a node at `corner` and all below it; return where the next leaf goes."""
    x, y = corner
    children = shape.below.get(at, ())
    if not children:
        spots[at] = (x, x, _MARGIN)  # leaves stand on one line, however deep they hang
        return x + spacing
    for child in children:
        x = _place(shape, child, (x, y - _LEVEL), spacing, spots)
    ends = []
    for side, child in ((0, children[0]), (1, children[-1])):
        is_leaf = child not in shape.below
        ends.append(spots[child][side] + (2 * side - 1) * (GPU_RADIUS if is_leaf else 0.0))
    spots[at] = (ends[0], ends[1], y)
    return x


def _circle(gpus: Sequence[int]) -> tuple[float, float, dict[int, Point]]:
    radius = max(1.0, len(gpus) * 0.95 / (2 * pi))
    angles = {gpu: 2 * pi * (at + 0.5) / len(gpus) for at, gpu in enumerate(gpus)}
    middle = radius + _MARGIN
    places = {
        gpu: (middle + radius * sin(angle), middle + radius * cos(angle))
        for gpu, angle in angles.items()
    }
    return 2 * radius, 2 * radius, places


def _bar(shape: TreeShape, at: int, spot: tuple[float, float, float]) -> Bar:
    """Return the bar of a node with the longest name for it that fits."""
    left, right, y = spot
    names = (shape.label(at), shape.nodes[at].name, "")
    fitting = (name for name in names if _LETTER * len(name) < right - left)
    return Bar(left, right, y, next(fitting))


def _corner(spot: tuple[float, float, float]) -> Point:
    return spot[0], spot[2]
