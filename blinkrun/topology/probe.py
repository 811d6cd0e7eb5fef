"""Reads from sysfs what this host is made of. All doubt ends in one socket, never in an error."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from blinkrun.topology.cpu import Cpu, Host

SYSFS = Path("/sys")


def probe_host(
    sysfs: Path = SYSFS, affinity: Iterable[int] | None = None, cpu_count: int | None = None
) -> Host:
    """Return the processors that this process may use and where they sit.

    Parameters
    ----------
    sysfs : Path, default /sys
        Where the kernel's tree is mounted.
    affinity : iterable of int, optional
        Processors that the process may run on; the kernel is asked if not given.
    cpu_count : int, optional
        How many processors to assume where the tree is hidden; the operating system's count if
        not given.

    Returns
    -------
    Host
        With ``complete`` false where the tree is hidden or makes no sense, as it does in some
        containers; the processors are then taken to share one socket.
    """
    allowed = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    online = _cpu_list(sysfs / "devices/system/cpu/online")
    usable = sorted(allowed & online)
    numa = _numa_of_cpu(sysfs / "devices/system/node")
    cpus = [_cpu(sysfs, cpu, numa.get(cpu, 0)) for cpu in usable]
    known = [cpu for cpu in cpus if cpu is not None]
    if known and len(known) == len(usable):
        return Host(tuple(known))
    count = cpu_count or os.cpu_count() or 1
    ids = usable or sorted(allowed) or range(count)
    return Host(tuple(Cpu(cpu, core=cpu, socket=0, numa=0) for cpu in ids), complete=False)


def _cpu(sysfs: Path, cpu: int, numa: int) -> Cpu | None:
    """Return where a processor sits, or None if the kernel does not say."""
    folder = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
    socket = _number(folder / "physical_package_id")
    core = _number(folder / "core_id")
    if socket is None or core is None:
        return None
    # -1 is what kernels write where the firmware does not number sockets
    return Cpu(cpu, core=core if core >= 0 else cpu, socket=max(socket, 0), numa=numa)


def _numa_of_cpu(folder: Path) -> dict[int, int]:
    nodes = {}
    for node in _cpu_list(folder / "online"):
        for cpu in _cpu_list(folder / f"node{node}/cpulist"):
            nodes[cpu] = node
    return nodes


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _cpu_list(path: Path) -> frozenset[int]:
    """Return the numbers of a kernel list such as ``0-3,8``; empty if hidden or malformed."""
    numbers: set[int] = set()
    try:
        for item in filter(None, _text(path).split(",")):
            first, _, last = item.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return frozenset()
    return frozenset(numbers)
