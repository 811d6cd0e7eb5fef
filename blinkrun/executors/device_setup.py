"""How a group of devices comes together: memory, plan, programs, and what the rank has for itself.

All ranks do the same at the same time, step by step; what fails on one of them ends it on all.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from blinkrun import env
from blinkrun.comm.base import ControlPlane
from blinkrun.comm.world import World
from blinkrun.errors import InvalidBufferError, LaunchError
from blinkrun.executors import device_layout as layout
from blinkrun.executors.agreed import agreed_plan
from blinkrun.executors.base import Executor
from blinkrun.executors.device_api import DeviceApi, DeviceInfo
from blinkrun.executors.device_heap import DeviceHeap
from blinkrun.executors.device_job import Events
from blinkrun.executors.device_join import (
    PROGRAM_BYTES,
    Areas,
    Arenas,
    Card,
    Reach,
    blocks_of,
    gather_cards,
    group_layout,
    heap_size,
    make_areas,
    make_arenas,
    make_finals,
    sharers,
    together,
)
from blinkrun.executors.device_memory import Finals, Holdings
from blinkrun.executors.device_programs import DevicePrograms, Lowered, lowered_on_host
from blinkrun.executors.device_state import DeviceState
from blinkrun.planner.plan import Plan
from blinkrun.types import Collective, DType, Rank

if TYPE_CHECKING:
    from blinkrun.executors.device_hosts import DeviceHosts
    from blinkrun.planner.hosts_plan import HostsPlan

CHUNK_BYTES = 512 << 10
BLOCKS = 32  # of a rank that has its device for itself; the rest of it is for what trains

_groups: Counter[tuple[str, str, Rank]] = Counter()  # of this process, by device and rank

MakePlan = Callable[[Sequence[DeviceInfo], Reach], Plan]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller asks for; see `DeviceExecutor`. Sizes in bytes; 0: what is usual."""

    arena_bytes: int
    scratch_bytes: int
    blocks: int
    timeout_s: float


