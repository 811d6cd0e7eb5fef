"""The picture of ``blinkrun topo --plot``: GPUs, lanes by width, switches, PCIe tree and NICs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blinkrun.cli.plot_draw import Page, text_width
from blinkrun.cli.plot_layout import Line, Segment, mesh_layout, stacked, tree_layout
from blinkrun.cli.plot_machine import draw_places, fabric_layout, leaf_spacing
from blinkrun.cli.plot_tree import shape_of
from blinkrun.topology.fabric import Fabric
from blinkrun.topology.machine import Machine, PciNode
from blinkrun.topology.render import link_text

GREEN = "#2F7F5F"
_HEAD = 0.95  # inches above the picture
_WIDEST = 8.0  # points, of the widest link of a fabric
_PER_LANE = 2.0  # points at most
_LEAST_WIDTH = 5.0  # inches
_NARROW = "#8A8A8A"


def draw_topology(
    machine: Machine, fabric: Fabric, tree: Sequence[PciNode], lines: Sequence[str], path: Path
) -> None:
    """Write the picture of a machine to `path`.

    Parameters
    ----------
    machine : Machine
    fabric : Fabric
        Of the machine.
    tree : sequence of PciNode
        Its PCI tree, as stated or rebuilt; may be empty.
    lines : sequence of str
        A title and one line below it.
    path : Path
        The suffix says which kind of file.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    shape = shape_of(machine, tree)
    upper = fabric_layout(machine.num_gpus, fabric)
    lower = None if shape is None else tree_layout(shape, leaf_spacing(shape))
    parts = [part for part in (upper, lower) if part is not None]
    layout = stacked(parts or [mesh_layout(range(machine.num_gpus), ())])
    width = max(layout.width, _LEAST_WIDTH, text_width(lines[0], 12) + 0.6)
    width = max(width, text_width(lines[1], 9) + 0.6)
    page = Page(width, layout.height + _HEAD)
    page.text((0.3, layout.height + _HEAD - 0.35), lines[0], size=12)
    page.text((0.3, layout.height + _HEAD - 0.58), lines[1], size=9)
    _key(page, fabric, layout.height + _HEAD - 0.85)
    layout = layout.moved((width - layout.width) / 2, 0.0)
    widths = _lane_widths(fabric)
    for segment, line in layout.lines.items():
        _draw_line(page, segment, line, widths)
        if segment[0] == "pcie" and shape is not None:
            _name_link(page, line, shape.nodes[segment[1]])
    draw_places(page, layout)
    page.save(path)


def _lane_widths(fabric: Fabric) -> dict[Segment, tuple[int, float]]:
    """Return lanes and points of every wire and port."""
    lanes: dict[Segment, int] = {("wire", w.low, w.high): w.lanes for w in fabric.wires}
    lanes |= {("port", gpu, 0): fabric.lanes[gpu] for island in fabric.islands for gpu in island}
    per_lane = min(_PER_LANE, _WIDEST / max(lanes.values(), default=1))
    return {segment: (count, count * per_lane) for segment, count in lanes.items()}


def _draw_line(
    page: Page, segment: Segment, line: Line, widths: dict[Segment, tuple[int, float]]
) -> None:
    if segment in widths:
        page.line(line, widths[segment][1], GREEN)
    else:
        page.line(line, 3.0 if segment[0] == "joint" else 1.5, _NARROW)


def _name_link(page: Page, line: Line, node: PciNode) -> None:
    (x, low), (_, high) = line
    page.text((x + 0.04, (low + high) / 2), link_text(node), size=6)


def _key(page: Page, fabric: Fabric, y: float) -> None:
    """Draw what the widths of lines mean."""
    counts = sorted(set(_lane_widths(fabric).values()))
    x = 0.3
    for lanes, width in counts if fabric.wires else ():
        page.line(((x, y + 0.04), (x + 0.3, y + 0.04)), width, GREEN)
        words = f"{lanes} lane{'s' if lanes > 1 else ''}"
        page.text((x + 0.36, y), words, size=8)
        x += 0.36 + text_width(words, 8) + 0.2
