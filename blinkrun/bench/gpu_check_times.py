"""Times of `gpu_check`: allreduce beside a copy of the bytes that must move, and a plain sum."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from blinkrun import log
from blinkrun.bench.gpu_check_ranks import GpuRank
from blinkrun.executors.base import Request
from blinkrun.types import Collective, DType

SIZES = tuple(1024 * 4**step for step in range(11))  # bytes: 1 KiB to 1 GiB
LATENCY_BYTES = 4096
_BLOCKS = 3  # the median of so many counts
_BLOCK_S = 0.02
_MOST_CALLS = 100  # in flight: far fewer than a stream holds
_GRAPH_CALLS = 20


class Peer(Protocol):
    """What is compared with, and graphs; `gpu_check_cupy.CupyPeer`."""

    def add(self, pointers: Sequence[int], out: int, count: int) -> None:
        """Add float32 arrays, in the default stream."""

    def begin_capture(self, stream: int) -> None:
        """Let what comes in `stream` be kept as a graph."""

    def end_capture(self, stream: int) -> Any:
        """Return the graph, ready to be launched."""

    def launch_graph(self, graph: Any, stream: int) -> None:
        """Run a graph in `stream`."""


@dataclass(frozen=True, slots=True)
class Row:
    """Times of one size, in microseconds.

    Attributes
    ----------
    size_bytes : int
        Of one rank's buffer.
    allreduce_us : float
        From one call to the next, many in flight, in place in the arena.
    enqueue_us : float
        That a call holds up the thread that makes it.
    copy_us : float
        To copy as many bytes on the device as the allreduce must read, which is as many as it
        must write: ranks times size.
    sum_us : float
        cupy's sum of as many arrays into one of them; nothing is distributed. 0: it has none.
    """

    size_bytes: int
    allreduce_us: float
    enqueue_us: float
    copy_us: float
    sum_us: float


def time_sizes(me: GpuRank, sizes: Sequence[int], peer: Peer) -> list[dict[str, float]]:
    """Return rows of `Row`, the same on all ranks; every rank calls it."""
    largest = max(sizes)
    buffer = me.arena(largest)
    me.api.memset(buffer, 0, largest, me.stream)
    room = largest * me.size
    source, target = (me.user(room), me.user(room)) if me.rank == 0 else (0, 0)
    if me.rank == 0:
        me.api.memset(source, 0, room, me.stream)
    me.api.synchronize(me.stream)
    rows = []
    for size in sizes:
        request = me.request(Collective.ALLREDUCE, DType.FLOAT32, (buffer, buffer), size // 4)
        whole, enqueued = _time_calls(me, request)
        copy = sums = 0.0
        if me.rank == 0:
            copy = _time_alone(me, lambda: me.api.copy(target, source, size * me.size, me.stream))  # noqa: B023
            parts = [source + rank * size for rank in range(me.size)]
            sums = _time_sum(me, lambda: peer.add(parts, target, size // 4))  # noqa: B023
        me.barrier()
        rows.append(asdict(Row(size, whole, enqueued, copy, sums)))
    return [dict(row) for row in me.control.allgather(rows)[0]]


def time_graph(me: GpuRank, peer: Peer) -> float:
    """Return the time of one allreduce of `LATENCY_BYTES` in a graph of many, in microseconds."""
    buffer = me.arena(LATENCY_BYTES)
    me.api.memset(buffer, 0, LATENCY_BYTES, me.stream)
    count = LATENCY_BYTES // 4
    request = me.request(Collective.ALLREDUCE, DType.FLOAT32, (buffer, buffer), count)
    me.executor.run(request)
    me.executor.synchronize(me.stream)
    me.barrier()
    peer.begin_capture(me.stream)
    for _ in range(_GRAPH_CALLS):
        me.executor.run(request)
    graph = peer.end_capture(me.stream)

    def replay() -> None:
        peer.launch_graph(graph, me.stream)

    return _time_together(me, replay, 10)[0] / _GRAPH_CALLS


def _time_calls(me: GpuRank, request: Request) -> tuple[float, float]:
    def call() -> None:
        me.executor.run(request)

    first, _ = _time_together(me, call, 2)
    num = int(min(max(_BLOCK_S * 1e6 / max(first, 0.1), 3), _MOST_CALLS))
    return _time_together(me, call, max(me.control.allgather(num)))


def _time_together(me: GpuRank, call: Callable[[], None], num: int) -> tuple[float, float]:
    """Return the time of one of `num` calls, of the slowest rank, and until they are enqueued."""
    whole, enqueued = [], []
    for _ in range(_BLOCKS):
        me.barrier()
        begin = time.perf_counter()
        for _ in range(num):
            call()
        enqueued.append(time.perf_counter() - begin)
        me.api.synchronize(me.stream)
        whole.append(max(me.control.allgather(time.perf_counter() - begin)))
    me.executor.check()
    return statistics.median(whole) / num * 1e6, statistics.median(enqueued) / num * 1e6


def _time_sum(me: GpuRank, call: Callable[[], None]) -> float:
    try:
        return _time_alone(me, call, stream=0)
    except Exception as err:  # cupy compiles its kernels with CUDA's headers, which may be missing
        log.say(f"no sums by cupy: {' '.join(f'{err}'.split())[:200]}", me.rank)
        return 0.0


def _time_alone(me: GpuRank, call: Callable[[], None], stream: int | None = None) -> float:
    """Return the time of one call on this rank, the others at rest, in microseconds."""
    where = me.stream if stream is None else stream

    def block(num: int) -> float:
        begin = time.perf_counter()
        for _ in range(num):
            call()
        me.api.synchronize(where)
        return (time.perf_counter() - begin) / num

    block(1)
    num = int(min(max(_BLOCK_S / max(block(1), 1e-7), 3), _MOST_CALLS))
    return statistics.median(block(num) for _ in range(_BLOCKS)) * 1e6
