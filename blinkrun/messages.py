"""Messages from one rank to another, beside the collectives.

They go through a ring in shared memory for every pair of ranks, made with the first message
(csrc/p2p.hpp), and need no agreement with collectives about their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blinkrun.buffers import View, raw_view
from blinkrun.devices import OnDevices
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.executors import native
from blinkrun.executors.base import Executor
from blinkrun.types import Rank

_TAGS = 2**63


@dataclass(frozen=True, slots=True)
class Send:
    """A message to rank `dst`: the bytes of `array`."""

    array: Any
    dst: Rank
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Recv:
    """A message from rank `src`, which fills `array`."""

    array: Any
    src: Rank
    tag: int = 0


class PointToPoint(OnDevices):
    """The part of a `Communicator` that takes two ranks only. Its methods block.

    Memory of a device goes through memory of the host: what is in its stream before is waited for.

    Messages of one tag between two ranks arrive in the order in which they were sent; receiving
    another tag first is allowed. Every thread may call, also while another is in a collective. A
    wait ends with a `CollectiveTimeoutError` if nothing of the message has moved for the timeout
    given to `init`, and with a `PeerLeftError` if the other rank is gone: for all ranks.
    """

    def send(self, array: Any, dst: Rank, tag: int = 0) -> None:
        """Send the bytes of `array` to rank `dst`, which must call `recv` with the same tag.

        Returns when `array` may be changed: at once if the message finds room in the ring
        (256 KiB, shared by what `dst` has not received yet), else while `dst` receives it.

        Parameters
        ----------
        array : array or tensor
            Contiguous, of any element type. The receiver's must have as many bytes.
        dst : Rank
            Another rank of this communicator.
        tag : int, default 0
            From -2**63 to 2**63 - 1.

        Raises
        ------
        UsageError
            If there is no such rank or tag, or `dst` is this rank.
        InvalidBufferError
            If `array` is no contiguous memory.
        """
        self.exchange([Send(array, dst, tag)])

    def recv(self, array: Any, src: Rank, tag: int = 0) -> None:
        """Fill `array` with the next message of rank `src` that has this tag; see `send`.

        Messages with other tags that come before it are kept until they are asked for.

        Raises
        ------
        UsageError, InvalidBufferError
            As for `send`.
        MismatchError
            If the message has another size. It is kept: a call with its size gets it.
        """
        self.exchange([Recv(array, src, tag)])

    def exchange(self, messages: Iterable[Send | Recv], *, may_spin: bool = True) -> None:
        """Carry out all `messages`, whichever of them can go on: no order of theirs can block.

        Parameters
        ----------
        messages : iterable of Send and Recv
            Those of one tag with one rank stay in their order.
        may_spin : bool, default True
            False for a thread that has no core for itself.
        """
        executor = self.executor
        parts = []
        for message in messages:
            sends = isinstance(message, Send)
            peer = message.dst if isinstance(message, Send) else message.src
            parts.append((sends, peer, message.tag, _checked(executor, message, peer)))
        self.transfer_views(parts, may_spin=may_spin)

    def transfer_views(
        self, parts: Iterable[tuple[bool, Rank, int, View]], *, may_spin: bool = True
    ) -> None:
        """Do as `exchange` with (sends, peer, tag, bytes), of which nothing is checked."""
        transfers = []
        staged = []  # bytes of devices on their way through memory of the host
        for sends, peer, tag, found in parts:
            pointer = found.pointer
            if found.device is not None:
                copy = self._staged(found, fill=sends)
                staged.append((sends, found, copy))
                pointer = copy.ctypes.data
            transfers.append((sends, peer, tag, pointer, found.nbytes))
        self.transfer(transfers, may_spin=may_spin)
        for sends, found, copy in staged:
            if not sends:
                self._land(found, copy)

    def _staged(self, found: View, *, fill: bool) -> npt.NDArray[np.uint8]:
        """Return memory of the host for a message of a device, with its bytes if `fill`."""
        copy = np.empty(found.nbytes, np.uint8)
        if fill and found.nbytes and found.device is not None:
            api = self.device_api(found.device)
            api.copy(copy.ctypes.data, found.pointer, found.nbytes, found.stream)
            api.synchronize(found.stream)
        return copy

    def _land(self, found: View, copy: npt.NDArray[np.uint8]) -> None:
        if found.nbytes and found.device is not None:
            api = self.device_api(found.device)
            api.copy(found.pointer, copy.ctypes.data, found.nbytes, found.stream)
            api.synchronize(found.stream)  # `copy` goes now

    def transfer(
        self, transfers: list[tuple[bool, Rank, int, int, int]], *, may_spin: bool = True
    ) -> None:
        """Do as `exchange` with (sends, peer, tag, address, bytes), of which nothing is checked."""
        executor = self.executor
        try:
            executor.group.transfer(transfers, may_spin)
        except native.Failure as failure:
            raise native.translate(failure, executor.timeout_s) from None

    def arrived(self, src: Rank, tag: int = 0) -> bool:
        """Whether a message of `src` with this tag is there: `recv` would not wait for it."""
        executor = self.executor
        _check_place(executor, src, tag, "recv")
        try:
            return executor.group.arrived(src, tag)
        except native.Failure as failure:
            raise native.translate(failure, executor.timeout_s) from None


def _checked(executor: Executor, message: Send | Recv, peer: Rank) -> View:
    what = "send" if isinstance(message, Send) else "recv"
    _check_place(executor, peer, message.tag, what)
    found = raw_view(message.array, f"{what}: array")
    if not found.writable and what == "recv":
        raise InvalidBufferError("recv: array is read-only")
    return found


def _check_place(executor: Executor, peer: Rank, tag: int, what: str) -> None:
    if peer == executor.rank:
        raise UsageError(f"{what}: rank {peer} is this rank; only another one can take part")
    if not 0 <= peer < executor.size:
        raise UsageError(f"{what}: rank {peer} is none of the ranks 0 to {executor.size - 1}")
    if not -_TAGS <= tag < _TAGS:
        raise UsageError(f"{what}: tag {tag} needs more than 64 bits")
