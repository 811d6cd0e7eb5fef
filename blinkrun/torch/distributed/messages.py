"""Send and receive between two ranks, with a lane for each peer and direction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import Work

from blinkrun.communicator import Communicator
from blinkrun.errors import InvalidBufferError
from blinkrun.torch.distributed.work import Lane
from blinkrun.types import Rank

SMALL_BYTES = 64 << 10  # a message that a send leaves in shared memory without waiting


class Messages:
    """Messages of one rank of a group.

    Sends to a peer are carried out in the order of the calls, and so are receives from it.
    Messages are matched by tag.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._lanes: dict[tuple[str, Rank], Lane] = {}
        self._lock = threading.Lock()

    def send(self, tensor: torch.Tensor, dst: Rank, tag: int, *, at_once: bool) -> Work:
        """Start to send `tensor`; `at_once` if the caller waits for it anyway."""
        self._check_peer("send", dst)
        work = tensor.detach().contiguous()
        num_bytes = work.numel() * work.element_size()

        def body() -> None:
            self._communicator.send(_bytes(work), dst, tag)

        at_once = at_once or num_bytes <= SMALL_BYTES
        return self._start("to", dst, body, tensor, at_once=at_once)

    def recv(self, tensor: torch.Tensor, src: Rank, tag: int, *, at_once: bool) -> Work:
        """Start to receive into `tensor`."""
        self._check_peer("recv", src)

        def body() -> Rank:
            self._into(tensor, lambda line: self._communicator.recv(line, src, tag))
            return src

        return self._start("from", src, body, tensor, at_once=at_once)

    def recv_any(self, tensor: torch.Tensor, tag: int, *, at_once: bool) -> Work:
        """Start to receive into `tensor` what comes first, from any other rank."""

        def body() -> Rank:
            src = -1

            def take(line: Any) -> None:
                nonlocal src
                src = self._communicator.recv_any(line, tag)

            self._into(tensor, take)
            return src

        return self._start("from", -1, body, tensor, at_once=at_once)

    def close(self, error: BaseException) -> None:
        """Take no more messages; those under way are left to their threads."""
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close(error, timeout_s=0)

    def _into(self, tensor: torch.Tensor, take: Callable[[Any], None]) -> None:
        target = tensor.detach()
        if target.is_contiguous():
            take(_bytes(target))
            return
        work = torch.empty_like(target, memory_format=torch.contiguous_format)
        take(_bytes(work))
        target.copy_(work)

    def _start(
        self, way: str, peer: Rank, body: Callable[[], Any], tensor: torch.Tensor, *, at_once: bool
    ) -> Work:
        with self._lock:
            lane = self._lanes.get((way, peer))
            if lane is None:
                lane = self._lanes[way, peer] = Lane(f"blinkrun-{way}-{peer}")
        start = lane.call if at_once else lane.submit
        return start(body, [tensor], f"a message {way} rank {peer}")

    def _check_peer(self, what: str, peer: Rank) -> None:
        if not 0 <= peer < self._communicator.size:
            raise InvalidBufferError(
                f"{what}: rank {peer} is none of the ranks 0 to {self._communicator.size - 1}"
            )


def _bytes(tensor: torch.Tensor) -> Any:
    """Return the memory of a packed tensor as numpy bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
