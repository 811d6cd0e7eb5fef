"""Joins what tools tell of GPUs with what the kernel tells of PCI devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from blinkrun.topology.machine import Gpu, Machine, Nic, PciKind
from blinkrun.topology.pci_levels import gpu_levels, nic_levels
from blinkrun.topology.sysfs_pci import PciDevice, Port, bus_id, narrow_links, pci_tree

SOURCE = "sysfs"
_MAKERS = {0x10DE: "NVIDIA", 0x1002: "AMD"}


def of_kernel(devices: Sequence[PciDevice], vendor: str, name: str) -> Machine | None:
    """Return the GPUs that the kernel alone tells of, joined by PCIe, or None if it has none."""
    gpus = [device for device in devices if device.kind is PciKind.GPU]
    if not gpus:
        return None
    machine = Machine(
        name=name,
        source=SOURCE,
        gpus=tuple(
            Gpu(
                f"GPU{index}",
                model=f"{_MAKERS.get(gpu.vendor, '')} 0x{gpu.device:04x}".strip(),
                bus_id=gpu.name,
            )
            for index, gpu in enumerate(gpus)
        ),
        pcie=None,
        notes=tuple(_doubts(devices)),
    )
    return with_kernel(machine, devices, vendor)


def with_kernel(machine: Machine, devices: Sequence[PciDevice], vendor: str) -> Machine:
    """Return the machine with the kernel's PCI tree, if that shows all of its GPUs.

    Parameters
    ----------
    machine : Machine
        As a tool or a library tells; what it states stays.
    devices : sequence of PciDevice
        What the kernel shows; a container may show other GPUs than its own as well.
    vendor : str
        Of the CPUs.
    """
    by_name = {device.name: device for device in devices}
    gpus = [by_name.get(bus_id(gpu.bus_id) or "") for gpu in machine.gpus]
    found = [gpu for gpu in gpus if gpu is not None and gpu.kind is PciKind.GPU]
    if len(found) < machine.num_gpus or len(set(found)) < len(found):
        hidden = " ".join(
            gpu.name for gpu, seen in zip(machine.gpus, gpus, strict=True) if seen is None
        )
        return machine.with_notes(f"the kernel hides the PCI tree of {hidden or 'the GPUs'}")
    nics, cards = _nics(machine, devices)
    bridges = {device.name: device for device in devices if device.kind is PciKind.BRIDGE}
    tree = pci_tree(found, cards, bridges, vendor)
    stated = {(path.gpu, path.nic) for path in machine.gpu_nic}
    with_tree = replace(
        machine,
        gpus=tuple(
            replace(gpu, bus_id=seen.name, numa=seen.numa, cpus=gpu.cpus or seen.cpus)
            for gpu, seen in zip(machine.gpus, found, strict=True)
        ),
        nics=nics,
        pcie=gpu_levels(tree) if machine.pcie is None else machine.pcie,
        gpu_nic=(
            *machine.gpu_nic,
            *(path for path in nic_levels(tree) if (path.gpu, path.nic) not in stated),
        ),
        tree=tree,
    )
    return with_tree.with_notes(*narrow_links(found))


def _nics(
    machine: Machine, devices: Sequence[PciDevice]
) -> tuple[tuple[Nic, ...], list[PciDevice | None]]:
    """Return the NICs, those of the machine first, and the card of each that the kernel shows."""
    ports = {port.name: (port, device) for device in devices for port in device.ports}
    nics: list[Nic] = []
    cards: list[PciDevice | None] = []
    for nic in machine.nics:
        name = nic.device if nic.device in ports else nic.name
        port, card = ports.pop(name, (None, None))
        if port is None or card is None:
            nics.append(nic)
        else:
            nics.append(_seen(nic, port, card))
        cards.append(card)
    for port, card in ports.values():
        nics.append(_seen(Nic(port.name, port.name), port, card))
        cards.append(card)
    return tuple(nics), cards


def _seen(nic: Nic, port: Port, card: PciDevice) -> Nic:
    return replace(nic, bus_id=card.name, numa=card.numa, mbit_per_s=port.mbit_per_s)


def _doubts(devices: Sequence[PciDevice]) -> Iterator[str]:
    """Yield what is not known where no tool tells of the GPUs."""
    yield (
        "neither NVIDIA's nor AMD's tools tell of these GPUs, only the kernel: NVLink and xGMI are"
        " not known, and the GPUs may not be usable here"
    )
    switches = sum(device.kind is PciKind.OTHER for device in devices)
    if switches:
        yield f"there are {switches} NVSwitches, so the GPUs have NVLinks that are not told of"
