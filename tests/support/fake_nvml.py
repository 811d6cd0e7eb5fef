"""A stand-in for the module ``pynvml``: GPUs with NVLinks, and questions that it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

GPU, NPU, SWITCH, UNKNOWN = 0, 1, 2, 0xFF


class NVMLError(Exception):
    """What every function raises that has no answer."""


class FakeNvml:
    """`links[gpu]` lists its NVLinks: a bus id, (bus id, kind of device), or None if it is down."""

    NVMLError = NVMLError

    def __init__(
        self,
        buses: tuple[str, ...],
        links: tuple[tuple[Any, ...], ...] = (),
        refused: tuple[str, ...] = (),
        levels: dict[tuple[int, int], int] | None = None,
        p2p: dict[tuple[int, int, int], int] | None = None,
        lost: tuple[int, ...] = (),
    ) -> None:
        self.buses = buses
        self.links = links or ((),) * len(buses)
        self.refused = refused
        self.levels = levels or {}
        self.p2p = p2p or {}
        self.lost = lost
        self.is_open = False

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "refused"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.buses)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index in self.lost:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, gpu: int) -> bytes:  # noqa: N802
        return b"Tesla V100-SXM2-16GB"  # bytes, as older releases of the module give

    def nvmlDeviceGetUUID(self, gpu: int) -> str:  # noqa: N802
        return f"GPU-{gpu}"

    def nvmlDeviceGetPciInfo(self, gpu: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=f"0000{self.buses[gpu]}".upper().encode())

    def nvmlDeviceGetCudaComputeCapability(self, gpu: int) -> tuple[int, int]:  # noqa: N802
        return 7, 0

    def nvmlDeviceGetFieldValues(self, gpu: int, fields: list[int]) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=25781)) for _ in fields]

    def _link(self, gpu: int, link: int) -> Any:
        if link >= len(self.links[gpu]):
            raise NVMLError("Invalid Argument")
        return self.links[gpu][link]

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:  # noqa: N802
        return 0 if self._link(gpu, link) is None else 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:  # noqa: N802
        end = self._link(gpu, link)
        return end[1] if isinstance(end, tuple) else GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> SimpleNamespace:  # noqa: N802
        end = self._link(gpu, link)
        return SimpleNamespace(busId=end[0] if isinstance(end, tuple) else end)

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:  # noqa: N802
        return self.levels.get((one, other), 50)

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, way: int) -> int:  # noqa: N802
        return self.p2p.get((one, other, way), 0)
