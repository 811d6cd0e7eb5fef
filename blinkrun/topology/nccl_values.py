"""Attribute values of NCCL and RCCL topology files: bus ids, PCI classes, speeds, CPU masks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from blinkrun.topology.machine import PciKind

_BUS_ID = re.compile(r"[0-9a-f]{1,16}(?:[:.][0-9a-f]{1,8}){1,3}")
_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?)\s*(?:GT/s.*)?")
_CLASS = re.compile(r"(?:0x)?([0-9a-f]{1,6})")
_MASK = re.compile(r"[0-9a-f]{1,8}(?:,[0-9a-f]{1,8}){0,255}")
_SPAN = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_WIDEST = 32  # lanes; sysfs writes 63 or 255 where it does not know

_KINDS = (  # by the first digits of the PCI class
    ("0604", PciKind.BRIDGE),
    ("03", PciKind.GPU),
    ("12", PciKind.GPU),  # processing accelerator, as some AMD Instinct report
    ("02", PciKind.NIC),
)
_CONSOLE_VENDORS = ("0x102b", "0x1a03")  # Matrox and ASPEED: the screen of a server
_VENDORS = {
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "HygonGenuine": "amd",
    "CentaurHauls": "zhaoxin",
    "Shanghai": "zhaoxin",
}
_ARCHES = {"arm64": "arm", "aarch64": "arm", "ppc64": "power", "ppc64le": "power"}
_GFX = {"910": "90a"}  # RCCL's old number of the MI200


def bus_id_of(text: str) -> str:
    """Return a bus id in lower case, its domain in four digits where that is enough.

    >>> bus_id_of("00000000:8A:00.0"), bus_id_of("8a:00.0")
    ('0000:8a:00.0', '0000:8a:00.0')
    """
    bus_id = text.strip().lower()
    if re.fullmatch(r"0000[0-9a-f]{4}:.*", bus_id):
        return bus_id[4:]
    return f"0000:{bus_id}" if bus_id.count(":") == 1 else bus_id


def is_bus_id(text: str) -> bool:
    """Whether a text has the form of a bus id, also of a made-up one such as ``fffffff:ffff:ff``.

    >>> is_bus_id("0000:07:00.0"), is_bus_id("eth0")
    (True, False)
    """
    return _BUS_ID.fullmatch(text) is not None


def pci_class(text: str) -> str | None:
    """Return the six digits of a PCI class, empty if there is none, None if it is malformed.

    >>> pci_class("0x030200"), pci_class("0302"), pci_class(""), pci_class("GPU")
    ('030200', '030200', '', None)
    """
    stated = text.strip().lower()
    match = _CLASS.fullmatch(stated)
    if match is None:
        return None if stated else ""
    digits = match[1]
    # class, subclass and interface have two digits each; people leave out the last ones
    return digits.zfill(len(digits) + len(digits) % 2).ljust(6, "0")


def kind_of_class(digits: str, vendor: str) -> PciKind:
    """Return what a device of this class is; `vendor` as in ``0x10de``."""
    kind = next((kind for start, kind in _KINDS if digits.startswith(start)), PciKind.OTHER)
    if kind is PciKind.GPU and vendor.strip().lower() in _CONSOLE_VENDORS:
        return PciKind.OTHER
    return kind


def speed(text: str) -> float | None:
    """Return GT/s, None where they are not stated.

    >>> speed("16.0 GT/s PCIe"), speed("8"), speed("Unknown")
    (16.0, 8.0, None)
    """
    match = _SPEED.fullmatch(text.strip())
    return (float(match[1]) or None) if match else None


def width(text: str) -> int | None:
    """Return the lanes of a PCIe link, None where they are not stated or cannot be."""
    stated = text.strip()
    lanes = int(stated) if stated.isdecimal() and len(stated) < 4 else 0
    return lanes if 0 < lanes <= _WIDEST else None


def cpu_vendor(attributes: Mapping[str, str]) -> str:
    """Return a CPU's maker or architecture as `PciNode.vendor` names it, else empty."""
    arch = _ARCHES.get(attributes.get("arch", "").strip(), "")
    return _VENDORS.get(attributes.get("vendor", "").strip(), arch)


def gpu_arch(attributes: Mapping[str, str]) -> str:
    """Return the compute capability of a ``gpu`` element, of AMD's the name of the ISA.

    >>> gpu_arch({"sm": "90"}), gpu_arch({"sm": "98", "gcn": "908"})
    ('90', 'gfx908')
    """
    gcn = attributes.get("gcn", "").strip().removeprefix("gfx")
    return f"gfx{_GFX.get(gcn, gcn)}" if gcn else attributes.get("sm", "").strip()


def cpu_list(mask: str) -> str:
    """Return the processors of an affinity mask as a list, empty if it is no mask.

    >>> cpu_list("00000001,000000ff")
    '0-7,32'
    """
    if not _MASK.fullmatch(mask.lower()):
        return ""
    bits = int("".join(group.zfill(8) for group in mask.split(",")), 16)
    spans: list[list[int]] = []
    for cpu in (at for at in range(bits.bit_length()) if bits >> at & 1):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def cpu_mask(cpus: str) -> str:
    """Return the affinity mask of a list of processors, empty if it is no such list.

    >>> cpu_mask("0-7,32")
    '00000001,000000ff'
    """
    bits = 0
    for item in cpus.split(","):
        span = _SPAN.fullmatch(item.strip())
        if span is None:
            return ""
        first, last = int(span[1]), int(span[2] or span[1])
        bits |= sum(1 << cpu for cpu in range(first, last + 1))
    digits = f"{bits:x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[at : at + 8] for at in range(0, len(digits), 8))
