"""A process set's communicator as the engine uses it: calls by address, buffers in the arena."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinkrun.engine.arithmetic import array_at
from blinkrun.executors.base import Request as Call
from blinkrun.types import Collective, DType, Op

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blinkrun.communicator import Communicator
    from blinkrun.engine.devices import Lane

SMALLEST_BUFFER = 64 << 10
_SCALES = (1.0, 1.0)


class Transfer:
    """Moves bytes among the ranks of one process set, in the calling thread.

    Attributes
    ----------
    may_spin : bool
        Whether the thread that calls has a core for itself.
    lane : Lane or None
        The stream in whose order it moves them; None for memory of the host.
    """

    lane: Lane | None = None

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size
        self.may_spin = True
        self._buffer: npt.NDArray[np.uint8] | None = None

    def call(  # noqa: PLR0913
        self,
        collective: Collective,
        dtype: DType,
        source: int,
        target: int,
        count: int,
        *,
        op: int = Op.SUM,
        root: int = 0,
        scales: tuple[float, float] = _SCALES,
    ) -> None:
        """Run a collective on `count` elements of a block; addresses as the core takes them."""
        call = Call(collective, dtype, Op(op), root, source, target, count, *scales)
        self.communicator.run_request(call, may_spin=self.may_spin)

    def buffer(self, num_bytes: int) -> int:
        """Return the address of `num_bytes` in the arena, the same memory at every call."""
        if self._buffer is None or self._buffer.nbytes < num_bytes:
            self._buffer = None  # before the next is made, not beside it
            wanted = max(num_bytes, SMALLEST_BUFFER)
            self._buffer = self.communicator.empty_bytes(1 << (wanted - 1).bit_length())
        return int(self._buffer.ctypes.data)

    def pack(self, target: int, parts: list[tuple[int, int, int]]) -> None:
        """Copy parts (address, bytes, offset) to `target` + offset."""
        self.communicator.pack(target, parts)

    def unpack(self, source: int, parts: list[tuple[int, int, int]]) -> None:
        """Copy from `source` + offset to parts (address, bytes, offset)."""
        self.communicator.unpack(source, parts)

    def fill(self, pointer: int, count: int, dtype: DType, value: float) -> None:
        """Set `count` elements to one value."""
        array_at(pointer, count, dtype)[...] = value

    def check(self) -> None:
        """Raise what has gone wrong by now with what was enqueued; nothing is, on the host."""

    def trace(self, is_on: bool) -> None:
        """Have calls timed by channel, or not."""
        self.communicator.executor.group.set_traced(is_on)

    def close(self) -> None:
        """Give back the buffer."""
        self._buffer = None
        self.communicator = None  # type: ignore[assignment]


def row_elements(shape: tuple[int, ...]) -> int:
    """Return the elements of a row; a scalar is one row of one."""
    elements = 1
    for length in shape[1:]:
        elements *= length
    return elements


def rows(shape: tuple[int, ...]) -> int:
    """Return the rows of a tensor; a scalar is one row."""
    return shape[0] if shape else 1


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """Split `total` into `parts` sizes that differ by at most one, larger ones first.

    >>> split_evenly(10, 4)
    (3, 3, 2, 2)
    """
    small, larger = divmod(total, parts)
    return (small + 1,) * larger + (small,) * (parts - larger)
