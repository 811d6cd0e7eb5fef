"""From PCI devices to the tree that joins GPUs and NICs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_sysfs import DGX1_GPUS, dgx1, fake_sysfs

from blinkrun.topology.machine import PciKind
from blinkrun.topology.pci_levels import gpu_levels, nic_levels
from blinkrun.topology.probe_sysfs import read_pci
from blinkrun.topology.sysfs_pci import PciDevice, bus_id, narrow_links, pci_tree


def tree_of(folder, text, hidden=()):
    """The tree of a description: its GPUs and NICs in the order of their bus ids."""
    devices = read_pci(fake_sysfs(folder, text, hidden))
    return pci_tree(
        [device for device in devices if device.kind is PciKind.GPU],
        [device for device in devices if device.kind is PciKind.NIC],
        {device.name: device for device in devices if device.kind is PciKind.BRIDGE},
        "intel",
    )


def drawn(tree):
    """The tree in words: every node and what it hangs on."""
    return {node.name: tree[node.parent].name if node.parent >= 0 else None for node in tree}


def levels(tree):
    return {(path.low, path.high): path.level for path in gpu_levels(tree)}


def test_a_dgx1_has_four_switches_on_two_sockets(tmp_path):
    tree = tree_of(tmp_path, dgx1())
    words = drawn(tree)
    assert [node.name for node in tree if node.kind is PciKind.CPU] == ["cpu 0", "cpu 1"]
    assert [node.numa for node in tree if node.kind is PciKind.CPU] == [0, 1]
    switches = [node.name for node in tree if node.kind is PciKind.BRIDGE]
    assert [words[name] for name in switches] == ["cpu 0", "cpu 0", "cpu 1", "cpu 1"]
    assert [words[name] for name in DGX1_GPUS] == [name for name in switches for _ in (0, 1)]
    assert {(node.gt_per_s, node.width) for node in tree if node.parent >= 0} == {(8.0, 16)}
    assert levels(tree)[0, 1] == "PIX"
    assert levels(tree)[0, 2] == "PHB"
    assert levels(tree)[0, 4] == "SYS"
    assert [path.level for path in nic_levels(tree) if path.gpu == 0] == [
        "PIX",
        "PHB",
        "SYS",
        "SYS",
    ]


def test_without_numa_nodes_all_hang_on_one_cpu(tmp_path):
    tree = tree_of(tmp_path, dgx1(numa=False))
    (cpu,) = [node for node in tree if node.kind is PciKind.CPU]
    assert (cpu.name, cpu.numa, cpu.vendor) == ("cpu 0", None, "intel")
    assert set(levels(tree).values()) == {"PIX", "PHB"}


def test_switches_below_switches(tmp_path):
    """Two sockets with cascaded switches, as in servers with ten GPUs; EPYC, PCIe 4."""
    lines = []
    for socket, bus in ((0, 0x10), (1, 0x90)):
        top = f"pci0000:{bus - 1:02x}/0000:{bus - 1:02x}:01.1/0000:{bus:02x}:00.0"
        lines.append(f"{top} bridge speed=16 width=16")
        for half in (0, 1):
            low = f"{top}/0000:{bus + 1:02x}:{half:02x}.0/0000:{bus + 2 + 16 * half:02x}:00.0"
            lines.append(f"{low} bridge speed=16 width=16")
            for gpu in (0, 1):
                slot = bus + 4 + 16 * half + gpu
                down = f"{low}/0000:{bus + 3 + 16 * half:02x}:{gpu:02x}.0"
                lines.append(f"{down}/0000:{slot:02x}:00.0 gpu numa={socket} speed=16 width=16")
    tree = tree_of(tmp_path, "\n".join(lines))
    assert [node.kind for node in tree].count(PciKind.BRIDGE) == 6
    found = levels(tree)
    assert (found[0, 1], found[0, 2], found[0, 4]) == ("PIX", "PXB", "SYS")


def test_the_slower_end_of_a_link_counts(tmp_path):
    way = "pci0000:00/0000:00:02.0/0000:03:00.0/0000:04:08.0/0000:07:00.0"
    parts = way.split("/")
    text = f"""
        {"/".join(parts[:2])} bridge speed=5 width=16
        {"/".join(parts[:3])} bridge speed=8 width=8
        {"/".join(parts[:4])} bridge speed=8 width=4
        {way} gpu numa=0 speed=16 width=16
    """
    nodes = {node.name: (node.gt_per_s, node.width) for node in tree_of(tmp_path, text)}
    assert nodes["0000:03:00.0"] == (5.0, 8)  # root port and the switch's port upwards
    assert nodes["0000:07:00.0"] == (8.0, 4)  # the switch's port downwards and the GPU


def test_a_virtual_machine_has_gpus_at_the_root(tmp_path):
    lines = "\n".join(f"pci0000:00/0000:00:{at:02x}.0 gpu" for at in range(4, 8))
    tree = tree_of(tmp_path, lines)
    assert [node.kind for node in tree] == [PciKind.CPU, *[PciKind.GPU] * 4]
    assert {(node.gt_per_s, node.width) for node in tree} == {(None, None)}
    assert set(levels(tree).values()) == {"PHB"}


def test_a_root_of_its_own_for_every_gpu(tmp_path):
    """Hyper-V gives each device a domain."""
    lines = "\n".join(f"pci{at:04x}:00/{at:04x}:00:00.0 gpu numa={at // 3}" for at in (1, 2, 3, 4))
    assert levels(tree_of(tmp_path, lines)) == {
        (0, 1): "PHB",
        (2, 3): "PHB",
        **dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "SYS"),
    }


def test_devices_behind_one_odd_bridge_share_it(tmp_path):
    """A bridge of a virtual machine with several devices behind it, where no pattern holds."""
    text = "\n".join(f"pci0000:00/0000:00:02.0/0000:01:{at:02x}.0 gpu" for at in range(3))
    tree = tree_of(tmp_path, text)
    assert drawn(tree)["0000:00:02.0"] == "cpu 0"
    assert set(levels(tree).values()) == {"PIX"}


def test_hidden_bridges_are_switches_of_unknown_speed(tmp_path):
    hidden = tuple(f"0000:{0x04 + 0x40 * switch:02x}:00.0" for switch in range(4))
    tree = tree_of(tmp_path, dgx1(), hidden)
    assert {node.width for node in tree if node.kind is PciKind.BRIDGE} == {16}  # the root ports'
    assert levels(tree)[0, 1] == "PIX"
    everything = tuple(
        name for name in drawn(tree) if name not in DGX1_GPUS and not name.startswith("cpu")
    )
    ports = tuple(
        f"0000:{bus + 0x40 * switch:02x}:{device:02x}.0"
        for switch in range(4)
        for bus, device in ((0, 2), (5, 8), (5, 12))
    )
    bare = tree_of(tmp_path / "bare", dgx1(), (*everything, *ports))
    assert {node.width for node in bare if node.kind is PciKind.BRIDGE} == {None}
    assert levels(bare) == levels(tree)


def test_a_numa_node_that_one_device_hides_is_its_neighbours(tmp_path):
    text = """
        pci0000:00/0000:00:02.0/0000:03:00.0/0000:04:00.0/0000:05:00.0 gpu numa=1
        pci0000:00/0000:00:02.0/0000:03:00.0/0000:04:01.0/0000:06:00.0 gpu
        pci0000:80/0000:80:02.0 bridge numa=2
        pci0000:80/0000:80:02.0/0000:81:00.0 gpu
        pci0000:c0/0000:c0:02.0/0000:c1:00.0 gpu
    """
    tree = tree_of(tmp_path, text)
    assert {node.name for node in tree if node.kind is PciKind.CPU} == {"cpu -1", "cpu 1", "cpu 2"}
    assert levels(tree)[0, 1] == "PIX"


def test_what_a_device_says_of_its_numa_node_goes_before_its_ports_and_neighbours(tmp_path):
    text = """
        pci0000:80/0000:80:02.0 bridge numa=2
        pci0000:80/0000:80:02.0/0000:81:00.0 gpu numa=3
        pci0000:80/0000:80:03.0/0000:82:00.0 gpu numa=1
        pci0000:80/0000:80:02.0/0000:83:00.0 gpu
    """
    tree = tree_of(tmp_path, text)
    assert [node.numa for node in tree if node.kind is PciKind.CPU] == [1, 2, 3]
    assert drawn(tree)["0000:82:00.0"] == "cpu 1"


def test_the_functions_of_a_nic_are_one_card(tmp_path):
    way = "pci0000:00/0000:00:02.0"
    text = f"{way}/0000:03:00.0 ib rdma=mlx5_0\n{way}/0000:03:00.1 ib rdma=mlx5_1"
    tree = tree_of(tmp_path, text)
    assert [(node.name, node.nics) for node in tree if node.nics] == [("0000:03:00.0", (0, 1))]
    assert [node.kind for node in tree] == [PciKind.CPU, PciKind.NIC]


def test_a_nic_that_the_kernel_does_not_show_is_in_no_place():
    gpu = PciDevice("0000:07:00.0", PciKind.GPU)
    nic = PciDevice("0000:08:00.0", PciKind.NIC)
    assert [node.nics for node in pci_tree([gpu], [None, nic], {})] == [(), (), (1,)]


def test_links_that_lack_lanes_are_named():
    full = PciDevice("0000:07:00.0", PciKind.GPU, width=16, max_width=16)
    half = PciDevice("0000:08:00.0", PciKind.GPU, width=8, max_width=16)
    odd = PciDevice("0000:09:00.0", PciKind.GPU, width=8)
    assert narrow_links([full, half, odd, PciDevice("0000:0a:00.0", PciKind.GPU)]) == (
        "GPU 0000:08:00.0: its PCIe link runs at x8 of x16",
    )


@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_a_bus_id_is_the_same_in_all_spellings(domain, bus, device, function):
    name = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    spellings = [name, name.upper(), f"0000{name}", f" {name} ", f"{domain:x}:{name[5:]}"]
    if domain == 0:
        spellings.append(name[5:])
    assert {bus_id(text) for text in spellings} == {name}


@pytest.mark.parametrize("text", ["", "7", "GPU-07:00.0", "07:00.9", "07:20.0", "x07:00.0", "N/A"])
def test_what_is_no_bus_id(text):
    assert bus_id(text) is None
