"""What NVIDIA's management library (NVML) tells of this host's GPUs, through nvidia-ml-py.

The library is handed in: a module with the functions of ``pynvml``. A question that a driver or a
GPU does not answer is left open, so that one odd GPU does not hide the others.

References
----------
.. [1] NVIDIA, "NVML API Reference Guide", sections "NvLink Methods" and "Device Queries", 2024.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from blinkrun.topology.machine import Gpu, LinkStatus, Machine, NvSwitch, PciPath, Wire
from blinkrun.topology.sysfs_pci import bus_id

SOURCE = "NVML"
_MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest header
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_HIDDEN = "hidden"  # the far end of an NVLink whose bus id is not told
_SPEED_MBPS = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvmlGpuP2PStatus_t in the words of nvidia-smi topo -p2p, the worse the later
_P2P = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
_READ, _WRITE, _NVLINK = 0, 1, 2  # nvmlGpuP2PCapsIndex_t; the module's READ is a tuple by mistake


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The NVLinks of one GPU: where each leads, by bus id; those that are down."""

    to: Counter[str]
    to_switch: Counter[str]
    inactive: int

    @property
    def active(self) -> int:
        return self.to.total() + self.to_switch.total()


def read_nvml(library: Any, name: str) -> Machine | None:
    """Return the GPUs that NVML shows and how they are joined, or None if it shows none.

    Parameters
    ----------
    library : module
        ``pynvml`` or what has its functions, initialised.
    name : str
        What the machine is called.
    """
    nvml = _Nvml(library)
    handles = nvml.handles()
    if not handles:
        return None
    lanes = [nvml.lanes(handle) for handle in handles]
    gpus = tuple(
        nvml.gpu(index, handle, own)
        for index, (handle, own) in enumerate(zip(handles, lanes, strict=True))
    )
    machine = Machine(
        name=name,
        source=SOURCE,
        gpus=gpus,
        nvlink=_wires(nvml, handles, gpus, lanes),
        pcie=nvml.levels(handles),
        p2p=nvml.p2p(handles),
        switches=_switches(lanes),
        status=tuple(
            LinkStatus(gpu.name, own.active, own.inactive, gpu.lane_gb_per_s)
            for gpu, own in zip(gpus, lanes, strict=True)
            if own.active or own.inactive
        ),
        self_links=_self_links(gpus, lanes),
    )
    return machine.with_notes(*_notes(gpus, lanes))


