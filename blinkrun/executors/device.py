"""The executor for ranks with a device each: one kernel per call, on the caller's stream.

A call is enqueued and nothing on the host waits for it. What goes wrong is raised by the next call,
by whoever waits for it, and by `check`. Programs and their meaning are those of the CPU's executor;
`csrc/device_block.hpp` runs them. How the memory comes together is in `device_join`, how errors
come back in `device_state`.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from blinkrun import env
from blinkrun.comm.base import ControlPlane
from blinkrun.comm.world import World
from blinkrun.errors import (
    InvalidBufferError,
    LaunchError,
    NotInitializedError,
    UsageError,
)
from blinkrun.executors import device_layout as layout
from blinkrun.executors.agreed import agreed_plan
from blinkrun.executors.base import Executor, Request
from blinkrun.executors.device_api import DeviceApi, DeviceInfo
from blinkrun.executors.device_heap import DeviceHeap, DeviceMemory
from blinkrun.executors.device_job import DeviceJob, Events
from blinkrun.executors.device_join import (
    Reach,
    arena_size,
    blocks_of,
    gather_cards,
    group_layout,
    make_areas,
    make_arenas,
    sharers,
    together,
)
from blinkrun.executors.device_memory import Finals, Holdings, sweep
from blinkrun.executors.device_programs import (
    DevicePrograms,
    Loaded,
    Lowered,
    call_blocks,
    desc_of,
    lowered_on_host,
)
from blinkrun.executors.device_state import DeviceState
from blinkrun.planner.plan import Plan
from blinkrun.types import Collective, DType, Rank

if TYPE_CHECKING:
    from blinkrun.executors.device_hosts import DeviceHosts
    from blinkrun.planner.hosts_plan import HostsPlan

SCRATCH_BYTES = 64 << 20  # for slots: those of all channels and pieces of a staged program
CHUNK_BYTES = 512 << 10
BLOCKS = 32  # of a rank that has its device for itself; the rest of it is for what trains

__all__ = ["DeviceExecutor", "DeviceJob"]

_ITEMSIZES = [dtype.itemsize for dtype in DType]

MakePlan = Callable[[Sequence[DeviceInfo], Reach], Plan]


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
    plan : Plan or HostsPlan
        What calls run on.
    api : DeviceApi
        The device.
    stream : int
        The executor's own stream, of high priority, in which `submit` runs calls.
    timeout_s : float
        Of the next call.

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
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._keep: deque[tuple[int, Any]] = deque()
        self._call = ctypes.create_string_buffer(layout.CALL.size)
        self._call_at = ctypes.addressof(self._call)
        self._prepared: set[int] = set()  # element types whose kernel is loaded
        self._last_stream: int | None = None
        self._is_closed = False
        self._everyone = list(range(world.size)) if names is None else list(names)
        self._local = world.local_ranks
        sweep()  # what other groups could not give back yet
        self._holdings = Holdings(api)
        self._finalizer = weakref.finalize(self, self._holdings.release)
        try:
            arena_bytes = together(control, lambda: env.size_bytes(env.DEVICE_ARENA, arena_bytes))[
                control.rank
            ]
            self._join(control, world, host, make_plan, arena_bytes, scratch_bytes, blocks)
        except BaseException:
            self._finalizer()
            raise

    # ---- joining -------------------------------------------------------------------------------

    def _join(  # noqa: PLR0913, PLR0917 - the constructor's
        self,
        control: ControlPlane,
        world: World,
        host: Executor,
        make_plan: MakePlan,
        arena_bytes: int,
        scratch_bytes: int,
        blocks: int,
    ) -> None:
        if world.local_size > layout.RANKS:
            raise LaunchError(
                f"{world.local_size} ranks on one host, {layout.RANKS} can have devices together"
            )
        api, index = self.api, world.local_rank
        cards = gather_cards(control, api, scratch_bytes=scratch_bytes, blocks=blocks)
        here = [cards[rank] for rank in self._local]
        scratch_bytes = min(card.scratch_bytes for card in cards)
        self._most_blocks = min(together(control, lambda: blocks_of(here, index, wanted=BLOCKS)))
        num_bytes = arena_size(
            arena_bytes,
            total=api.info.total_bytes,
            free=here[index].free_bytes,
            sharing=sharers(here, index),
            scratch_bytes=scratch_bytes,
        )
        name = self._everyone[self.rank]
        arenas = make_arenas(
            control, world, here, self._holdings, num_bytes=num_bytes, rank_name=name
        )
        infos = [card.info for card in here]
        lowered = self._lowered_by(
            control, world, host, infos, arenas.reach, make_plan, scratch_bytes
        )
        hosts = self._hosts
        needs_areas = not all(map(all, arenas.reach)) or hosts is not None or _is_staged(self.plan)
        rings_bytes = 0 if hosts is None else hosts.rings_bytes
        rings_at = layout.SCRATCH_AT + scratch_bytes
        area_bytes = rings_at + rings_bytes if needs_areas else 0
        areas = make_areas(control, self._local, self._holdings, host, area_bytes=area_bytes)
        self._heap = DeviceHeap(arenas.own + rings_at, arenas.own + arenas.num_bytes)
        self._holdings.finals = finals = Finals(host.group, areas.finals, index)
        together(control, lambda: self._make_own(host, finals, index))
        self._programs = DevicePrograms(
            self.rank,
            arenas.everywhere,
            lowered,
            blocks=self._most_blocks,
            has_areas=needs_areas,
            put=self._put,
        )
        # A kernel that is loaded while another rank's waits on the same device may wait for it.
        shared = any(sharers(here, at) > 1 for at in range(len(here)))
        first = list(DType) if shared else [DType.FLOAT32]

        def put() -> None:
            group = group_layout(arenas, areas, index)
            group.index, group.all = self.rank, self.size
            group.scratch_bytes, group.chunk_bytes = scratch_bytes, CHUNK_BYTES
            group.rings_at, group.rings_bytes = rings_at, rings_bytes
            group.host = self._host_memory
            self._group = self._put(bytes(group))
            for dtype in first:
                api.prepare(dtype)
                self._prepared.add(dtype)
            self._programs.load(Collective.ALLREDUCE, 0)
            if hosts is not None:
                hosts.start(self._state_memory, areas.own + rings_at, rings_bytes)

        together(control, put)
        self._state.watch()

    def _lowered_by(  # noqa: PLR0913, PLR0917 - the constructor's
        self,
        control: ControlPlane,
        world: World,
        host: Executor,
        infos: Sequence[DeviceInfo],
        reach: Reach,
        make_plan: MakePlan,
        scratch_bytes: int,
    ) -> Callable[[Collective, Rank], Lowered]:
        """Plan, on several hosts with what joins them, and return what makes programs of it."""
        self._hosts: DeviceHosts | None = None
        if world.cross_size == 1:
            plan = agreed_plan(control, lambda: make_plan(infos, reach))
            self.plan: Plan | HostsPlan = plan
            return partial(lowered_on_host, plan)
        from blinkrun.executors.device_hosts import DeviceHosts  # noqa: PLC0415 - few need it

        self._hosts = hosts = DeviceHosts(
            control,
            world,
            host,
            infos=infos,
            reach=reach,
            blocks=self._most_blocks,
            scratch_bytes=scratch_bytes,
        )
        self._holdings.first.append(hosts.close)
        self.plan = hosts.plan
        return hosts.lowered

    def _make_own(self, host: Executor, finals: Finals, index: int) -> None:
        """Make what no other rank uses: pinned memory, streams and events."""
        api, holdings = self.api, self._holdings
        here, self._host_memory = api.host_alloc(ctypes.sizeof(layout.Host))
        self._state_memory = here
        holdings.rest.append(lambda: api.host_free(here))
        self._state = holdings.state = DeviceState(
            host.group,
            here,
            finals,
            index=index,
            names=[self._everyone[rank] for rank in self._local],
            everyone=self._everyone,
            timeout_s=self.timeout_s,
            hosts=self._hosts,
        )
        self.stream = stream = api.new_stream(high_priority=True)
        holdings.rest.append(lambda: api.free_stream(stream))
        self._copies = copies = api.new_stream()
        holdings.rest.append(lambda: api.free_stream(copies))
        self._events = events = Events(api)
        holdings.rest.append(events.close)
        self._after = after = holdings.after = (
            events.take()
        )  # the last call, for the next one in another stream
        holdings.rest.append(lambda: events.give_back(after))

    def _put(self, data: bytes) -> int:
        """Return the address of a copy of `data` in the arena."""
        pointer = self._heap.allocate(len(data))
        if pointer is None:
            raise self._no_room(len(data))
        source = ctypes.create_string_buffer(data, len(data))
        self.api.copy(pointer, ctypes.addressof(source), len(data), self._copies)
        self.api.synchronize(self._copies)
        return pointer

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
        with self._lock:
            self._enqueue(request, request.stream or 0)

    def submit(self, request: Request) -> DeviceJob:
        """Enqueue a call in `stream`, after what is in the request's stream now.

        While the request's stream captures a graph the call is captured there.

        Raises
        ------
        CollectiveError, UsageError, DeviceError
            As of `run`.
        """
        api = self.api
        with self._lock:
            self._check_open()
            source = request.stream or 0
            if api.is_capturing(source):
                self._enqueue(request, source)
                return DeviceJob(api, self._events, None, self.check)
            event = self._events.take()
            try:
                api.record(event, source)
                api.wait(self.stream, event)
                self._enqueue(request, self.stream)
                api.record(event, self.stream)
            except BaseException:
                self._events.give_back(event)
                raise
        return DeviceJob(api, self._events, event, self.check)

    def check(self) -> None:
        """Raise what went wrong, if anything; see `DeviceState.check`."""
        self._state.check()

    def synchronize(self, stream: int) -> None:
        """Wait until everything in `stream` is through, then `check`."""
        self.api.synchronize(stream)
        self.check()

    def _check_open(self) -> None:
        if self._is_closed:
            raise NotInitializedError("a collective on a device")

    def _enqueue(self, request: Request, stream: int) -> None:
        self._check_open()
        api, state = self.api, self._state
        state.check()
        if request.device not in (-1, api.info.index):
            raise InvalidBufferError(
                f"rank {self._everyone[self.rank]}: the buffer is on device {request.device}, this"
                f" rank's calls are on device {api.info.index}"
            )
        captures = api.is_capturing(stream)
        if captures and self._hosts is not None:
            self._hosts.refuse_capture()
        loaded = self._loaded(request, captures=captures)
        dtype, count = request.dtype, request.count
        layout.CALL.pack_into(
            self._call,
            0,
            self._group,
            *loaded.addresses,
            request.input,
            request.output,
            count,
            loaded.eager_bytes,
            layout.hash_scales(request.prescale, request.postscale),
            request.prescale,
            request.postscale,
            int(self.timeout_s * 1e9),
            request.root,
            request.collective,
            dtype,
            request.op,
        )
        if not captures and self._last_stream not in (None, stream):
            api.wait(stream, self._after)
        blocks = loaded.blocks(count * _ITEMSIZES[dtype], self._most_blocks)
        if self._hosts is not None:
            self._hosts.submit(loaded.flat, call=desc_of(request))
        api.launch(self._call_at, dtype, blocks, stream)
        if captures:
            state.capturing()
            return
        state.launching()
        self._last_stream = stream
        api.record(self._after, stream)
        self._hold(request)

    def _loaded(self, request: Request, *, captures: bool) -> Loaded:
        """Return the programs of a call; loads them if that may be done now."""
        collective, dtype = request.collective, request.dtype
        found = self._programs.get(collective, request.root)
        if found is None or dtype not in self._prepared:
            if captures:
                raise UsageError(
                    f"the first {collective.label} of {dtype.label} in a communicator cannot be"
                    " captured in a graph: make the same call once before the capture"
                )
            found = self._programs.load(collective, request.root)
            self.api.prepare(dtype)
            self._prepared.add(dtype)
        if len(found) == 1:
            return found[0]
        size = request.count * dtype.itemsize * call_blocks(collective, self.size)
        return next(each for each in found if size <= each.most_bytes)

    def _hold(self, request: Request) -> None:
        """Keep the memory of a call until it is through."""
        through = self._state.through
        keep = self._keep
        while keep and keep[0][0] <= through:
            keep.popleft()
        if request.keep:
            keep.append((self._state.launched, request.keep))

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
            raise self._no_room(num_bytes)
        return DeviceMemory(pointer, num_bytes, self.api.info.index, self._heap.release)

    def contains(self, pointer: int) -> bool:
        """Whether `pointer` lies in the part of the arena that `empty_bytes` hands out."""
        return self._heap.start <= pointer < self._heap.stop

    def _no_room(self, num_bytes: int) -> InvalidBufferError:
        size = self._heap.stop - self._heap.start
        return InvalidBufferError(
            f"rank {self._everyone[self.rank]}: the arena of device {self.api.info.index} has no"
            f" {num_bytes} bytes left ({self._heap.bytes_in_use} of {size} in use); set"
            f" {env.DEVICE_ARENA} to more"
        )

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


def _is_staged(plan: Plan | HostsPlan) -> bool:
    """Whether some edge of the plan goes through host memory."""
    return isinstance(plan, Plan) and '"pcie-staged"' in plan.to_json()
