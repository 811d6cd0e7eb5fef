"""Calls on CUDA tensors: the stream of a process group, and what waits for it.

All that the process group asks of ``torch.cuda`` is here and in `blinkrun.buffers`. A call that is
waited for at once is put into the current stream. One with ``async_op=True`` is put into a stream
of the group's own, behind what is in the current one, and `DeviceWork.wait` lets the stream that is
current then go on after it; the host waits for neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from blinkrun import buffers
from blinkrun.errors import InvalidBufferError


class Side:
    """The own stream of a process group on one device; torch's operations take part in it."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device, priority=-1)

    def run(self, body: Callable[[], Any], tensors: Iterable[torch.Tensor]) -> Any:
        """Carry out `body` in this stream, after what is in the current one; return its end."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with inside(self._stream):
            body()
        for tensor in tensors:
            tensor.record_stream(self._stream)
        return self._stream.record_event()

    def follow(self, end: Any) -> None:
        """Let the current stream go on only after what `run` has returned."""
        torch.cuda.current_stream(self._device).wait_event(end)

    def future(self, results: list[torch.Tensor], end: Any) -> Any:
        """Return a future of what a call gives, complete for whoever waits in a stream.

        `end` is what `run` has returned; None for a call in the stream that is current now.
        """
        future: Any = torch.futures.Future(devices=[self._device])
        current = torch.cuda.current_stream(self._device)
        with inside(current if end is None else self._stream):
            future.set_result(results)
        return future

    def synchronize(self) -> None:
        """Wait until everything in this stream is through."""
        self._stream.synchronize()


class DeviceWork(Work):
    """A call in a stream.

    Parameters
    ----------
    side : Side
        Of the group, on the device of the call.
    end : object
        What `Side.run` returned; None for a call in the stream that was current.
    results : list of tensor
        What the call writes.
    """

    def __init__(self, side: Side, end: Any, results: list[torch.Tensor]) -> None:
        super().__init__()
        self._side = side
        self._end = end
        self._results = results

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current stream go on only after the call; the host does not wait."""
        del timeout
        if self._end is not None:
            self._side.follow(self._end)
        return True

    def synchronize(self) -> None:
        """Do as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the device is through with a call of the group's own stream."""
        return self._end is None or bool(self._end.query())

    def is_success(self) -> bool:
        """Whether the call is through; what went wrong is raised by the next one."""
        return self.is_completed()

    def exception(self) -> None:
        """Return None: what goes wrong on a device is raised by the next call."""

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that the call writes."""
        return self._results

    def source_rank(self) -> int:
        """Return -1: this is no message."""
        return -1

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future of the tensors, complete for whoever waits in a stream."""
        return self._side.future(self._results, self._end)


class Together(Work):
    """Several calls that are waited for as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them, each in its own way."""
        for work in self._works:
            if timeout is None:
                work.wait()
            else:
                work.wait(timeout)
        return True

    def synchronize(self) -> None:
        """Do as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether all are through."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all are through and went well."""
        return all(work.is_success() for work in self._works)

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that the calls write."""
        return [tensor for work in self._works for tensor in work.result()]


def place_of(tensors: Sequence[torch.Tensor], what: str) -> int | None:
    """Return the device that holds all `tensors`, None for the CPU.

    Raises
    ------
    InvalidBufferError
        If they are in several places.
    """
    if not tensors:
        return None
    place = buffers.device_of(tensors[0])
    for tensor in tensors[1:]:
        if buffers.device_of(tensor) != place:
            names = " and ".join(sorted({str(each.device) for each in tensors}))
            raise InvalidBufferError(f"{what}: tensors are on {names}; all must be on one device")
    return place


@contextlib.contextmanager
def inside(stream: Any) -> Iterator[None]:
    """Make `stream` and its device current.

    The device comes first: to put back a stream of the device that was current before, as
    ``torch.cuda.stream`` does, would make a context there if there is none, of every rank on GPU 0.
    """
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


def in_current(body: Callable[[], Any], index: int) -> Callable[[], Any]:
    """Return what carries out `body` in the stream that is current now, from whichever thread."""
    stream = torch.cuda.current_stream(torch.device("cuda", index))

    def act() -> Any:
        with inside(stream):
            return body()

    return act


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a packed copy on the CPU of a tensor on a device, in the order of its stream."""
    return tensor.detach().contiguous().cpu()


def arrival(tensor: torch.Tensor) -> Callable[[torch.Tensor], None]:
    """Return what puts values of the CPU into `tensor`, on a device, from whichever thread.

    They come after what is in the current stream now, and are there when it returns.
    """
    before = torch.cuda.current_stream(tensor.device).record_event()

    def put(values: torch.Tensor) -> None:
        before.synchronize()
        tensor.detach().copy_(values)
        torch.cuda.current_stream(tensor.device).synchronize()

    return put
