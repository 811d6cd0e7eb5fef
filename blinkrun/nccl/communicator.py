"""The communicator of NCCL, over one of ours."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from blinkrun import env
from blinkrun.buffers import View
from blinkrun.errors import BlinkrunError
from blinkrun.nccl import calls, group
from blinkrun.nccl.calls import (
    Call,
    Place,
    check_aligned,
    check_count,
    check_device_can,
    check_pointer,
    check_rank,
    place_of,
)
from blinkrun.nccl.constants import (
    NCCL_SPLIT_NOCOLOR,
    NCCL_SUM,
    NCCL_UNIQUE_ID_BYTES,
    element_type,
    operation,
)
from blinkrun.nccl.status import NcclError, Status, refused, translate
from blinkrun.nccl.unique_id import check_host
from blinkrun.types import Collective, DType

if TYPE_CHECKING:
    from blinkrun.comm.base import ControlPlane
    from blinkrun.communicator import Communicator
    from blinkrun.nccl.group import Work
    from blinkrun.types import Rank

_numbers = itertools.count(1)


class NcclCommunicator:
    """One rank of a communicator; all ranks of it make one each, in any process of this host.

    Returns when all have: within the timeout (BLINKRUN_TIMEOUT_S, else 600 s), which also ends
    every call that waits for a rank. Between groupStart and groupEnd it is made at groupEnd, so
    that one thread can make several.

    Parameters
    ----------
    ndev : int
        Number of ranks.
    commId : tuple of int
        What `get_unique_id` returned to one of them. An id is for one communicator.
    rank : int
        Number of this rank, 0 to ndev - 1.

    Raises
    ------
    NcclError
        Invalid argument, or invalid usage for an id of another host, at once; remote error if
        other ranks do not come, system error if they disagree or cannot share memory.

    Notes
    -----
    In all calls counts are in elements. Buffers are addresses: of a CUDA device, where the
    collective is put into `stream` and returns at once; or of this process's memory, where calls
    are done when they return and `stream` is 0 or None. Wrong numbers raise an NcclError (invalid
    argument) and nothing moves. Ranks that call different things all get one (invalid usage).
    When a rank is gone, the calls that wait for it raise one (remote error), on all ranks; what
    ends badly on a device is raised by the next call or by `check_async_error`.
    """

    def __init__(self, ndev: int, commId: Sequence[int], rank: int) -> None:
        if ndev < 1:
            raise refused(Status.INVALID_ARGUMENT, f"ndev is {ndev}, need at least 1")
        secret = _secret(commId)
        check_rank(rank, ndev, "rank")
        self._set_up(rank, ndev, device=rank)

        def connect() -> ControlPlane:
            from blinkrun.comm.sockets import SocketControl  # noqa: PLC0415

            return SocketControl(secret, rank=rank, size=ndev, timeout_s=env.timeout_s())

        group.submit(_Start(self, lambda: self._assemble(connect())))

    def _set_up(self, rank: Rank, size: int, *, device: int) -> None:
        self._rank = rank
        self._size = size
        self._device = device
        self._number = next(_numbers)
        self._communicator: Communicator | None = None
        self._error: NcclError | None = None
        self._leave: Callable[[], object] = _nothing

    @staticmethod
    def initAll(devices: int | list[int]) -> list[NcclCommunicator]:
        """Return the communicators of ranks that all belong to this process.

        Their calls must be made within groups, or by a thread for each.

        Parameters
        ----------
        devices : int or list of int
            How many, or their devices: for `device_id` only, since buffers say where they are.
        """
        if isinstance(devices, int):
            devices = list(range(devices))
        elif not isinstance(devices, list):
            raise ValueError('"devices" should be an int or a list of int.')
        if not devices:
            raise refused(Status.INVALID_ARGUMENT, "devices are none, need at least 1")
        if len(set(devices)) < len(devices):
            raise refused(Status.INVALID_USAGE, f"devices {devices}: one comes twice")
        from blinkrun.comm.threads import thread_controls  # noqa: PLC0415

        controls = thread_controls(len(devices), env.timeout_s())
        made = []
        with group.outside():
            for control, device in zip(controls, devices, strict=True):
                comm = NcclCommunicator.__new__(NcclCommunicator)
                comm._set_up(control.rank, control.size, device=device)
                group.submit(_Start(comm, _assembling(comm, control)))
                made.append(comm)
        return made

    # ---- who -----------------------------------------------------------------------------------

    @property
    def comm(self) -> int:
        """A number that no other communicator of this process has; 0 when this one has ended."""
        return 0 if self._communicator is None else self._number

    def rank_id(self) -> int:
        """Return the number of this rank."""
        self._ready()
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        self._ready()
        return self._size

    def device_id(self) -> int:
        """Return the device of the first call on one, else that given to `initAll`, or the rank."""
        joined = self._ready().device_index
        return self._device if joined is None else joined

    # ---- collectives ---------------------------------------------------------------------------

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int | None
    ) -> None:
        """Reduce `count` elements of all ranks into `recvbuf` of all; in place if they are one."""
        self._call(Collective.ALLREDUCE, sendbuf, recvbuf, count, datatype, stream, op=op)

    def reduce(
        self,
        sendbuf: int,
        recvbuf: int,
        count: int,
        datatype: int,
        op: int,
        root: int,
        stream: int | None,
    ) -> None:
        """Reduce into `recvbuf` of `root`; other ranks' `recvbuf` is not looked at."""
        self._call(Collective.REDUCE, sendbuf, recvbuf, count, datatype, stream, op=op, root=root)

    def broadcast(
        self,
        sendbuff: int,
        recvbuff: int,
        count: int,
        datatype: int,
        root: int,
        stream: int | None,
    ) -> None:
        """Copy `sendbuff` of `root` to `recvbuff` of all ranks, its own among them."""
        self._call(Collective.BROADCAST, sendbuff, recvbuff, count, datatype, stream, root=root)

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int | None) -> None:
        """Copy `buff` of `root` to that of all ranks."""
        self._call(Collective.BROADCAST, buff, buff, count, datatype, stream, root=root)

    def allGather(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int | None
    ) -> None:
        """Join `count` elements of each rank in `recvbuf` of all, by rank.

        In place: `sendbuf` is this rank's place in `recvbuf`.
        """
        self._call(Collective.ALLGATHER, sendbuf, recvbuf, count, datatype, stream)

    def reduceScatter(
        self,
        sendbuf: int,
        recvbuf: int,
        recvcount: int,
        datatype: int,
        op: int,
        stream: int | None,
    ) -> None:
        """Reduce ``size * recvcount`` elements; rank i takes the i-th `recvcount` of them.

        In place: `recvbuf` is this rank's place in `sendbuf`.
        """
        self._call(Collective.REDUCESCATTER, sendbuf, recvbuf, recvcount, datatype, stream, op=op)

    # ---- point to point ------------------------------------------------------------------------

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int | None) -> None:
        """Send to rank `peer`, which must `recv` as much.

        Up to 64 KiB are sent when they lie in the ring between the two ranks, more when the peer
        has taken them. Sends and receives of a group do not wait for each other.
        """
        self._transfer(True, sendbuf, count, datatype, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int | None) -> None:
        """Receive what rank `peer` sends; messages of one peer come in their order."""
        self._transfer(False, recvbuf, count, datatype, peer, stream)

    # ---- beginnings and ends -------------------------------------------------------------------

    def commSplit(self, color: int, key: int) -> NcclCommunicator | None:
        """Return a communicator of the ranks that give the same `color`; all ranks must call it.

        Parameters
        ----------
        color : int
            0 or more, or NCCL_SPLIT_NOCOLOR: this rank joins none, and gets None.
        key : int
            Ranks are numbered by it, and by their number here where it is equal.
        """
        parent = self._ready()
        if color < 0 and color != NCCL_SPLIT_NOCOLOR:
            raise refused(
                Status.INVALID_ARGUMENT, f"color is {color}, need 0 or more, or NCCL_SPLIT_NOCOLOR"
            )
        made = None
        if color >= 0:
            made = NcclCommunicator.__new__(NcclCommunicator)
            made._set_up(0, 1, device=self._device)

        def split() -> None:
            said = parent.allgather(np.array([color, key], np.int64)).reshape(-1, 2)
            if made is None:
                return
            same = [rank for rank in range(parent.size) if said[rank, 0] == color]
            ranks = sorted(same, key=lambda rank: (said[rank, 1], rank))
            made._rank, made._size = ranks.index(parent.rank), len(ranks)
            control = parent.control.sub(ranks, timeout_s=parent.executor.timeout_s)
            made._assemble(control, sharing=parent.size)

        group.submit(_Start(self, split))
        return made

    def check_async_error(self) -> None:
        """Raise what has gone wrong with this communicator, or with another rank of it.

        Raises
        ------
        NcclError
            That of an earlier call after which nothing works any more; remote error if a rank has
            died or the communicator was aborted.
        """
        if self._error is not None:
            raise self._error
        communicator = self._ready()
        if communicator.devices is not None:
            self._carry_out(lambda found: found.check_devices())
        native = communicator.executor.group
        if native.aborted():
            raise refused(Status.REMOTE_ERROR, "another rank has aborted this communicator")
        died = [rank for rank in native.gone() if not native.has_left(rank)]
        if died:
            raise refused(
                Status.REMOTE_ERROR,
                f"rank{'s' * (len(died) > 1)} {', '.join(map(str, died))} died",
            )

    def abort(self) -> None:
        """End the calls of all ranks with a remote error, and this communicator."""
        communicator = self._communicator
        if communicator is not None and not communicator.is_closed:
            communicator.executor.group.abort(f"rank {self._rank} aborted the communicator")
        self.destroy()

    def destroy(self) -> None:
        """Leave; ranks that still wait for this one get a remote error. Twice is harmless."""
        self._communicator = None
        self._leave()

    # ---- inside --------------------------------------------------------------------------------

    def _ready(self) -> Communicator:
        if self._communicator is None:
            raise refused(
                Status.INVALID_ARGUMENT,
                "this communicator was destroyed or aborted, or its group has not ended",
            )
        return self._communicator

    def _assemble(self, control: ControlPlane, *, sharing: int = 0) -> None:
        from blinkrun.assembly import assemble  # noqa: PLC0415

        try:
            communicator = assemble(control, timeout_s=env.timeout_s(), sharing=sharing)
        except BaseException:
            control.abort(1)
            raise
        communicator.at_close(control.finalize)
        self._communicator = communicator
        self._leave = weakref.finalize(self, communicator.close)

    def _call(
        self,
        collective: Collective,
        send: int,
        recv: int,
        count: int,
        datatype: int,
        stream: int | None,
        *,
        op: int = NCCL_SUM,
        root: int = 0,
    ) -> None:
        joined = self._ready().device_index
        check_rank(root, self._size, "root")
        at_root = self._rank == root
        used = []
        if collective is not Collective.BROADCAST or at_root:
            used.append(check_pointer(send, count, "sendbuf"))
        if collective is not Collective.REDUCE or at_root:
            used.append(check_pointer(recv, count, "recvbuf"))
        place = place_of(used if check_count(count) else (), stream, joined)
        element, reduction = element_type(datatype), operation(op)
        if place.device is not None:
            check_device_can(collective, element, reduction)
            check_aligned(used, element)
        call = Call(collective, send, recv, count, element, reduction, root, place)
        group.submit(_Collective(self, call))

    def _transfer(
        self, sends: bool, buffer: int, count: int, datatype: int, peer: int, stream: int | None
    ) -> None:
        self._ready()
        check_rank(peer, self._size, "peer")
        num_bytes = check_count(count) * element_type(datatype).dtype.itemsize
        check_pointer(buffer, count, "sendbuf" if sends else "recvbuf")
        place = place_of((buffer,) if count else (), stream, None)
        if peer == self._rank and not group.is_open():
            raise refused(
                Status.INVALID_USAGE,
                f"rank {peer} is this rank; a send to itself needs its recv in the same group",
            )
        found = _bytes_at(buffer, num_bytes, place)
        group.submit(_Transfer(self, (sends, peer, found)))

    def _carry_out(self, act: Callable[[Communicator], None]) -> None:
        """Run `act`, whose errors are NCCL's; those that end everything are kept."""
        try:
            act(self._ready())
        except BlinkrunError as err:
            error = translate(err)
            if error.status == Status.REMOTE_ERROR:
                self._error = error
            raise error from err


