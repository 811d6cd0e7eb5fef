"""What the device executor asks of a device's runtime: few calls, so that others can stand in.

`cuda.py` has them on cupy. Addresses, streams and events are integers, as the runtime has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device, as its ranks tell each other.

    Attributes
    ----------
    index : int
        As this process sees it.
    name, uuid, pci_bus_id : str
        As the driver gives them; `uuid` tells a MIG slice from its neighbours.
    capability : tuple of int
        Compute capability, major and minor.
    multiprocessors : int
        How many; each runs thread blocks of its own.
    total_bytes : int
        Of memory.
    driver, runtime : int
        Versions, as CUDA writes them: 13020 is 13.2.
    """

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    capability: tuple[int, int]
    multiprocessors: int
    total_bytes: int
    driver: int
    runtime: int


class DeviceApi(Protocol):
    """One device of this process. Every call makes it current; all raise `errors.DeviceError`."""

    info: DeviceInfo

    def free_bytes(self) -> int:
        """Return how much memory of the device is free."""
        ...

    def malloc(self, num_bytes: int) -> int:
        """Return the address of new device memory, aligned to 256 bytes at least."""
        ...

    def free(self, pointer: int) -> None:
        """Give back what `malloc` returned."""
        ...

    def host_alloc(self, num_bytes: int) -> tuple[int, int]:
        """Return new pinned host memory, zeroed: its address here and on the device."""
        ...

    def host_free(self, pointer: int) -> None:
        """Give back what `host_alloc` returned (the address here)."""
        ...

    def register_host(self, pointer: int, num_bytes: int) -> int:
        """Pin host memory of this process; return its address on the device."""
        ...

    def unregister_host(self, pointer: int) -> None:
        """Let go of memory that was pinned."""
        ...

    def export(self, pointer: int) -> bytes:
        """Return the handle by which another process opens memory of `malloc`."""
        ...

    def open(self, handle: bytes) -> int:
        """Return the address of another process's memory; raises where it is out of reach."""
        ...

    def close(self, pointer: int) -> None:
        """Let go of what `open` returned."""
        ...

    def can_reach(self, pci_bus_id: str) -> bool | None:
        """Whether the device at `pci_bus_id` is this one, or one that it can address directly.

        None for a device that this process does not see.
        """
        ...

    def enable_peer(self, pci_bus_id: str) -> None:
        """Let kernels on this device address memory of that one; harmless when done before."""
        ...

    def memset(self, pointer: int, value: int, num_bytes: int, stream: int) -> None:
        """Set bytes, in the order of `stream`."""
        ...

    def copy(self, dst: int, src: int, num_bytes: int, stream: int) -> None:
        """Copy bytes between any two memories, in the order of `stream`."""
        ...

    def new_stream(self, *, high_priority: bool = False) -> int:
        """Return a stream that does not wait for the default stream."""
        ...

    def free_stream(self, stream: int) -> None:
        """Let go of a stream of `new_stream`; what is in it goes on."""
        ...

    def synchronize(self, stream: int) -> None:
        """Return when everything in `stream` is through."""
        ...

    def is_capturing(self, stream: int) -> bool:
        """Whether a graph is being captured from `stream`."""
        ...

    def new_event(self) -> int:
        """Return an event without timing."""
        ...

    def free_event(self, event: int) -> None:
        """Destroy an event."""
        ...

    def record(self, event: int, stream: int) -> None:
        """Let `event` stand for what is in `stream` by now."""
        ...

    def is_through(self, event: int) -> bool:
        """Whether what `event` stands for is through; does not block."""
        ...

    def wait(self, stream: int, event: int) -> None:
        """Let `stream` go on only when what `event` stands for is through; does not block."""
        ...

    def most_blocks(self) -> int:
        """Return how many blocks of the kernel run on the device at a time."""
        ...

    def prepare(self, dtype: int) -> None:
        """Have the kernel for element type `dtype` compiled and loaded; `launch` does so too.

        Loading may wait for what runs on the device.
        """
        ...

    def launch(self, call: int, dtype: int, blocks: int, stream: int) -> None:
        """Run the kernel for element type `dtype` on the `DeviceCall` at host address `call`.

        The call's bytes are taken at once and may change when this returns.
        """
        ...
