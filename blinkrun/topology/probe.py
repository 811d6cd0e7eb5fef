"""Finds out what this host is made of. All doubt ends in less detail, never in an error.

The processors come from sysfs. GPUs come from NVIDIA's library, else from the vendors' tools, and
the PCI tree that joins them from sysfs, which alone knows little: a tree without NVLinks.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blinkrun.topology.cpu import Cpu, Host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blinkrun.topology.machine import Machine
    from blinkrun.topology.probe_tools import Run

SYSFS = Path("/sys")
CPUINFO = Path("/proc/cpuinfo")
TOOL_TIMEOUT_S = 10.0
_TOOL_FOLDERS = ("/opt/rocm/bin", "/usr/lib/wsl/lib")  # where tools are that PATH often lacks


class Tools:
    """Runs the vendors' tools; one that has hung once is not run again."""

    def __init__(self, timeout_s: float = TOOL_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._hung: set[str] = set()

    def __call__(self, argv: Sequence[str]) -> str | None:
        """Return what a tool prints, or None if it is missing, fails or takes too long."""
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_TOOL_FOLDERS])
        program = shutil.which(argv[0], path=path)
        if program is None or argv[0] in self._hung:
            return None
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    [program, *argv[1:]],
                    env={**os.environ, "LC_ALL": "C"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                self._hung.add(argv[0])
                os.killpg(process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # a driver may hold it for ever
                    process.wait(1)
                return None
            except OSError:
                return None
            output.seek(0)
            return output.read().decode(errors="replace") if code == 0 else None


@contextmanager
def open_nvml() -> Iterator[Any | None]:
    """Give NVIDIA's library, initialised, for as long as the context lasts; None without it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old package of the same name warns of itself
            library: Any = import_module("pynvml")  # optional: nvidia-ml-py
        library.nvmlInit()
    except Exception:  # the package is missing or broken, or there is no driver: GPUs may hide
        yield None
        return
    try:
        yield library
    finally:
        with suppress(library.NVMLError):
            library.nvmlShutdown()


def probe_machine(  # noqa: PLR0913
    sysfs: Path = SYSFS,
    environ: Mapping[str, str] = os.environ,
    *,
    run: Run | None = None,
    nvml: Callable[[], Any] = open_nvml,
    cpuinfo: str | None = None,
    name: str = "",
) -> Machine | None:
    """Return the GPUs of this host and what joins them, or None if there are none.

    Parameters
    ----------
    sysfs : Path, default /sys
        Where the kernel's tree is mounted.
    environ : mapping
        Where CUDA_VISIBLE_DEVICES and its like are looked up, for a note; all GPUs are returned.
    run : callable, optional
        Runs a tool and returns what it prints, or None; `Tools` by default.
    nvml : callable
        Gives a context with NVIDIA's library, or with None where there is none.
    cpuinfo : str, optional
        What /proc/cpuinfo says; read if not given.
    name : str, optional
        What to call the machine; the host's name if not given.

    Returns
    -------
    Machine or None
        With the exact PCI tree where the kernel shows all GPUs of it. Notes say what is not
        known, such as NVLinks where only the kernel tells of GPUs.
    """
    from blinkrun.topology.probe_merge import of_kernel, with_kernel  # noqa: PLC0415 - GPUs are rare
    from blinkrun.topology.probe_nvml import read_nvml  # noqa: PLC0415
    from blinkrun.topology.probe_sysfs import read_pci  # noqa: PLC0415
    from blinkrun.topology.probe_tools import (  # noqa: PLC0415
        mig_parents,
        read_amd_tools,
        read_nvidia_tools,
    )
    from blinkrun.topology.visible import CUDA, visibility_notes  # noqa: PLC0415

    run = run or Tools()
    name = name or os.uname().nodename
    devices = read_pci(sysfs)
    vendor = cpu_vendor(_text(CPUINFO) if cpuinfo is None else cpuinfo)
    with nvml() as library:
        machine = None if library is None else read_nvml(library, name)
    machine = machine or read_nvidia_tools(run, name) or read_amd_tools(run, name)
    if machine is not None:
        machine = with_kernel(machine, devices, vendor)
    else:
        machine = of_kernel(devices, vendor, name)
    if machine is None:
        return None
    has_mig = "MIG-" in environ.get(CUDA, "")
    mig = mig_parents(run(("nvidia-smi", "-L")) or "") if has_mig else {}
    return machine.with_notes(*visibility_notes(machine, environ, mig))


def probe_here(environ: Mapping[str, str] = os.environ) -> tuple[Machine | None, Host]:
    """Return the GPUs of this host, or None without any, and its processors."""
    return probe_machine(environ=environ), probe_host()


def cpu_vendor(cpuinfo: str) -> str:
    r"""Return the maker of the CPUs, as `PciNode` names it; empty if unknown.

    >>> cpu_vendor("processor : 0\nvendor_id : GenuineIntel\n")
    'intel'
    """
    for word, vendor in (
        ("GenuineIntel", "intel"),
        ("AuthenticAMD", "amd"),
        ("HygonGenuine", "amd"),
        ("CentaurHauls", "zhaoxin"),
        ("  Shanghai  ", "zhaoxin"),
        ("CPU implementer", "arm"),
        ("POWER", "power"),
    ):
        if word in cpuinfo:
            return vendor
    return ""


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
