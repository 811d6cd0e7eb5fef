"""What is written as a topology file says the same when it is read again."""

from dataclasses import replace

import pytest
from support.corpus import case, case_names

from blinkrun.topology.machine import Gpu, Machine, Nic, NvSwitch, PciKind, PciNode, Wire, Xgmi
from blinkrun.topology.nccl_xml import read_nccl_xml
from blinkrun.topology.nccl_xml_out import HIDDEN_SWITCH, write_nccl_xml
from blinkrun.topology.pci_levels import gpu_levels, nic_levels
from blinkrun.topology.pcie_tree import pcie_tree
from blinkrun.topology.read import read_machine
from blinkrun.topology.serialize import facts

MACHINES = {name: read_machine(case(name).text, name, partial=True) for name in case_names()}
FILES = [name for name, machine in MACHINES.items() if machine.tree]
OTHERS = [name for name, machine in MACHINES.items() if machine.pcie is not None and machine.gpus]


def again(machine):
    return read_nccl_xml(write_nccl_xml(machine), "again.xml")


@pytest.mark.parametrize("name", FILES)
def test_a_file_comes_back_as_it_was(name):
    machine = MACHINES[name]
    back = again(machine)
    assert facts(back) == facts(machine)
    assert replace(back, name=machine.name, notes=machine.notes) == machine


@pytest.mark.parametrize("name", OTHERS)
def test_a_machine_of_a_matrix_comes_back_with_its_links(name):
    machine = MACHINES[name]
    back = again(machine)
    assert [gpu.name for gpu in back.gpus] == [gpu.name for gpu in machine.gpus]
    told = {(wire.low, wire.high): wire.lanes for wire in back.nvlink}
    stated = {(wire.low, wire.high): wire.lanes for wire in machine.nvlink}
    assert stated.items() <= told.items()
    assert set(told) == set(stated) or machine.missing  # switches join also those without rows
    assert [(pair.low, pair.high) for pair in back.xgmi] == [
        (pair.low, pair.high) for pair in machine.xgmi
    ]


@pytest.mark.parametrize("name", OTHERS)
def test_a_machine_of_a_matrix_comes_back_with_the_levels_of_its_tree(name):
    machine = MACHINES[name]
    back = again(machine)
    assert back.pcie == gpu_levels(pcie_tree(machine))
    wanted = {
        (path.gpu, machine.nics[path.nic].device or machine.nics[path.nic].name): path.level
        for path in nic_levels(pcie_tree(machine))
    }
    assert {(path.gpu, back.nics[path.nic].name): path.level for path in back.gpu_nic} == wanted


@pytest.mark.parametrize("name", [*FILES, *OTHERS])
def test_bus_ids_are_those_of_one_device_each(name):
    nodes = [node.name for node in again(MACHINES[name]).tree if node.kind is not PciKind.CPU]
    assert len(set(nodes)) == len(nodes)


def test_switches_without_a_name_are_written_as_nccl_writes_them():
    wires = tuple(Wire(low, high, 12) for high in range(8) for low in range(high))
    gpus = tuple(Gpu(f"GPU{gpu}", numa=0) for gpu in range(8))
    text = write_nccl_xml(Machine("eight", "by hand", gpus, nvlink=wires))
    assert text.count(f'<nvlink target="{HIDDEN_SWITCH}" count="12" tclass="0x068000"/>') == 8


def test_islands_behind_switches_stay_apart():
    wires = tuple(
        Wire(first + low, first + high, 12)
        for first in (0, 8)
        for high in range(8)
        for low in range(high)
    )
    gpus = tuple(Gpu(f"GPU{gpu}") for gpu in range(16))
    machine = Machine("two islands", "by hand", gpus, nvlink=wires)
    assert again(machine).nvlink == machine.nvlink