class Setup:
    """One rank's part in a group of devices; making it is collective.

    Parameters
    ----------
    control, world, host, api
        As of `DeviceExecutor`.
    holdings : Holdings
        Of this rank; what is made here is given back by it, also if this fails half way.
    make_plan : callable
        As of `DeviceExecutor`.
    wishes : Wishes
        Of this rank.
    everyone : sequence of Rank
        Names of all ranks.

    Attributes
    ----------
    plan : Plan or HostsPlan
        What calls run on.
    hosts : DeviceHosts or None
        What joins several hosts.
    state : DeviceState
        What is under way, and what went wrong.
    programs : DevicePrograms
        What calls run.
    heap : DeviceHeap
        The part of the arena for buckets.
    events : Events
        Of the device.
    stream : int
        Of high priority, for this group alone.
    group : int
        Address of the group on the device.
    most_blocks : int
        Thread blocks of a call, at most.
    prepared : list of bool
        By element type, whether its kernel is loaded.
    """

    plan: Plan | HostsPlan
    state: DeviceState
    events: Events
    stream: int
    group: int

    def __init__(  # noqa: PLR0913
        self,
        control: ControlPlane,
        world: World,
        host: Executor,
        api: DeviceApi,
        *,
        holdings: Holdings,
        make_plan: MakePlan,
        wishes: Wishes,
        everyone: Sequence[Rank],
    ) -> None:
        if world.local_size > layout.RANKS:
            raise LaunchError(
                f"{world.local_size} ranks on one host, {layout.RANKS} can have devices together"
            )
        self._api = api
        self._world = world
        self._holdings = holdings
        self._everyone = everyone
        self._timeout_s = wishes.timeout_s
        self.name = everyone[world.rank]
        self.hosts: DeviceHosts | None = None
        self.prepared = [False] * len(DType)
        index = world.local_rank
        heap_asked = together(
            control, lambda: env.size_bytes(env.DEVICE_ARENA, wishes.arena_bytes)
        )[control.rank]
        finals = make_finals(control, world.local_ranks, holdings, host)
        cards = gather_cards(control, api, scratch_bytes=wishes.scratch_bytes, blocks=wishes.blocks)
        here = [cards[rank] for rank in world.local_ranks]
        scratch_bytes = min(card.scratch_bytes for card in cards)
        self.most_blocks = min(together(control, lambda: blocks_of(here, index, wanted=BLOCKS)))

        programs_at = layout.SCRATCH_AT + scratch_bytes
        heap_at = programs_at + PROGRAM_BYTES
        place = api.info.pci_bus_id, api.info.uuid, self.name
        sharing, before = sharers(here, index), _groups[place]
        heap_bytes = heap_size(heap_asked, here[index], sharing=sharing, others=before)
        _groups[place] += 1
        holdings.own.append(lambda: _groups.subtract([place]))
        num_bytes = heap_at + heap_bytes
        arenas = make_arenas(
            control, world, here, holdings, num_bytes=num_bytes, rank_name=self.name
        )
        self.heap = DeviceHeap(arenas.own + heap_at, arenas.own + arenas.num_bytes)
        self._for_programs = DeviceHeap(arenas.own + programs_at, arenas.own + heap_at)

        lowered = self._plan(control, host, here, arenas.reach, make_plan, scratch_bytes)
        rings_at, rings_bytes = programs_at, 0 if self.hosts is None else self.hosts.rings_bytes
        needs_areas = (
            not all(map(all, arenas.reach)) or self.hosts is not None or _is_staged(self.plan)
        )
        area_bytes = rings_at + rings_bytes if needs_areas else 0
        areas = make_areas(control, world.local_ranks, holdings, host, area_bytes=area_bytes)

        pinned = together(control, lambda: self._make_own(host, finals))[control.rank]
        self.programs = DevicePrograms(
            world.rank,
            arenas.everywhere,
            lowered,
            blocks=self.most_blocks,
            has_areas=needs_areas,
            put=self._put,
        )
        group = self._group(arenas, areas, scratch_bytes)
        group.rings_at, group.rings_bytes, group.host = rings_at, rings_bytes, pinned[1]

        def finish() -> None:
            self.group = self._put(bytes(group))
            api.prepare(DType.FLOAT32)
            self.prepared[DType.FLOAT32] = True
            self.programs.load(Collective.ALLREDUCE, 0)
            if self.hosts is not None:
                self.hosts.start(pinned[0], areas.own + rings_at, rings_bytes)

        together(control, finish)
        self.state.watch()

    def _plan(  # noqa: PLR0913, PLR0917 - the constructor's
        self,
        control: ControlPlane,
        host: Executor,
        here: Sequence[Card],
        reach: Reach,
        make_plan: MakePlan,
        scratch_bytes: int,
    ) -> Callable[[Collective, Rank], Lowered]:
        """Plan, on several hosts with what joins them, and return what makes programs of it."""
        infos = [card.info for card in here]
        if self._world.cross_size == 1:
            plan = agreed_plan(control, lambda: make_plan(infos, reach))
            self.plan = plan
            return partial(lowered_on_host, plan)
        from blinkrun.executors.device_hosts import DeviceHosts  # noqa: PLC0415 - few need it

        self.hosts = hosts = DeviceHosts(
            control,
            self._world,
            host,
            infos=infos,
            reach=reach,
            blocks=self.most_blocks,
            scratch_bytes=scratch_bytes,
        )
        self._holdings.first.append(hosts.close)
        self.plan = hosts.plan
        return hosts.lowered

    def _make_own(self, host: Executor, finals: Finals) -> tuple[int, int]:
        """Make what no other rank uses; returns the address of pinned memory, here and there."""
        api, holdings = self._api, self._holdings
        here, there = api.host_alloc(ctypes.sizeof(layout.Host))
        holdings.rest.append(lambda: api.host_free(here))
        self.state = holdings.state = DeviceState(
            host.group,
            here,
            finals,
            index=self._world.local_rank,
            names=[self._everyone[rank] for rank in self._world.local_ranks],
            everyone=self._everyone,
            timeout_s=self._timeout_s,
            hosts=self.hosts,
        )
        self.stream = stream = api.new_stream(high_priority=True)
        holdings.rest.append(lambda: api.free_stream(stream))
        self._copies = copies = api.new_stream()
        holdings.rest.append(lambda: api.free_stream(copies))
        self.events = events = Events(api)
        holdings.rest.append(events.close)
        after = holdings.after = events.take()
        holdings.rest.append(lambda: events.give_back(after))
        return here, there

    def _group(self, arenas: Arenas, areas: Areas, scratch_bytes: int) -> layout.Group:
        group = group_layout(arenas, areas, self._world.local_rank)
        group.index, group.all = self._world.rank, self._world.size
        group.scratch_bytes, group.chunk_bytes = scratch_bytes, CHUNK_BYTES
        return group

    def _put(self, data: bytes) -> int:
        """Return the address of a copy of `data` in the arena."""
        pointer = self._for_programs.allocate(len(data))
        if pointer is None:
            pointer = self.heap.allocate(len(data))
        if pointer is None:
            raise self.no_room(len(data))
        source = ctypes.create_string_buffer(data, len(data))
        self._api.copy(pointer, ctypes.addressof(source), len(data), self._copies)
        self._api.synchronize(self._copies)
        return pointer

    def no_room(self, num_bytes: int) -> InvalidBufferError:
        """Return the error of an arena that has no `num_bytes` left."""
        size = self.heap.stop - self.heap.start
        return InvalidBufferError(
            f"rank {self.name}: the arena of device {self._api.info.index} has no {num_bytes} bytes"
            f" left ({self.heap.bytes_in_use} of {size} in use); set {env.DEVICE_ARENA} to more"
        )


def _is_staged(plan: Plan | HostsPlan) -> bool:
    """Whether some edge of the plan goes through host memory."""
    return isinstance(plan, Plan) and '"pcie-staged"' in plan.to_json()
