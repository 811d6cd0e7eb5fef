"""Send and receive between two ranks, with a lane for each peer, direction and tag to wait for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import Work

from blinkrun import buffers
from blinkrun.communicator import Communicator
from blinkrun.errors import CollectiveTimeoutError, InvalidBufferError, MismatchError
from blinkrun.torch.distributed import streams
from blinkrun.torch.distributed.work import Lane
from blinkrun.types import Rank

LOOK_S = 2e-5  # how soon, at first, a receive from any rank looks again
LOOK_LATER_S = 1e-3  # and how often after a while
ANY = -1


class Messages:
    """Messages of one rank of a group.

    Messages of one tag between two ranks arrive in the order in which they were sent. What a
    script starts and goes on from (``isend``, ``irecv``) is carried out by threads: a send since it
    may find no room in shared memory, a receive since a sender may wait for it. Tensors on devices
    go through memory of the CPU, and what their stream has before is waited for.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._lanes: dict[tuple[str, Rank, int], Lane] = {}
        self._own: dict[int, queue.SimpleQueue[torch.Tensor]] = {}  # by tag: sent to this rank
        self._lock = threading.Lock()

    def send(self, tensor: torch.Tensor, dst: Rank, tag: int, *, at_once: bool) -> Work:
        """Start to send `tensor`; `at_once` if the caller waits for it anyway."""
        self._check_peer("send", dst)
        on_device = buffers.device_of(tensor) is not None
        work = streams.to_host(tensor) if on_device else tensor.detach().contiguous()

        def body() -> None:
            if dst == self._communicator.rank:
                self._mailbox(tag).put(work.clone())
            else:
                self._communicator.send(_bytes(work), dst, tag)

        # One lane for all tags: the receiver sets aside what it does not want yet.
        return self._start(("to", dst, 0), body, tensor, at_once=at_once)

    def recv(self, tensor: torch.Tensor, src: Rank, tag: int, *, at_once: bool) -> Work:
        """Start to receive into `tensor`."""
        self._check_peer("recv", src)
        target, put = _landing(tensor)

        def body() -> Rank:
            self._receive(target, src, tag)
            put(target)
            return src

        return self._start(("from", src, tag), body, tensor, at_once=at_once)

    def recv_any(self, tensor: torch.Tensor, tag: int, *, at_once: bool) -> Work:
        """Start to receive into `tensor` what comes first, from any other rank."""
        target, put = _landing(tensor)

        def body() -> Rank:
            src = self._first_sender(tag)
            self._receive(target, src, tag)
            put(target)
            return src

        return self._start(("from", ANY, tag), body, tensor, at_once=at_once)

    def lanes(self) -> list[Lane]:
        """Return what carries messages out."""
        with self._lock:
            return list(self._lanes.values())

    def _receive(self, tensor: torch.Tensor, src: Rank, tag: int) -> None:
        target = tensor.detach()
        work = target
        if not target.is_contiguous():
            work = torch.empty_like(target, memory_format=torch.contiguous_format)
        if src == self._communicator.rank:
            self._take_own(work, tag)
        else:
            self._communicator.recv(_bytes(work), src, tag)
        if work is not target:
            target.copy_(work)

    def _take_own(self, work: torch.Tensor, tag: int) -> None:
        """Take a message that this rank has sent to itself."""
        timeout_s = self._communicator.executor.timeout_s
        try:
            message = self._mailbox(tag).get(timeout=timeout_s)
        except queue.Empty:
            rank = self._communicator.rank
            raise CollectiveTimeoutError(
                f"rank {rank} received nothing from itself within {timeout_s:g} s",
                (rank,),
                timeout_s,
            ) from None
        if message.nbytes != work.nbytes:
            raise MismatchError(
                f"recv: the message has {message.nbytes} bytes, the tensor {work.nbytes}"
            )
        _line(work).copy_(_line(message))

    def _first_sender(self, tag: int) -> Rank:
        """Return the rank whose message with this tag is there first."""
        communicator = self._communicator
        timeout_s = communicator.executor.timeout_s
        others = [rank for rank in range(communicator.size) if rank != communicator.rank]
        deadline = time.monotonic() + timeout_s
        pause_s = LOOK_S
        while time.monotonic() < deadline:
            for src in others:
                if communicator.arrived(src, tag):
                    return src
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LOOK_LATER_S)
        raise CollectiveTimeoutError(
            f"rank {communicator.rank} received nothing from any rank within {timeout_s:g} s",
            others,
            timeout_s,
        )

    def _mailbox(self, tag: int) -> queue.SimpleQueue[torch.Tensor]:
        with self._lock:
            return self._own.setdefault(tag, queue.SimpleQueue())

    def _start(
        self,
        key: tuple[str, Rank, int],
        body: Callable[[], Any],
        tensor: torch.Tensor,
        *,
        at_once: bool,
    ) -> Work:
        way, peer, tag = key
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(f"blinkrun-{way}-{peer}-{tag}")
        start = lane.call if at_once else lane.submit
        return start(body, [tensor], f"a message {way} rank {peer}")

    def _check_peer(self, what: str, peer: Rank) -> None:
        if not 0 <= peer < self._communicator.size:
            raise InvalidBufferError(
                f"{what}: rank {peer} is none of the ranks 0 to {self._communicator.size - 1}"
            )


def _landing(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[torch.Tensor], None]]:
    """Return memory of the CPU to receive into, and what brings it from there into `tensor`."""
    if buffers.device_of(tensor) is None:
        return tensor, _nothing
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), streams.arrival(tensor)


def _nothing(tensor: torch.Tensor) -> None:
    """Leave what has been received where it belongs."""


def _line(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a packed tensor as a line of bytes."""
    return tensor.reshape(-1).view(torch.uint8)


def _bytes(tensor: torch.Tensor) -> Any:
    """Return the memory of a packed tensor as numpy bytes."""
    return _line(tensor).numpy()