class _Nvml:
    """The questions that are asked; each answer is None where there is none."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def _ask(self, question: str, *args: Any) -> Any:
        """Return what a function of the library answers, or None if it fails or is missing."""
        function = getattr(self._library, question, None)
        if function is None:
            return None
        try:
            return function(*args)
        except (self._library.NVMLError, TypeError, ValueError):
            return None

    def _text(self, question: str, *args: Any) -> str:
        answer = self._ask(question, *args)
        return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer or "")

    def handles(self) -> list[Any]:
        """Return the handle of every GPU that answers, in NVML's order: that of their bus ids."""
        count = self._ask("nvmlDeviceGetCount") or 0
        handles = [self._ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        return [handle for handle in handles if handle is not None]

    def gpu(self, index: int, handle: Any, lanes: _Lanes) -> Gpu:
        """Return what a GPU is."""
        sm = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        return Gpu(
            name=f"GPU{index}",
            model=self._text("nvmlDeviceGetName", handle),
            bus_id=self._bus_id("nvmlDeviceGetPciInfo", handle),
            uuid=self._text("nvmlDeviceGetUUID", handle),
            arch="" if sm is None else "".join(map(str, sm)),
            lanes=lanes.active,
            lane_gb_per_s=self._lane_gb_per_s(handle) if lanes.active else None,
        )

    def _bus_id(self, question: str, *args: Any) -> str:
        info = self._ask(question, *args)
        text = getattr(info, "busId", "")
        return bus_id(text.decode("ascii", "replace") if isinstance(text, bytes) else text) or ""

    def _lane_gb_per_s(self, handle: Any) -> float | None:
        values = self._ask("nvmlDeviceGetFieldValues", handle, [_SPEED_MBPS])
        if not values or values[0].nvmlReturn != 0 or not values[0].value.uiVal:
            return None
        return float(values[0].value.uiVal) / 1000

    def lanes(self, handle: Any) -> _Lanes:
        """Return the NVLinks of a GPU."""
        lanes = _Lanes(Counter(), Counter(), 0)
        inactive = 0
        for link in range(_MOST_LINKS):
            state = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if state == 0:
                inactive += 1
            elif state == 1:
                kind = self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
                remote = self._bus_id("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
                # in a virtual machine the far end has no bus id: only a switch is left out so
                is_switch = kind == _SWITCH or (kind is None and not remote)
                (lanes.to_switch if is_switch else lanes.to)[remote or _HIDDEN] += 1
        return _Lanes(lanes.to, lanes.to_switch, inactive)

    def reach_by_nvlink(self, one: Any, other: Any) -> bool:
        """Whether two GPUs behind switches reach each other; taken for granted if not told."""
        return self._ask("nvmlDeviceGetP2PStatus", one, other, _NVLINK) in (None, 0)

    def levels(self, handles: Sequence[Any]) -> tuple[PciPath, ...] | None:
        """Return the PCIe level of all pairs, or None if one is not told."""
        paths = []
        for low, high in combinations(range(len(handles)), 2):
            question = "nvmlDeviceGetTopologyCommonAncestor"
            level = _LEVELS.get(self._ask(question, handles[low], handles[high]))
            if level is None:
                return None
            paths.append(PciPath(low, high, level))
        return tuple(paths)

    def p2p(self, handles: Sequence[Any]) -> tuple[tuple[int, int, str], ...]:
        """Return whether pairs read and write each other's memory: the worst of both."""
        found = []
        for low, high in combinations(range(len(handles)), 2):
            answers = [
                self._ask("nvmlDeviceGetP2PStatus", handles[low], handles[high], way)
                for way in (_READ, _WRITE)
            ]
            known = [answer for answer in answers if answer in _P2P]
            if known:
                found.append((low, high, _P2P[max(known)]))
        return tuple(found)


def _wires(
    nvml: _Nvml, handles: Sequence[Any], gpus: Sequence[Gpu], lanes: Sequence[_Lanes]
) -> tuple[Wire, ...]:
    """Return the lanes of every pair: cables between them, else what both have to switches."""
    wires = []
    for low, high in combinations(range(len(gpus)), 2):
        count = min(lanes[low].to[gpus[high].bus_id], lanes[high].to[gpus[low].bus_id])
        switched = min(lanes[low].to_switch.total(), lanes[high].to_switch.total())
        if not count and switched and nvml.reach_by_nvlink(handles[low], handles[high]):
            count = switched
        if count:
            wires.append(Wire(low, high, count))
    return tuple(wires)


def _switches(lanes: Sequence[_Lanes]) -> tuple[NvSwitch, ...]:
    names = sorted({name for own in lanes for name in own.to_switch} - {_HIDDEN})
    return tuple(NvSwitch(name, tuple(own.to_switch[name] for own in lanes)) for name in names)


def _self_links(gpus: Sequence[Gpu], lanes: Sequence[_Lanes]) -> tuple[tuple[int, int], ...]:
    counts = [own.to[gpu.bus_id] if gpu.bus_id else 0 for gpu, own in zip(gpus, lanes, strict=True)]
    return tuple((at, count) for at, count in enumerate(counts) if count)


def _notes(gpus: Sequence[Gpu], lanes: Sequence[_Lanes]) -> list[str]:
    known = {gpu.bus_id for gpu in gpus}
    notes = []
    for gpu, own in zip(gpus, lanes, strict=True):
        away = sum(count for name, count in own.to.items() if name not in known)
        if away:
            notes.append(f"{gpu.name}: NVLinks to devices that are hidden here: {away}")
        if own.active and own.inactive:
            total = own.active + own.inactive
            notes.append(f"{gpu.name}: NVLinks that are down: {own.inactive} of {total}")
    return notes
