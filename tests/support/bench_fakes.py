"""A library, a clock and a single rank for the benchmark's own tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blinkrun.bench.libraries import UserMemory
from blinkrun.bench.work import Buffers, Work


class Alone:
    """The control of a job of one rank."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        pass

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        return obj

    def allgather_object(self, obj: Any) -> list[Any]:
        return [obj]


class FakeClock:
    """Stands still but for what the fake libraries add to it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeLibrary:
    """Takes `durations_s` in turn for its calls, the last one for ever; over one rank it is right.

    `calls` records the names of all libraries that share it, in the order of their calls.
    """

    def __init__(
        self,
        name: str,
        clock: FakeClock,
        durations_s: list[float],
        calls: list[str] | None = None,
        refusal: str | None = None,
        spoil: Callable[[Buffers], None] | None = None,
    ) -> None:
        self.name = name
        self._clock = clock
        self._durations_s = list(durations_s)
        self._calls = [] if calls is None else calls
        self._refusal = refusal
        self._spoil = spoil
        self._memory = UserMemory()

    def refuses(self, work: Work) -> str | None:
        return self._refusal

    def make_buffers(self, work: Work) -> Buffers:
        return self._memory.buffers(work)

    def make_call(self, work: Work, buffers: Buffers) -> Callable[[], object]:
        def call() -> None:
            self._calls.append(self.name)
            more = len(self._durations_s) > 1
            self._clock.now_s += self._durations_s.pop(0) if more else self._durations_s[0]
            if buffers.recv is not buffers.send:
                buffers.recv[...] = buffers.send
            if self._spoil is not None:
                self._spoil(buffers)

        return call
