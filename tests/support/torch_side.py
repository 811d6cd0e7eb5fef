"""What a process group of torch.distributed asks of ``torch.cuda``, for tensors in disguise.

What torch computes runs on the host at once, so a call in a stream is waited for before it returns.
"""

from __future__ import annotations

from typing import Any

import torch

from blinkrun import devices
from blinkrun.torch.distributed import streams


class HostSide:
    """Stands for a stream of the group's own."""

    made = 0
    followed = 0

    def __init__(self, index: int) -> None:
        self.index = index

    def run(self, body: Any, tensors: Any) -> Any:
        HostSide.made += 1
        assert tensors
        body()
        return self

    def query(self) -> bool:
        return True

    def follow(self, end: Any) -> None:
        assert end is self
        HostSide.followed += 1

    def future(self, results: Any, end: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(results)
        return future

    def synchronize(self) -> None:
        pass


def install() -> None:
    """Let process groups do without ``torch.cuda``, until the process ends."""
    enqueue = devices.Devices.run

    def run(self: Any, request: Any) -> None:
        enqueue(self, request)
        self.synchronize()

    devices.Devices.run = run  # type: ignore[method-assign]
    streams.Side = HostSide  # type: ignore[assignment,misc]
    streams.to_host = lambda tensor: tensor.detach().contiguous().clone()
    streams.arrival = lambda tensor: tensor.detach().copy_
