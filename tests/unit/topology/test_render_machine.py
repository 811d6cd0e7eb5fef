"""Machines as text: what a matrix, a tree and the lines beside them show."""

from __future__ import annotations

import pytest
from support.corpus import case, case_names

from blinkrun.topology.catalog import described, machines
from blinkrun.topology.fabric import Fabric, FabricKind, fabric_of
from blinkrun.topology.machine import (
    Gpu,
    LinkStatus,
    Machine,
    Nic,
    NicPath,
    PciKind,
    PciNode,
    Wire,
    Xgmi,
)
from blinkrun.topology.pcie_tree import pcie_tree
from blinkrun.topology.read import read_machine
from blinkrun.topology.render import (
    fabric_text,
    link_text,
    matrix,
    names,
    nearest_nics,
    statuses,
    tree_text,
)


def every_machine():
    for name in machines():
        yield described(name)
    for name in case_names():
        told = case(name)
        machine = read_machine(told.text, partial=told.outcome != "parse")
        if machine.gpus:  # one case states the links of a GPU that it does not name
            yield machine


@pytest.fixture(scope="module")
def all_machines():
    return list(every_machine())


def gpus(count, **of_each):
    return tuple(Gpu(f"GPU{at}", **of_each) for at in range(count))


def test_a_matrix_is_symmetric_and_aligned(all_machines):
    for machine in all_machines:
        lines = matrix(machine).splitlines()
        assert len(lines) == machine.num_gpus + 1
        rows = [line.split()[1 : machine.num_gpus + 1] for line in lines[1:]]
        assert rows == [list(column) for column in zip(*rows, strict=True)]
        assert all(row[at] == "X" for at, row in enumerate(rows))
        for at, name in enumerate(lines[0].split()[: machine.num_gpus]):
            start = lines[0].index(name)
            assert all(line[start - 1] == " " for line in lines), (machine.name, at)


def test_a_matrix_shows_every_stated_lane(all_machines):
    for machine in all_machines:
        rows = [line.split() for line in matrix(machine).splitlines()[1:]]
        for wire in machine.nvlink or ():
            assert rows[wire.low][wire.high + 1] == f"NV{wire.lanes}"


def test_cells_of_what_is_not_stated():
    machine = Machine("m", "hand", gpus(2), nics=(Nic("mlx5_0"),), xgmi=(Xgmi(0, 1, hops=1),))
    assert matrix(machine).splitlines()[1].split() == ["GPU0", "X", "XGMI", "?"]
    bare = Machine("m", "hand", gpus(2), nvlink=None, pcie=None)
    assert matrix(bare).splitlines()[1].split() == ["GPU0", "X", "?"]
    lanes = Machine("m", "hand", gpus(2, cpus="0-3"), xgmi=(Xgmi(0, 1, lanes=2),))
    assert matrix(lanes).splitlines()[1].split() == ["GPU0", "X", "XGMI2", "0-3"]


def test_a_tree_names_every_gpu_and_nic_once(all_machines):
    for machine in all_machines:
        text = tree_text(machine, pcie_tree(machine))
        firsts = [word for line in text.splitlines() for word in line.strip("│├└─ ").split()]
        for gpu in range(machine.num_gpus):
            assert firsts.count(f"GPU{gpu}") == 1, machine.name


def test_a_tree_is_drawn_with_its_forks():
    machine = Machine("m", "hand", gpus(2), nics=(Nic("mlx5_0"),))
    nodes = (
        PciNode(PciKind.CPU, "cpu 0", numa=1, host="left"),
        PciNode(PciKind.BRIDGE, "0000:01:00.0", 0, 16.0, 16),
        PciNode(PciKind.GPU, "0000:02:00.0", 1, None, 8, gpus=(0,)),
        PciNode(PciKind.NIC, "mlx5_0", 1, 3.0, nics=(0,)),
        PciNode(PciKind.GPU, "gpu 1", 0, gpus=(1,)),
        PciNode(PciKind.BRIDGE, "switch 4", 0),
    )
    assert tree_text(machine, nodes).splitlines() == [
        "cpu 0  NUMA node 1, host left",
        "├─ bridge 0000:01:00.0  gen4 x16",
        "│  ├─ GPU0  0000:02:00.0, x8",
        "│  └─ mlx5_0  3 GT/s",
        "├─ GPU1",
        "└─ switch 4",
    ]
    assert link_text(nodes[4]) == ""