def test_names_of_any_kind_are_escaped():
    nics = (Nic('<"&\x00>'), Nic("0000:01:00.0"))
    tree = (
        PciNode(PciKind.CPU, "cpu 0", vendor="amd", numa=0),
        PciNode(PciKind.GPU, "0000:02:00.0", parent=0, gpus=(0,)),
        PciNode(PciKind.NIC, "0000:01:00.0", parent=0, nics=(0, 1)),
        PciNode(PciKind.OTHER, "0000:03:00.0", parent=0),
    )
    back = again(Machine("odd", "by hand", (Gpu("first one"),), nics, tree=tree))
    assert [gpu.name for gpu in back.gpus] == ["GPU0"]
    assert [nic.name for nic in back.nics] == ['<"&?>']
    assert back.tree[3].kind is PciKind.OTHER


def test_a_gpu_is_written_with_what_is_known_of_it():
    gpus = (
        Gpu("GPU2", bus_id="0000:07:00.0", arch="90", numa=1, cpus="0-3", c2c_mb_per_s=450_000),
        Gpu("GPU5", bus_id="0000:08:00.0", arch="90", numa=1, cpus="0-3"),
    )
    back = again(Machine("two", "by hand", gpus, nvlink=(Wire(0, 1, 4),)))
    assert back.gpus == tuple(replace(gpu, lanes=4) for gpu in gpus)


def test_bus_ids_that_two_devices_claim_are_given_once():
    gpus = (Gpu("GPU0", bus_id="0000:07:00.0"), Gpu("GPU1", bus_id="0000:07:00.0"))
    back = again(Machine("two", "by hand", gpus))
    assert [gpu.bus_id for gpu in back.gpus] == ["0000:07:00.0", "ffff:ff:01.0"]


def test_a_made_up_bus_id_is_no_other_device():
    gpus = (Gpu("GPU0"), Gpu("GPU1", bus_id="ffff:ff:01.0"))
    assert [gpu.bus_id for gpu in again(Machine("two", "by hand", gpus)).gpus] == [
        "ffff:ff:02.0",
        "ffff:ff:01.0",
    ]


def test_links_of_several_hops_are_no_links():
    gpus = tuple(Gpu(f"GPU{gpu}", arch="gfx90a") for gpu in range(3))
    xgmi = (Xgmi(0, 1, hops=1), Xgmi(0, 2, hops=2), Xgmi(1, 2, hops=1))
    back = again(Machine("chain", "by hand", gpus, xgmi=xgmi))
    assert [(pair.low, pair.high, pair.lanes) for pair in back.xgmi] == [(0, 1, 1), (1, 2, 1)]
    assert back.gpus[0].arch == "gfx90a"


def test_numbers_start_anew_on_every_host():
    tree = tuple(
        node
        for host in range(2)
        for node in (
            PciNode(PciKind.CPU, "cpu 0", numa=0, host=f"0x{host}"),
            PciNode(PciKind.GPU, "0000:07:00.0", parent=2 * host, gpus=(host,)),
        )
    )
    machine = Machine("two hosts", "by hand", (Gpu("GPU0"), Gpu("GPU1")), tree=tree)
    assert write_nccl_xml(machine).count('<gpu dev="0"') == 2
    assert [gpu.name for gpu in again(machine).gpus] == ["GPU0", "GPU1"]


def test_switches_in_the_tree_stay_switches():
    gpus = tuple(Gpu(f"GPU{gpu}", bus_id=f"0000:0{gpu + 1}:00.0") for gpu in range(3))
    tree = (
        PciNode(PciKind.CPU, "cpu 0"),
        *(PciNode(PciKind.GPU, gpu.bus_id, 0, gpus=(at,)) for at, gpu in enumerate(gpus)),
        PciNode(PciKind.OTHER, "0000:f0:00.0", 0),
    )
    switches = (NvSwitch("0000:f0:00.0", (6, 6, 0)),)
    wires = (Wire(0, 1, 6),)
    machine = Machine("m", "by hand", gpus, nvlink=wires, switches=switches, tree=tree)
    text = write_nccl_xml(machine)
    assert '<pci busid="0000:f0:00.0" class="0x068000"' in text
    assert again(machine).switches == switches
    assert again(machine).nvlink == wires
