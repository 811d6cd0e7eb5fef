"""Where things go in pictures: nothing on anything else, every link where it belongs."""

from __future__ import annotations

from itertools import combinations

import pytest
from support.corpus import case, case_names

from blinkrun.cli.plot_draw import text_width
from blinkrun.cli.plot_layout import (
    BAR_HEIGHT,
    GPU_RADIUS,
    cube_of,
    mesh_layout,
    stacked,
    switch_layout,
    tree_layout,
)
from blinkrun.cli.plot_machine import BAR_TEXT, NIC_TEXT, fabric_layout, leaf_spacing
from blinkrun.cli.plot_tree import shape_of
from blinkrun.topology.catalog import described, machines
from blinkrun.topology.fabric import fabric_of
from blinkrun.topology.machine import Gpu, Machine, PciKind, PciNode
from blinkrun.topology.pcie_tree import pcie_tree
from blinkrun.topology.read import read_machine


def every_machine():
    found = [described(name) for name in machines()]
    for name in case_names():
        told = case(name)
        found.append(read_machine(told.text, name, partial=told.outcome != "parse"))
    return [machine for machine in found if machine.gpus]


@pytest.fixture(scope="module")
def layouts():
    found = []
    for machine in every_machine():
        fabric = fabric_layout(machine.num_gpus, fabric_of(machine))
        shape = shape_of(machine, pcie_tree(machine))
        tree = None if shape is None else tree_layout(shape, leaf_spacing(shape))
        found.append((machine, fabric, tree))
    return found


def both(layouts):
    for machine, *parts in layouts:
        for part in parts:
            if part is not None:
                yield machine, part


def distance(point, line):
    """From a point to the part of a line between its ends."""
    (px, py), ((ax, ay), (bx, by)) = point, line
    length = (bx - ax) ** 2 + (by - ay) ** 2
    share = max(0.0, min(1.0, ((px - ax) * (bx - ax) + (py - ay) * (by - ay)) / length))
    return ((px - ax - share * (bx - ax)) ** 2 + (py - ay - share * (by - ay)) ** 2) ** 0.5


def test_every_gpu_has_its_place(layouts):
    for machine, part in both(layouts):
        assert sorted(gpu for gpu, _ in part.gpus) == list(range(machine.num_gpus)), machine.name


