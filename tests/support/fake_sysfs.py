"""A kernel's tree of PCI devices, written into a folder from a short description.

A line is the way to a device, what it is, and what its files say::

    pci0000:00/0000:00:02.0/0000:03:00.0/0000:04:08.0/0000:07:00.0 gpu numa=0 speed=8 width=16

Devices on the way that have no line of their own are bridges.
"""

from __future__ import annotations

from pathlib import Path

CLASSES = {
    "bridge": ("0x060400", "0x10b5"),
    "gpu": ("0x030200", "0x10de"),
    "amd": ("0x120000", "0x1002"),
    "vga": ("0x030000", "0x1a03"),  # the console of a server
    "audio": ("0x040300", "0x10de"),
    "nvswitch": ("0x068000", "0x10de"),
    "ib": ("0x020700", "0x15b3"),
    "eth": ("0x020000", "0x8086"),
    "disk": ("0x010802", "0x144d"),
}
SPEEDS = {2.5: "2.5 GT/s PCIe", 5.0: "5.0 GT/s PCIe", 8.0: "8.0 GT/s PCIe", 16.0: "16.0 GT/s PCIe"}


def fake_sysfs(folder: Path, text: str, hidden: tuple[str, ...] = ()) -> Path:
    """Write the tree and return its root; devices that are `hidden` have no files and no entry."""
    entries = folder / "bus/pci/devices"
    entries.mkdir(parents=True, exist_ok=True)
    known: dict[str, tuple[str, str, dict[str, str]]] = {}
    for line in filter(str.strip, text.splitlines()):
        way, kind, *facts = line.split()
        root, *names = way.split("/")
        for at, name in enumerate(names):
            path = "/".join([root, *names[: at + 1]])
            known.setdefault(name, (path, "bridge", {}))
        known[names[-1]] = (way, kind, dict(fact.split("=", 1) for fact in facts))
    for name, (way, kind, facts) in known.items():
        home = folder / "devices" / way
        home.mkdir(parents=True, exist_ok=True)
        if name not in hidden:
            write_device(home, kind, facts)
            (entries / name).symlink_to(home)
    return folder


def write_device(home: Path, kind: str, facts: dict[str, str]) -> None:
    """Write the files of one device."""
    number, vendor = CLASSES[kind]
    files = {"class": number, "vendor": vendor, "device": facts.get("device", "0x1db1")}
    if "numa" in facts:
        files["numa_node"] = facts["numa"]
    if "cpus" in facts:
        files["local_cpulist"] = facts["cpus"]
    if "speed" in facts:
        speed = facts["speed"]
        files["max_link_speed"] = SPEEDS.get(float(speed), speed) if speed[0].isdigit() else speed
        files["current_link_speed"] = "2.5 GT/s PCIe"  # an idle device
    if "width" in facts:
        files["current_link_width"], _, most = facts["width"].partition("of")
        files["max_link_width"] = most or facts["width"]
    for port in filter(None, facts.get("net", "").split(",")):
        files[f"net/{port}/speed"] = facts.get("mbit", "-1")
    for port in filter(None, facts.get("rdma", "").split(",")):
        files[f"infiniband/{port}/ports/1/rate"] = facts.get("rate", "100") + " Gb/sec (4X EDR)"
        files[f"infiniband/{port}/ports/1/state"] = facts.get("state", "4: ACTIVE")
    for file, content in files.items():
        path = home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def dgx1(numa: bool = True) -> str:
    """A DGX-1: two sockets, two switches each, two GPUs and a NIC at every switch."""
    lines = []
    for switch in range(4):
        bus = 0x04 + 0x40 * switch
        root = f"pci0000:{bus - 4:02x}/0000:{bus - 4:02x}:02.0"
        up = f"{root}/0000:{bus:02x}:00.0"
        lines.append(f"{root} bridge speed=8 width=16")
        lines.append(f"{up} bridge speed=8 width=16")
        node = f"numa={switch // 2}" if numa else "numa=-1"
        for port, name in enumerate(("gpu", "gpu", "ib")):
            down = f"{up}/0000:{bus + 1:02x}:{8 + 4 * port:02x}.0"
            own = f"{down}/0000:{bus + 2 + port:02x}:00.0"
            extra = f"rdma=mlx5_{switch}" if name == "ib" else f"cpus={20 * (switch // 2)}-19"
            lines.append(f"{down} bridge speed=8 width=16")
            lines.append(f"{own} {name} {node} speed=8 width=16 {extra}")
    return "\n".join(lines)


DGX1_GPUS = tuple(
    f"0000:{0x06 + 0x40 * switch + gpu:02x}:00.0" for switch in range(4) for gpu in (0, 1)
)
