"""A machine on a page: its fabric above, its PCIe tree beneath."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from blinkrun.cli.plot_draw import INK, NIC, PALE, Page, text_width
from blinkrun.cli.plot_layout import (
    BAR_HEIGHT,
    GPU_RADIUS,
    SPACING,
    Layout,
    Line,
    mesh_layout,
    switch_layout,
)
from blinkrun.cli.plot_tree import TreeShape
from blinkrun.topology.fabric import Fabric

NIC_TEXT = 6.5  # points
BAR_TEXT = 7.5


def fabric_layout(num_gpus: int, fabric: Fabric) -> Layout | None:
    """Return places for GPUs by what joins them beside PCIe; None if nothing does."""
    if not fabric.islands:
        if not fabric.wires:
            return None
        pairs = [(wire.low, wire.high) for wire in fabric.wires]
        return mesh_layout(range(num_gpus), pairs)
    groups = [(_switch_label(fabric, island), island) for island in fabric.islands]
    switched = {gpu for island in fabric.islands for gpu in island}
    others = [gpu for gpu in range(num_gpus) if gpu not in switched]
    if others:
        groups.append(("", tuple(others)))
    layout = switch_layout(groups)
    at = dict(layout.gpus)
    wires: dict[tuple[str, int, int], Line] = {
        ("wire", wire.low, wire.high): (at[wire.low], at[wire.high]) for wire in fabric.wires
    }
    ports = {segment: line for segment, line in layout.lines.items() if segment[0] == "port"}
    return Layout(
        layout.width, layout.height, layout.gpus, layout.boxes, layout.bars, ports | wires
    )


def leaf_spacing(shape: TreeShape) -> float:
    """Return how far the leaves of a tree stand apart, for the names of its NICs and links."""
    nics = [at for at in shape.above if at not in shape.below and not shape.nodes[at].gpus]
    longest = max((len(shape.label(at)) for at in nics), default=0)
    return max(SPACING + 0.1, text_width("x" * longest, NIC_TEXT) + 0.12)


def draw_places(
    page: Page,
    layout: Layout,
    *,
    scale: float = 1.0,
    marks: Mapping[int, int] | None = None,
    idle: Collection[int] = (),
) -> None:
    """Draw GPUs, NICs and bars; what is written on bars and NICs only at full size.

    `marks` names GPUs that are filled, each with the number of a colour; `idle` those drawn pale.
    """
    for bar in layout.bars:
        middle = ((bar.left + bar.right) / 2, bar.y + BAR_HEIGHT * scale / 2)
        page.box(middle, (bar.right - bar.left, BAR_HEIGHT * scale), PALE)
        if scale == 1.0:
            page.text(middle, bar.label, size=BAR_TEXT, middle=True)
    for name, at in layout.boxes:
        page.box(at, (text_width(name, NIC_TEXT) + 0.06, 1.5 * GPU_RADIUS), NIC)
        page.text(at, name, size=NIC_TEXT, middle=True, colour=INK)
    for gpu, at in layout.gpus:
        mark = (marks or {}).get(gpu)
        page.gpu(at, str(gpu), radius=GPU_RADIUS * scale, mark=mark, is_pale=gpu in idle)


def _switch_label(fabric: Fabric, island: tuple[int, ...]) -> str:
    counts = sorted({fabric.lanes[gpu] for gpu in island})
    many = "lane" if counts == [1] else "lanes"
    said = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"NVSwitch, {said} {many} a GPU"