@dataclass(frozen=True, slots=True)
class _Collective:
    comm: NcclCommunicator
    call: Call

    @property
    def strand(self) -> Hashable:
        return "collectives", id(self.comm)

    def together(self, works: list[Work]) -> Callable[[], None]:
        in_order = [work.call for work in works if isinstance(work, _Collective)]

        def run() -> None:
            for call in in_order:
                self.comm._carry_out(partial(calls.run, call=call))

        return run


@dataclass(frozen=True, slots=True)
class _Transfer:
    comm: NcclCommunicator
    transfer: tuple[bool, int, View]

    @property
    def strand(self) -> Hashable:
        return "transfers", id(self.comm)

    def together(self, works: list[Work]) -> Callable[[], None]:
        transfers = [work.transfer for work in works if isinstance(work, _Transfer)]
        return lambda: self.comm._carry_out(lambda found: _exchange(found, transfers))


@dataclass(frozen=True, slots=True)
class _Start:
    comm: NcclCommunicator
    start: Callable[[], None]

    @property
    def strand(self) -> Hashable:
        return "start", id(self)

    def together(self, works: list[Work]) -> Callable[[], None]:
        def run() -> None:
            try:
                self.start()
            except BlinkrunError as err:
                raise translate(err) from err

        return run


def _exchange(communicator: Communicator, transfers: list[tuple[bool, int, View]]) -> None:
    me = communicator.rank
    own = [
        [found for sends, peer, found in transfers if peer == me and sends is way]
        for way in (True, False)
    ]
    sizes = [[found.nbytes for found in way] for way in own]
    if sizes[0] != sizes[1]:
        raise refused(
            Status.INVALID_USAGE,
            f"rank {me} sends {sizes[0]} bytes to itself in this group, and receives {sizes[1]}",
        )
    for sent, received in zip(*own, strict=True):
        _move(communicator, sent, received)
    communicator.transfer_views(
        (sends, peer, 0, found) for sends, peer, found in transfers if peer != me
    )


