"""The executor for ranks with a device each: one kernel per call, on the caller's stream.

A call is enqueued and nothing on the host waits for it. What goes wrong is raised by the next call,
by whoever waits for it, and by `check`. Programs and their meaning are those of the CPU's executor;
`csrc/device_block.hpp` runs them. How the memory comes together is in `device_join`, how errors
come back in `device_state`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blinkrun.comm.base import ControlPlane
from blinkrun.comm.world import World
from blinkrun.errors import (
    DeviceError,
    ForkedError,
    InvalidBufferError,
    NotInitializedError,
    UsageError,
)
from blinkrun.executors.base import Executor, Request
from blinkrun.executors.device_api import DeviceApi
from blinkrun.executors.device_call import CALL, Prepared, prepare
from blinkrun.executors.device_heap import DeviceMemory
from blinkrun.executors.device_job import DeviceJob, wait_for
from blinkrun.executors.device_memory import Holdings, sweep
from blinkrun.executors.device_programs import Loaded, call_blocks
from blinkrun.executors.device_setup import MakePlan, Setup, Wishes
from blinkrun.planner.plan import Plan
from blinkrun.types import DType, Rank

if TYPE_CHECKING:
    from blinkrun.planner.hosts_plan import HostsPlan

SCRATCH_BYTES = 64 << 20  # for slots: those of all channels and pieces of a staged program

__all__ = ["DeviceExecutor", "DeviceJob"]

MOST_KNOWN = 4096  # calls that are kept prepared
_forks = 0  # that lie between this process and the one that loaded this module


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - calls read it; to ask for the process's number takes longer
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class DeviceExecutor:
    """One rank's part in the group of devices; every rank of `control` must make one.

    Parameters
    ----------
    control : ControlPlane
        How the ranks find each other; not used afterwards.
    world : World
        Where they are.
    host : Executor
        Of the same ranks: what they share on the host. It outlives this one.
    api : DeviceApi
        This rank's device.
    make_plan : callable
        ``make_plan(infos, reach)`` returns the plan for the devices of the ranks; called on the
        first rank only, which tells the others.
    timeout_s : float
        Longest wait of a kernel for other ranks, in seconds.
    arena_bytes : int, optional
        Of each rank's arena, for buckets. Default: what BLINKRUN_DEVICE_ARENA_BYTES says, else a
        sixteenth of the device's memory. It does not grow.
    scratch_bytes : int, optional
        For the slots of staged programs.
    blocks : int, optional
        Thread blocks of a call, at most. Default: `BLOCKS`, or this rank's part of the device where
        several ranks share it: their kernels wait for each other and must run at the same time.
    names : sequence of Rank, optional
        Numbers of the ranks in messages.

    Attributes
    ----------
    rank, size : int
        Among all ranks.
    name : int
        Number of this rank in messages.
    plan : Plan or HostsPlan
        What calls run on.
    api : DeviceApi
        The device.
    index : int
        Its number in this process.
    stream : int
        The executor's own stream, of high priority, in which `submit` runs calls.

    Raises
    ------
    DeviceError
        If a call of the device's runtime fails; `DeviceMemoryError` if there is no room for the
        arena.
    LaunchError
        On the other ranks then.
    """

    def __init__(  # noqa: PLR0913
        self,
        control: ControlPlane,
        world: World,
        host: Executor,
        api: DeviceApi,
        *,
        make_plan: MakePlan,
        timeout_s: float,
        arena_bytes: int = 0,
        scratch_bytes: int = SCRATCH_BYTES,
        blocks: int = 0,
        names: Sequence[Rank] | None = None,
    ) -> None:
        self.rank = world.rank
        self.size = world.size
        self.api = api
        self.index = api.info.index
        self._lock = threading.Lock()
        self._keep: deque[tuple[int, Any]] = deque()
        self._call = ctypes.create_string_buffer(CALL.size)
        self._call_at = ctypes.addressof(self._call)
        self._known: dict[tuple[Any, ...], Prepared] = {}
        self._last_stream: int | None = None
        self._is_closed = False
        self._forks = _forks
        everyone = list(range(world.size)) if names is None else list(names)
        self.name = everyone[self.rank]
        sweep()  # what other groups could not give back yet
        holdings = Holdings(api)
        self._finalizer = weakref.finalize(self, holdings.release)

        try:
            setup = Setup(
                control,
                world,
                host,
                api,
                holdings=holdings,
                make_plan=make_plan,
                wishes=Wishes(arena_bytes, scratch_bytes, blocks, timeout_s),
                everyone=everyone,
            )
        except BaseException:
            self._finalizer()
            raise
        self._setup = setup
        self._timeout_ns = _nanoseconds(timeout_s)
        self.plan: Plan | HostsPlan = setup.plan
        self.stream = setup.stream
        self._after = holdings.after  # the last call, for the next one in another stream
        self._state = setup.state
        self._hosts = setup.hosts
        self._events = setup.events
        self._programs = setup.programs
        self._prepared = setup.prepared
        self._heap = setup.heap
        self._group = setup.group
        self._most_blocks = setup.most_blocks

    @property
    def timeout_s(self) -> float:
        """Longest wait of a kernel for other ranks, in seconds; once set, of the next calls."""
        return self._state.timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        self._state.timeout_s = seconds
        self._timeout_ns = _nanoseconds(seconds)

    # ---- calls ---------------------------------------------------------------------------------

    def run(self, request: Request) -> None:
        """Enqueue a call in the request's stream; returns at once, from any thread.

        Raises
        ------
        CollectiveError
            What an earlier call ended with.
        UsageError
            If a graph is captured and this is the first call of its kind.
        DeviceError
            If it cannot be launched.
        """
        self._refuse_in_child()
        with self._lock:
            self._enqueue(request, request.stream or 0)

    def prepared(self, request: Request) -> Prepared:
        """Return what `again` takes, of a call that `run` has made."""
        self._refuse_in_child()
        with self._lock:
            return self._prepared_call(request, 0)

    def again(self, call: Prepared, given: int, taken: int, keep: Any, stream: int) -> None:
        """Enqueue a call like one before, on other memory perhaps; as `run`, in less time.

        Parameters
        ----------
        call : Prepared
            Of `prepared`.
        given, taken : int
            Addresses of input and output.
        keep : object
            Lives until the call is through.
        stream : int
            In whose order it is.
        """
        self._refuse_in_child()
        with self._lock:
            self._check_open()
            self._state.check()
            self._launch(call, given, taken, keep, stream)

    def submit(self, request: Request) -> DeviceJob:
        """Enqueue a call in `stream`, after what is in the request's stream now.

        While the request's stream captures a graph the call is captured there.

        Raises
        ------
        CollectiveError, UsageError, DeviceError
            As of `run`.
        """
        self._refuse_in_child()
        api = self.api
        with self._lock:
            self._check_open()
            source = request.stream or 0
            if source != 0 and api.is_capturing(source):
                self._enqueue(request, source)
                return DeviceJob(api, self._events, None, self._wait)
            event = self._events.take()
            try:
                api.record(event, source)
                api.wait(self.stream, event)
                self._enqueue(request, self.stream)
                api.record(event, self.stream)
            except BaseException:
                self._events.give_back(event)
                raise
        return DeviceJob(api, self._events, event, self._wait)

    def check(self) -> None:
        """Raise what went wrong, if anything; see `DeviceState.check`."""
        self._state.check()

    def synchronize(self, stream: int) -> None:
        """Wait until everything in `stream` is through, then `check`."""
        self._refuse_in_child()
        self.api.synchronize(stream)
        self.check()

    def finish(self) -> None:
        """Wait until all calls are through but those that graphs replay, then `check`."""
        self._wait(self._after)  # calls run one after the other, in whichever streams

    def _wait(self, event: int) -> None:
        """Wait for what `event` stands for, then `check`.

        A signal's handler may end the wait; where a call is under way the job is aborted then: no
        rank may go on with a call that this one has left in the middle.
        """
        self._refuse_in_child()
        try:
            wait_for(lambda: self.api.is_through(event))
        except DeviceError:
            raise
        except BaseException:
            self._state.interrupted()
            raise
        self.check()

    def _refuse_in_child(self) -> None:
        """Raise in a process that was forked from the rank's: it shares the flags, and no device.

        Comes before any lock, which a thread that is not there may hold.
        """
        if _forks != self._forks:
            raise ForkedError(self.name)

    def _check_open(self) -> None:
        if self._is_closed:
            raise NotInitializedError("a collective on a device")

    def _enqueue(self, request: Request, stream: int) -> None:
        self._check_open()
        self._state.check()
        if request.device not in (-1, self.index):
            raise InvalidBufferError(
                f"rank {self.name}: the buffer is on device {request.device}, this"
                f" rank's calls are on device {self.index}"
            )
        call = self._prepared_call(request, stream)
        self._launch(call, request.input, request.output, request.keep, stream)

    def _launch(self, call: Prepared, given: int, taken: int, keep: Any, stream: int) -> None:
        api, state, hosts = self.api, self._state, self._hosts
        # CUDA captures nothing from the default stream, and need not be asked.
        captures = (stream != 0 or hosts is not None) and self._captures(stream)
        CALL.pack_into(
            self._call, 0, call.head, given, taken, call.middle, self._timeout_ns, call.tail
        )
        if not captures and self._comes_after_other(stream):
            api.wait(stream, self._after)
        if hosts is not None:
            hosts.submit(call.flat, call=call.desc)
        api.launch(self._call_at, call.dtype, call.blocks, stream)
        if captures:
            state.capturing()
            return
        state.launching()
        self._last_stream = stream
        api.record(self._after, stream)
        self._hold(keep)

    def _captures(self, stream: int) -> bool:
        """Whether a graph is being captured from `stream`; raises where none may be."""
        captures = self.api.is_capturing(stream)
        if captures and self._hosts is not None:
            self._hosts.refuse_capture()
        return captures

    def _comes_after_other(self, stream: int) -> bool:
        """Whether the last call may be in another stream than `stream`.

        One that was destroyed can come again under the same address, but for the default stream
        and the own one.
        """
        last = self._last_stream
        return last is not None and (last != stream or stream not in (0, self.stream))

    def _prepared_call(self, request: Request, stream: int) -> Prepared:
        """Return a call but for its addresses; loads its programs if that may be done now."""
        key = (
            request.collective,
            request.dtype,
            request.op,
            request.root,
            request.count,
            request.prescale,
            request.postscale,
        )
        call = self._known.get(key)
        if call is None:
            loaded = self._loaded(request, captures=self._captures(stream))
            call = prepare(request, loaded, group=self._group, most_blocks=self._most_blocks)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = call
        return call

    def _loaded(self, request: Request, *, captures: bool) -> Loaded:
        collective, dtype = request.collective, request.dtype
        found = self._programs.get(collective, request.root)
        if found is None or not self._prepared[dtype]:
            if captures:
                raise UsageError(
                    f"the first {collective.label} of {dtype.label} in a communicator cannot be"
                    " captured in a graph: make the same call once before the capture"
                )
            found = self._programs.load(collective, request.root)
            self._prepare(dtype)
        size = request.count * dtype.itemsize * call_blocks(collective, self.size)
        return next(each for each in found if size <= each.most_bytes)

    def _prepare(self, dtype: DType) -> None:
        """Have the kernel loaded, for which the runtime may wait for all that runs on the device.

        Ranks that share it as threads of one process wait for each other there. When the calls
        before are through here, all ranks have launched them, and they end by themselves.
        """
        if not self._prepared[dtype]:
            wait_for(lambda: self.api.is_through(self._after))
            self.api.prepare(dtype)
            self._prepared[dtype] = True

    def _hold(self, memory: Any) -> None:
        """Keep the memory of a call until it is through."""
        state, keep = self._state, self._keep
        if keep:
            through = state.through
            while keep and keep[0][0] <= through:
                keep.popleft()
        if memory:
            keep.append((state.launched, memory))

    # ---- memory --------------------------------------------------------------------------------

    def empty_bytes(self, num_bytes: int) -> DeviceMemory:
        """Return `num_bytes` of the device arena; they are given back when dropped. Not collective.

        Raises
        ------
        InvalidBufferError
            If the arena has no such room left.
        """
        if num_bytes < 0:
            raise InvalidBufferError(f"cannot make {num_bytes} bytes")
        if self._is_closed:
            raise NotInitializedError("memory of a device")
        pointer = self._heap.allocate(num_bytes)
        if pointer is None:
            raise self._setup.no_room(num_bytes)
        return DeviceMemory(pointer, num_bytes, self.index, self._heap.release)

    def contains(self, pointer: int) -> bool:
        """Whether `pointer` lies in the part of the arena that `empty_bytes` hands out."""
        return self._heap.start <= pointer < self._heap.stop

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave: wait for kernels under way, at most the timeout, and give all memory back.

        Not collective; idempotent. Memory that others may still use stays until they have left.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._finalizer()
        self._keep.clear()


def _nanoseconds(seconds: float) -> int:
    """Return as many nanoseconds, at most thirty years: kernels count in 63 bits.

    >>> _nanoseconds(1.5), _nanoseconds(float("inf"))
    (1500000000, 1000000000000000000)
    """
    return int(min(seconds, 1e9) * 1e9)
