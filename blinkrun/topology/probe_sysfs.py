"""Reads the PCI devices of this host from sysfs. What is hidden is left out, never an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from blinkrun.topology.machine import PciKind
from blinkrun.topology.sysfs_pci import PciDevice, Port, bus_id

NVIDIA = 0x10DE
AMD = 0x1002
_GPU_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)  # VGA, 3D, other display, accelerator
_BRIDGE_CLASS = 0x0604
_NVSWITCH_CLASS = 0x0680  # "other bridge"
_NETWORK_BASE_CLASS = 0x02
_MOST_LANES = 32


def read_pci(sysfs: Path) -> tuple[PciDevice, ...]:
    """Return the GPUs, network cards, NVSwitches and bridges below ``bus/pci/devices``, by bus id.

    Parameters
    ----------
    sysfs : Path
        Where the kernel's tree is mounted.
    """
    devices = [_device(folder) for folder in _entries(sysfs / "bus/pci/devices")]
    return tuple(
        sorted((device for device in devices if device is not None), key=lambda device: device.name)
    )


def _device(folder: Path) -> PciDevice | None:
    """Return a device of a kind that counts here, or None."""
    name = bus_id(folder.name)
    kind = _kind(folder)
    if name is None or kind is None:
        return None
    root, above = _way(folder)
    numa = _number(folder / "numa_node")
    max_width = _lanes(folder / "max_link_width")
    return PciDevice(
        name=name,
        kind=kind,
        root=root,
        above=above,
        numa=numa if numa is not None and numa >= 0 else None,
        cpus=read_line(folder / "local_cpulist"),
        gt_per_s=_speed(folder / "max_link_speed") or _speed(folder / "current_link_speed"),
        width=_lanes(folder / "current_link_width") or max_width,
        max_width=max_width,
        vendor=_number(folder / "vendor") or 0,
        device=_number(folder / "device") or 0,
        ports=tuple(_ports(folder)) if kind is PciKind.NIC else (),
    )


def _kind(folder: Path) -> PciKind | None:
    number = _number(folder / "class")
    if number is None:
        return None
    base_and_sub = number >> 8
    if base_and_sub == _BRIDGE_CLASS:
        return PciKind.BRIDGE
    if base_and_sub in _GPU_CLASSES and _number(folder / "vendor") in (NVIDIA, AMD):
        return PciKind.GPU
    if base_and_sub == _NVSWITCH_CLASS and _number(folder / "vendor") == NVIDIA:
        return PciKind.OTHER
    if base_and_sub >> 8 == _NETWORK_BASE_CLASS:
        # a virtual function shares the card of its physical one
        return None if (folder / "physfn").exists() else PciKind.NIC
    return None


def _way(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the root complex and the ports above a device, from where its link leads."""
    try:
        parts = folder.resolve().parts[:-1]
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        return "", ()
    roots = [at for at, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]+:[0-9a-f]+", part)]
    if not roots:
        return "", ()
    ports = [bus_id(part) for part in parts[roots[-1] + 1 :]]
    return parts[roots[-1]], tuple(port for port in ports if port is not None)


def _ports(folder: Path) -> Iterator[Port]:
    """Yield the ports of a network card: those that do RDMA, else its network interfaces."""
    rdma = [entry.name for entry in _entries(folder / "infiniband")]
    for name in rdma:
        yield Port(name, _rdma_mbit_per_s(folder / "infiniband" / name))
    # virtio puts a device of its own between the card and its interfaces
    homes = [folder, *(entry for entry in _entries(folder) if entry.name.startswith("virtio"))]
    for entry in [] if rdma else [entry for home in homes for entry in _entries(home / "net")]:
        speed = _number(entry / "speed")  # -1 where the cable is out
        yield Port(entry.name, speed if speed is not None and speed > 0 else None)


def _rdma_mbit_per_s(folder: Path) -> int | None:
    """Return the speed of the first port that is up; ``100 Gb/sec (4X EDR)``."""
    for port in _entries(folder / "ports"):
        match = re.match(r"([\d.]+)\s*Gb/sec", read_line(port / "rate"))
        if match and "ACTIVE" in read_line(port / "state"):
            return round(float(match[1]) * 1000)
    return None


def read_line(path: Path) -> str:
    """Return the one line of a file of the kernel, or nothing if it is hidden or odd."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """Return a number as the kernel writes it, decimal or after 0x."""
    try:
        return int(read_line(path), 0)
    except ValueError:
        return None


def _lanes(path: Path) -> int | None:
    """Return a link's lanes; 0 and 255 stand for unknown."""
    lanes = _number(path)
    return lanes if lanes is not None and 1 <= lanes <= _MOST_LANES else None


def _speed(path: Path) -> float | None:
    """Return a link's speed in GT/s; ``Unknown`` is none."""
    match = re.match(r"(\d+(?:\.\d+)?)\s*GT/s", read_line(path))
    return float(match[1]) if match else None
