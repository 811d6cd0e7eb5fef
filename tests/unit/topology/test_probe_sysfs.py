"""PCI devices from recorded trees of the kernel: whole, partly hidden, odd."""

import pytest
from support.fake_sysfs import DGX1_GPUS, dgx1, fake_sysfs

from blinkrun.topology.machine import PciKind
from blinkrun.topology.probe_sysfs import read_pci
from blinkrun.topology.sysfs_pci import Port

GPU = "pci0000:00/0000:00:02.0/0000:07:00.0 gpu"


def one(tmp_path, line):
    """The device that a line describes."""
    name = line.split()[0].rpartition("/")[2]
    return next(
        (device for device in read_pci(fake_sysfs(tmp_path, line)) if device.name == name), None
    )


def test_a_gpu_is_read_with_its_way_and_its_link(tmp_path):
    gpu = one(tmp_path, f"{GPU} numa=1 cpus=20-39 speed=16 width=8of16 device=0x20b5")
    assert (gpu.kind, gpu.root, gpu.above) == (PciKind.GPU, "pci0000:00", ("0000:00:02.0",))
    assert (gpu.numa, gpu.cpus, gpu.vendor, gpu.device) == (1, "20-39", 0x10DE, 0x20B5)
    assert (gpu.gt_per_s, gpu.width, gpu.max_width) == (16.0, 8, 16)


def test_devices_of_other_kinds_are_left_out(tmp_path):
    lines = "\n".join(
        f"pci0000:00/0000:00:{at:02x}.0 {kind}" for at, kind in enumerate(("vga", "audio", "disk"))
    )
    assert read_pci(fake_sysfs(tmp_path, lines)) == ()


def test_a_whole_machine_is_sorted_by_bus_id(tmp_path):
    devices = read_pci(fake_sysfs(tmp_path, dgx1()))
    assert [device.name for device in devices] == sorted(device.name for device in devices)
    gpus = [device for device in devices if device.kind is PciKind.GPU]
    assert tuple(gpu.name for gpu in gpus) == DGX1_GPUS
    assert {len(gpu.above) for gpu in gpus} == {3}


@pytest.mark.parametrize("numa", ["-1", "none", ""])
def test_a_numa_node_that_is_not_known(tmp_path, numa):
    assert one(tmp_path, f"{GPU} numa={numa}").numa is None


@pytest.mark.parametrize("speed", ["Unknown", "0"])
def test_a_speed_that_is_not_known_is_that_of_now_or_none(tmp_path, speed):
    assert one(tmp_path, f"{GPU} speed={speed}").gt_per_s == 2.5
    (tmp_path / "bus/pci/devices/0000:07:00.0/current_link_speed").unlink()
    (gpu,) = [device for device in read_pci(tmp_path) if device.kind is PciKind.GPU]
    assert gpu.gt_per_s is None


@pytest.mark.parametrize(("width", "lanes"), [("0of16", 16), ("255", None), ("0", None), ("4", 4)])
def test_lanes_that_make_no_sense_are_not_known(tmp_path, width, lanes):
    assert one(tmp_path, f"{GPU} width={width}").width == lanes


def test_ports_of_network_cards(tmp_path):
    lines = """
        pci0000:00/0000:00:01.0/0000:01:00.0 ib rdma=mlx5_0 net=ib0 rate=200
        pci0000:00/0000:00:02.0/0000:02:00.0 ib rdma=mlx5_1 state=1:DOWN
        pci0000:00/0000:00:03.0/0000:03:00.0 eth net=eth0,eth1 mbit=25000
        pci0000:00/0000:00:04.0/0000:04:00.0 eth net=eth2
        pci0000:00/0000:00:05.0 eth
    """
    root = fake_sysfs(tmp_path, lines)
    virtio = root / "devices/pci0000:00/0000:00:05.0/virtio3/net/eth9/speed"
    virtio.parent.mkdir(parents=True)
    virtio.write_text("10000\n")
    cards = [device for device in read_pci(root) if device.kind is PciKind.NIC]
    assert {card.name: card.ports for card in cards} == {
        "0000:00:05.0": (Port("eth9", 10_000),),
        "0000:01:00.0": (Port("mlx5_0", 200_000),),
        "0000:02:00.0": (Port("mlx5_1"),),
        "0000:03:00.0": (Port("eth0", 25_000), Port("eth1", 25_000)),
        "0000:04:00.0": (Port("eth2"),),
    }


def test_virtual_functions_are_part_of_their_card(tmp_path):
    way = "pci0000:00/0000:00:01.0"
    root = fake_sysfs(tmp_path, f"{way}/0000:01:00.0 eth net=a\n{way}/0000:01:00.1 eth net=b")
    (root / "devices" / way / "0000:01:00.1/physfn").symlink_to("../0000:01:00.0")
    assert [card.name for card in read_pci(root) if card.kind is PciKind.NIC] == ["0000:01:00.0"]


def test_a_tree_without_links_has_devices_without_a_way(tmp_path):
    """Some sandboxes show plain folders."""
    home = tmp_path / "bus/pci/devices/0000:07:00.0"
    home.mkdir(parents=True)
    for file, text in (("class", "0x030200"), ("vendor", "0x10de")):
        (home / file).write_text(text)
    (gpu,) = read_pci(tmp_path)
    assert (gpu.root, gpu.above) == ("", ())


def test_links_in_a_circle_and_odd_entries_are_borne(tmp_path):
    root = fake_sysfs(tmp_path, GPU)
    entries = root / "bus/pci/devices"
    (entries / "0000:99:00.0").symlink_to("0000:99:00.0")
    (entries / "odd").mkdir()
    (entries / "0000:98:00.0").mkdir()
    (entries / "0000:98:00.0/class").write_bytes(b"\xff\xfe")
    assert [device.name for device in read_pci(root)] == ["0000:00:02.0", "0000:07:00.0"]


def test_a_way_that_cannot_be_followed_is_not_known(tmp_path, monkeypatch):
    root = fake_sysfs(tmp_path, GPU)

    def refuse(_self):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.resolve", refuse)
    assert {device.above for device in read_pci(root)} == {()}


def test_no_tree_at_all(tmp_path):
    assert read_pci(tmp_path / "nothing") == ()