def _move(communicator: Communicator, sent: View, received: View) -> None:
    """Copy what a rank sends to itself."""
    on_device = next((each for each in (received, sent) if each.device is not None), None)
    if on_device is None:
        ctypes.memmove(received.pointer, sent.pointer, sent.nbytes)
    elif sent.nbytes and on_device.device is not None:
        api = communicator.device_api(on_device.device)
        api.copy(received.pointer, sent.pointer, sent.nbytes, on_device.stream)


def _bytes_at(pointer: int, num_bytes: int, place: Place) -> View:
    shape = (num_bytes,)
    return View(pointer, num_bytes, shape, DType.UINT8, True, None, place.device, place.stream)


def _assembling(comm: NcclCommunicator, control: ControlPlane) -> Callable[[], None]:
    return lambda: comm._assemble(control)


def _secret(numbers: Sequence[int]) -> bytes:
    try:
        secret = bytes(each % 256 for each in numbers)
    except TypeError:
        secret = b""
    if len(secret) != NCCL_UNIQUE_ID_BYTES:
        raise refused(
            Status.INVALID_ARGUMENT,
            f"commId has {len(secret)} numbers, need the {NCCL_UNIQUE_ID_BYTES} of get_unique_id()",
        )
    check_host(secret)
    return secret


def _nothing() -> None:
    """Stand for leaving what was never joined."""