def test_nothing_stands_on_anything_else(layouts):
    for machine, part in both(layouts):
        for (_, one), (_, other) in combinations(part.gpus, 2):
            apart = ((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2) ** 0.5
            assert apart > 2 * GPU_RADIUS, machine.name
        for one, other in combinations(part.bars, 2):
            beside = one.right < other.left or other.right < one.left
            assert beside or abs(one.y - other.y) > BAR_HEIGHT, machine.name
        boxes = [(at, text_width(name, NIC_TEXT) / 2) for name, at in part.boxes]
        boxes += [(at, GPU_RADIUS) for _, at in part.gpus] if part.boxes else []
        for (one, left), (other, right) in combinations(boxes, 2):
            assert one[1] != other[1] or abs(one[0] - other[0]) > left + right, machine.name


def test_everything_is_on_the_page(layouts):
    for machine, part in both(layouts):
        points = [at for _, at in part.gpus] + [end for line in part.lines.values() for end in line]
        points += [(bar.left, bar.y) for bar in part.bars] + [
            (bar.right, bar.y) for bar in part.bars
        ]
        for x, y in points:
            assert 0 < x < part.width, machine.name
            assert 0 < y < part.height, machine.name


def test_bars_have_room_for_what_is_written_on_them(layouts):
    for machine, part in both(layouts):
        for bar in part.bars:
            assert text_width(bar.label, BAR_TEXT) < bar.right - bar.left, machine.name


def test_no_wire_and_no_port_runs_through_another_gpu(layouts):
    for machine, fabric, _ in layouts:
        if fabric is None:
            continue
        for (what, low, high), line in fabric.lines.items():
            ends = (low,) if what == "port" else (low, high)
            for gpu, at in fabric.gpus:
                if gpu not in ends and what != "joint":
                    assert distance(at, line) > GPU_RADIUS, (machine.name, what, low, high)


def test_links_of_a_tree_are_vertical_and_end_at_the_bar_above(layouts):
    for machine, _, tree in layouts:
        if tree is None:
            continue
        for (what, _, _), ((x0, y0), (x1, y1)) in tree.lines.items():
            if what == "joint":
                assert y0 == y1
                assert x0 < x1
                continue
            assert x0 == x1
            assert y0 < y1, machine.name
            assert any(bar.y == y1 and bar.left <= x1 <= bar.right for bar in tree.bars)


def test_a_cube_mesh_is_two_squares_and_other_meshes_are_a_circle():
    dgx1 = fabric_of(described("dgx-1v"))
    pairs = [(wire.low, wire.high) for wire in dgx1.wires]
    assert cube_of(range(8), pairs) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert cube_of(range(8), [*pairs[1:], (0, 7)]) is None
    assert cube_of(range(8), pairs[1:]) is None
    assert cube_of(range(8), list(combinations(range(8), 2))[:16]) is None
    ring = mesh_layout(range(5), [(at, at + 1) for at in range(4)])
    middle = ring.width / 2
    radii = {round(((x - middle) ** 2 + (y - middle) ** 2) ** 0.5, 6) for _, (x, y) in ring.gpus}
    assert len(radii) == 1


def test_switches_stand_side_by_side():
    two = switch_layout([("one", range(4)), ("other", range(4, 8)), ("", (8,))])
    assert [bar.label for bar in two.bars] == ["one", "other"]
    assert ("port", 8, 0) not in two.lines
    assert dict(two.gpus)[8][0] > two.bars[1].right


def test_parts_go_below_one_another():
    upper, lower = mesh_layout([0, 1], [(0, 1)]), switch_layout([("s", (0, 1))])
    whole = stacked([upper, lower])
    highest_below = max(y for _, (_, y) in whole.gpus[:2])
    lowest_above = min(y for _, (_, y) in whole.gpus[2:])
    assert highest_below < lowest_above
    assert whole.lines.keys() == upper.lines.keys() | lower.lines.keys()
    half = whole.moved(1.0, 2.0, 0.5)
    assert half.width == whole.width / 2
    assert half.bars[0].left == 1.0 + whole.bars[0].left / 2


NODES = (
    PciNode(PciKind.CPU, "cpu 0", numa=0),
    PciNode(PciKind.BRIDGE, "0000:01:00.0", 0),
    PciNode(PciKind.BRIDGE, "0000:02:00.0", 1),
    PciNode(PciKind.GPU, "0000:03:00.0", 2, gpus=(0,)),
    PciNode(PciKind.GPU, "0000:04:00.0", 2, gpus=(1,)),
    PciNode(PciKind.BRIDGE, "0000:05:00.0", 0),
    PciNode(PciKind.CPU, "cpu 1", numa=1),
    PciNode(PciKind.GPU, "0000:06:00.0", 6, gpus=(2,)),
    PciNode(PciKind.CPU, "cpu 2", numa=2),
)
THREE = Machine("three", "hand", tuple(Gpu(f"GPU{at}") for at in range(3)), tree=NODES)


def test_what_joins_nothing_is_left_out():
    shape = shape_of(THREE, NODES)
    assert shape.roots == (0, 6)
    assert dict(shape.below) == {0: (2,), 2: (3, 4), 6: (7,)}
    assert shape_of(THREE, NODES[:3]) is None


def test_the_way_between_gpus():
    shape = shape_of(THREE, NODES)
    assert shape.path(0, 1, by_host=False) == ([3, 4], ())
    assert shape.path(0, 1, by_host=True) == ([3, 2, 4, 2], ())
    assert shape.path(2, 0, by_host=False) == ([7, 3, 2], (0, 6))


def test_hosts_that_do_not_fit_side_by_side_go_below_one_another():
    machine = described("gb200-nvl72")
    layout = tree_layout(shape_of(machine, pcie_tree(machine)))
    assert layout.width < 20
    assert len({y for _, (_, y) in layout.gpus}) > 1
    joined = [segment for segment in layout.lines if segment[0] == "joint"]
    assert len(joined) == 18  # the two CPUs of each tray, and no two trays
