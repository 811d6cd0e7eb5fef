"""Fake devices as a process has them: memory, streams and events, whichever ranks use them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from support import fake_memory, fake_streams
from support.fake_memory import REGIONS

CHIPS: dict[str, Chip] = {}
EVENTS: dict[int, fake_streams.Event] = {}
event_numbers = itertools.count(0x9000, 16)


@dataclass
class Fault:
    """Lets a call of the runtime fail: the `at`-th from now on, `times` times."""

    call: str
    rank: int | None
    device: int | None
    at: int
    times: int
    reason: str

    def hits(self, call: str, rank: int, device: int) -> bool:
        if call != self.call or self.rank not in (None, rank) or self.device not in (None, device):
            return False
        self.at -= 1
        return -self.times < self.at <= 0


class Chip:
    """One device as this process has it, whichever ranks use it."""

    def __init__(self, number: int, index: int, *, key: str, most_blocks: int) -> None:
        self.number, self.index, self.key = number, index, key
        self._most_blocks = most_blocks
        self.sticky = ""  # what has broken the device, as CUDA keeps it
        self.memory: set[int] = set()  # of malloc
        self.arrays: dict[int, bool] = {}  # of tests; whether the array still lives
        self.pinned: dict[int, int] = {}  # host address -> address on devices, of host_alloc
        self.registered: dict[int, int] = {}
        self.opened: dict[bytes, tuple[int, int]] = {}  # handle -> address, times
        self.streams: dict[int, fake_streams.Stream] = {}
        self.events: set[int] = set()
        self.default = fake_streams.Stream(self.failed, default=True)
        self._running = 0
        self._room = threading.Condition()
        self._sweeping = threading.Lock()
        CHIPS[self.key] = self

    def failed(self, err: Exception) -> None:
        """Keep the first error of work on a stream: all later calls raise it."""
        self.sticky = self.sticky or str(err)

    def stream(self, number: int) -> fake_streams.Stream | None:
        return self.default if number in (0, 1, 2) else self.streams.get(number)

    def all_streams(self) -> list[fake_streams.Stream]:
        return [self.default, *self.streams.values()]

    def idle(self) -> bool:
        return all(stream.idle() for stream in self.all_streams())

    def run(self, blocks: int, kernel: Callable[[], None]) -> None:
        """Run `kernel` when that many blocks have room on the device."""
        most = self._most_blocks
        with self._room:
            if not self._room.wait_for(lambda: self._running + blocks <= most, 60):
                raise fake_streams.StreamError(
                    f"no room for {blocks} blocks beside {self._running}"
                )
            self._running += blocks
        try:
            kernel()
        finally:
            with self._room:
                self._running -= blocks
                self._room.notify_all()

    def new_array_memory(self, num_bytes: int) -> int:
        with self._sweeping:  # those without an owner, once no work can touch them
            dead = [pointer for pointer, lives in list(self.arrays.items()) if not lives]
            for pointer in dead if dead and self.idle() else []:
                del self.arrays[pointer]
                fake_memory.give_back(REGIONS.at(pointer))
        pointer = fake_memory.new_memory(self.key, num_bytes)
        self.arrays[pointer] = True
        return pointer

    def held(self) -> list[str]:
        """Return what was taken and not given back, arrays of tests apart."""
        held = (
            ("memory", self.memory),
            ("pinned", self.pinned),
            ("registered", self.registered),
            ("opened", self.opened),
            ("streams", self.streams),
            ("events", self.events),
        )
        return [f"device {self.index}: {len(some)} {what}" for what, some in held if some]

    def taken_bytes(self) -> int:
        return sum(size_at(pointer) for pointer in (*self.memory, *self.arrays))


def size_at(pointer: int) -> int:
    """Return the size of the region that holds `pointer`."""
    region = REGIONS.holding(pointer)
    return 0 if region is None else region.stop - region.start