def test_names_say_what_the_labels_do_not():
    machine = Machine(
        "m",
        "hand",
        (Gpu("0000:01:00.0", "A100"), Gpu("GPU1", "V100", bus_id="0000:02:00.0", uuid="GPU-a")),
        nics=(Nic("NIC0", "mlx5_0", mbit_per_s=200_000), Nic("eth0")),
    )
    assert names(machine) == [
        "GPU0 is 0000:01:00.0, A100",
        "GPU1 is V100, 0000:02:00.0, GPU-a",
        "NIC0 is mlx5_0, 200 Gbit/s",
    ]
    assert names(described("dgx-1v")) == []


def test_nics_without_a_stated_level():
    nodes = (
        PciNode(PciKind.CPU, "cpu 0"),
        PciNode(PciKind.GPU, "0000:02:00.0", 0, gpus=(0,)),
        PciNode(PciKind.NIC, "0000:03:00.0", 0, nics=(0,)),
    )
    machine = Machine("m", "hand", gpus(1), nics=(Nic("mlx5_0"),), tree=nodes)
    assert nearest_nics(machine) == ["GPU0: mlx5_0"]
    assert nearest_nics(Machine("m", "hand", gpus(1))) == []
    stated = Machine(
        "m", "hand", gpus(2), nics=(Nic("a"),), gpu_nic=(NicPath(0, 0, "PIX"), NicPath(1, 0, "SYS"))
    )
    assert nearest_nics(stated) == ["GPU0: a (PIX)", "GPU1: a (SYS)"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pcie-8", "none beside PCIe"),
        ("a6000-8", "NVLink 3, 4 pairs of 4 lanes, 4 lanes a GPU, 12 GB/s a lane"),
        ("titan-rtx-2", "NVLink 2, 1 pair of 2 lanes, 2 lanes a GPU, 12 GB/s a lane"),
        ("mi210-4", "xGMI 2, 6 pairs of 1 lane, 3 lanes a GPU, 12 GB/s a lane"),
        ("mi250x-8", "xGMI 2, 12 pairs of 1 to 4 lanes, 7 lanes a GPU, 12 GB/s a lane"),
        ("dgx-2", "NVLink 2 into NVSwitch, 6 lanes a GPU, 12 GB/s a lane"),
    ],
)
def test_a_fabric_in_a_line(name, said):
    assert fabric_text(fabric_of(described(name)), 12_000) == said


def test_islands_and_wires_together():
    fabric = Fabric(
        FabricKind.SWITCH,
        "nvlink4",
        lanes=(18, 18, 18, 6, 18, 18, 18, 6, 0),
        ports=(18, 18, 18, 0, 18, 18, 18, 0, 0),
        wires=(Wire(3, 7, 6),),
        islands=((0, 1, 2), (4, 5, 6)),
    )
    assert fabric_text(fabric, 20_900) == (
        "NVLink 4 into 2 groups of NVSwitch, 1 pair of 6 lanes, 6 or 18 lanes a GPU, "
        "20.9 GB/s a lane"
    )


def test_the_status_of_links_in_a_line_each():
    status = (
        LinkStatus("GPU0", 12),
        LinkStatus("GPU1", 3, None, 25.0),
        LinkStatus("GPU2", 3, 1, is_cut=True),
    )
    assert statuses(Machine("m", "hand", (), status=status)) == [
        "GPU0: 12 of 12 NVLinks active",
        "GPU1: 3 NVLinks active, 25 GB/s each",
        "GPU2: 3 of 4 NVLinks active, and more that is cut off",
    ]
