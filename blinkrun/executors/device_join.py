"""How the ranks of a host come to have each other's device memory.

Each rank makes an arena on its device. Ranks of one process have each other's addresses as they
are, others open handles (CUDA IPC). What no handle opens, and devices that cannot address each
other, meet in pinned memory of the host: a part of the arena that the ranks' host group has already
mapped.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from blinkrun import log
from blinkrun.comm.base import ControlPlane
from blinkrun.comm.world import World
from blinkrun.errors import DeviceError, DeviceMemoryError, LaunchError
from blinkrun.executors import device_layout as layout
from blinkrun.executors.base import Executor
from blinkrun.executors.device_api import DeviceApi, DeviceInfo
from blinkrun.executors.device_memory import Finals, Holdings
from blinkrun.types import Rank

_T = TypeVar("_T")

ROUND = 2 << 20  # an IPC handle opens whole allocations, which are pages of 2 MiB
LEAST_HEAP = 32 << 20
_HEAP_SHARE = 16  # of the device's memory, one part
_LATER = 8  # for later groups one part of that
PROGRAM_BYTES = 8 << 20  # for programs; what does not fit goes where buckets go
_STARTED = secrets.token_hex(8)  # tells processes of other namespaces from this one

Reach = tuple[tuple[bool, ...], ...]


def _process() -> str:
    """Return what ranks of one process have alike, and those of a fork of it do not."""
    return f"{os.getpid()} {_STARTED}"


@dataclass(frozen=True, slots=True)
class Card:
    """What a rank tells the others of its device."""

    info: DeviceInfo
    process: str
    most_blocks: int
    free_bytes: int
    scratch_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Arenas:
    """The device arenas of a host's ranks, as one of them has them.

    Attributes
    ----------
    own : int
        Address of this rank's.
    num_bytes : int
        Its size.
    addresses : tuple of int
        Of every rank's; 0 where it is out of reach.
    reach : tuple of tuple of bool
        ``reach[a][b]``: whether rank a's device can address rank b's arena, by their places on this
        host; the same on all its ranks.
    everywhere : tuple of tuple of bool
        The same among all ranks, of whatever host; True where they are on different ones.
    """

    own: int
    num_bytes: int
    addresses: tuple[int, ...]
    reach: Reach
    everywhere: Reach


@dataclass(frozen=True, slots=True)
class Areas:
    """The areas in host memory, as one rank's device has them.

    Attributes
    ----------
    addresses : tuple of int
        On the device, of every rank's area; all 0 where there are none.
    own : int
        Address of this rank's in this process; 0 where there is none.
    """

    addresses: tuple[int, ...]
    own: int


def together(control: ControlPlane, make: Callable[[], _T]) -> list[_T]:
    """Return what `make` returns on every rank; collective. If it raises on one, all raise.

    Raises
    ------
    LaunchError
        On the other ranks, with the words of the first that failed.
    """
    made: _T | None = None
    error: Exception | None = None
    try:
        made = make()
    except Exception as err:
        error = err
    said = control.allgather((made, None if error is None else f"{error}"))
    if error is not None:
        raise error
    for _, text in said:
        if text is not None:
            raise LaunchError(text)
    return [each for each, _ in said]


def gather_cards(
    control: ControlPlane, api: DeviceApi, *, scratch_bytes: int, blocks: int
) -> list[Card]:
    """Return every rank's card; collective."""

    def make() -> Card:
        most, free = api.most_blocks(), api.free_bytes()
        return Card(api.info, _process(), most, free, scratch_bytes, blocks)

    return together(control, make)


def sharers(cards: Sequence[Card], index: int) -> int:
    """Return how many of the ranks of a host have the device of rank `index`."""
    return sum(is_same(card.info, cards[index].info) for card in cards)


def is_same(one: DeviceInfo, other: DeviceInfo) -> bool:
    """Whether the two are one device; slices of one GPU are different ones."""
    return (one.pci_bus_id, one.uuid) == (other.pci_bus_id, other.uuid)


def blocks_of(cards: Sequence[Card], index: int, *, wanted: int) -> int:
    """Return how many thread blocks of rank `index` of a host run at a time.

    Kernels wait for each other: those of all ranks on a device must fit on it together.

    Parameters
    ----------
    cards : sequence of Card
        Of the ranks of the host.
    wanted : int
        For a rank that has its device for itself and asks for no other number; at most half of it.

    Raises
    ------
    LaunchError
        If the device has not one block for each of its ranks.
    """
    card, sharing = cards[index], sharers(cards, index)
    part = card.most_blocks // sharing
    if part < 1:
        raise LaunchError(
            f"{sharing} ranks share device {card.info.index}, which runs {card.most_blocks} thread"
            " blocks at a time: give it fewer ranks"
        )
    # Half of a small device: two communicators' kernels, which may run in either order, fit on it.
    usual = part if sharing > 1 else min(wanted, max(part // 2, 1))
    return min(card.blocks or usual, part)


def group_layout(arenas: Arenas, areas: Areas, index: int) -> layout.Group:
    """Return rank `index`'s group as far as addresses go."""
    size, reach = len(arenas.addresses), arenas.reach
    group = layout.Group(rank=index, size=size, arena_bytes=arenas.num_bytes)
    for at, (arena, area) in enumerate(zip(arenas.addresses, areas.addresses, strict=True)):
        group.arenas[at], group.areas[at] = arena, area
        group.mine[at] = arenas.own if reach[at][index] else areas.addresses[index]
        group.to[at] = arena if reach[index][at] else area
    return group


def heap_size(asked: int, card: Card, *, sharing: int, others: int) -> int:
    """Return how much of a rank's arena is for buckets, in bytes.

    What is `asked`; if nothing is, a sixteenth of the device's memory for all ranks that share it,
    and at most half of what is free. Where the rank has `others`, groups on the same device, an
    eighth of that: gradients go through the first.
    """
    usual = min(card.info.total_bytes // _HEAP_SHARE, card.free_bytes // 2) // sharing
    return asked or max(usual // (_LATER if others else 1), LEAST_HEAP)


def make_arenas(  # noqa: PLR0913
    control: ControlPlane,
    world: World,
    cards: Sequence[Card],
    holdings: Holdings,
    *,
    num_bytes: int,
    rank_name: Rank,
) -> Arenas:
    """Make this rank's arena, zero its control block, and open those of others; collective.

    Parameters
    ----------
    world : World
        Where the ranks of `control` are.
    cards : sequence of Card
        Of the ranks of this host.
    num_bytes : int
        Of this rank's arena; the same cannot be said of others'.
    rank_name : Rank
        For messages.
    """
    api, local, index = holdings.api, world.local_ranks, world.local_rank
    num_bytes = -(-num_bytes // ROUND) * ROUND
    own = together(control, lambda: _allocate(holdings, num_bytes, rank_name))[control.rank]
    offers = control.allgather((own, *_handle(api, own, cards)))

    def open_all() -> tuple[int, ...]:
        found = [_open(holdings, cards, index, at, offers[rank]) for at, rank in enumerate(local)]
        said = [why for _, why in found if why]
        if said:
            log.say(said[0], rank_name)  # the others say the same of other devices
        return tuple(address for address, _ in found)

    rows = together(control, open_all)
    everywhere = reach_among_all(world, rows)
    reach = tuple(tuple(everywhere[one][other] for other in local) for one in local)
    return Arenas(own, num_bytes, rows[control.rank], reach, everywhere)


def reach_among_all(world: World, rows: Sequence[Sequence[int]]) -> Reach:
    """Return who reaches whom, given each rank's addresses of the ranks of its host.

    >>> reach_among_all(World(0, 3, ("a", "b", "a"), ((0, 2), (1,))), [(8, 0), (8,), (8, 8)])
    ((True, True, False), (True, True, True), (True, True, True))
    """
    place = {rank: (at, index) for at, group in enumerate(world.groups)
             for index, rank in enumerate(group)}  # fmt: skip

    def reaches(one: Rank, other: Rank) -> bool:
        return place[one][0] != place[other][0] or rows[one][place[other][1]] != 0

    ranks = range(world.size)
    return tuple(tuple(reaches(one, other) for other in ranks) for one in ranks)


def _allocate(holdings: Holdings, num_bytes: int, rank_name: Rank) -> int:
    api = holdings.api
    try:
        pointer = api.malloc(num_bytes)
    except DeviceError as err:
        free = api.free_bytes()
        if free < num_bytes:
            raise DeviceMemoryError(api.info.index, num_bytes, free, rank=rank_name) from err
        raise
    holdings.own.append(lambda: api.free(pointer))
    stream = api.new_stream()
    try:
        api.memset(pointer, 0, layout.CONTROL_BYTES, stream)
        api.synchronize(stream)
    finally:
        api.free_stream(stream)
    return pointer


def _handle(api: DeviceApi, pointer: int, cards: Sequence[Card]) -> tuple[bytes, str]:
    """Return the handle for other processes, or why there is none."""
    if all(card.process == _process() for card in cards):
        return b"", ""
    try:
        return api.export(pointer), ""
    except DeviceError as err:
        return b"", f"{err}"


def _open(
    holdings: Holdings, cards: Sequence[Card], index: int, at: int, offer: Any
) -> tuple[int, str]:
    """Return the address of rank `at`'s arena, 0 if there is none, and what is to be said of it."""
    api = holdings.api
    mine, theirs = cards[index].info, cards[at].info
    pointer, handle, refused = offer
    if at == index:
        return pointer, ""
    if mine.pci_bus_id == theirs.pci_bus_id and not is_same(mine, theirs):
        return 0, ""  # two slices of one GPU never address each other
    can = api.can_reach(theirs.pci_bus_id)
    if can is False:
        return 0, ""
    if cards[at].process == _process():
        return _enable(api, mine, theirs, pointer) if can else (0, "")
    try:
        if refused:
            raise DeviceError("cudaIpcGetMemHandle", theirs.index, refused)
        address = api.open(handle)
    except DeviceError as err:
        return 0, f"{err}; {_NO_IPC if can else _UNSEEN}"
    holdings.rest.append(lambda: api.close(address))
    return address, ""


_INSTEAD = "memory of that device goes through the host instead, which is slower:"
_NO_IPC = f"{_INSTEAD} run the ranks of a host in one container, or with --ipc=host --pid=host"
_UNSEEN = f"{_INSTEAD} let every rank of a host see all of its GPUs"


def _enable(api: DeviceApi, mine: DeviceInfo, theirs: DeviceInfo, pointer: int) -> tuple[int, str]:
    if not is_same(mine, theirs):
        try:
            api.enable_peer(theirs.pci_bus_id)
        except DeviceError as err:
            return 0, f"{err}; memory of that device goes through the host instead"
    return pointer, ""


def make_finals(
    control: ControlPlane, local: Sequence[Rank], holdings: Holdings, host: Executor
) -> Finals:
    """Make the words by which the ranks of a host leave, before there is anything to leave."""
    starts = _shared_pages(control, local, holdings, host, layout.PAGE)
    ctypes.memset(starts[local.index(control.rank)], 0, layout.PAGE)
    control.allgather(None)  # all are cleared
    holdings.finals = finals = Finals(host.group, starts, local.index(control.rank))
    return finals


def make_areas(
    control: ControlPlane,
    local: Sequence[Rank],
    holdings: Holdings,
    host: Executor,
    *,
    area_bytes: int,
) -> Areas:
    """Make the areas in host memory, of `area_bytes` each, 0: none are needed; collective."""
    if not area_bytes:
        return Areas((0,) * len(local), 0)
    api = holdings.api
    starts = _shared_pages(control, local, holdings, host, area_bytes)
    own = starts[local.index(control.rank)]

    def register() -> tuple[int, ...]:
        ctypes.memset(own, 0, layout.CONTROL_BYTES)
        addresses = []
        for start in starts:
            addresses.append(api.register_host(start, area_bytes))
            holdings.rest.append(lambda start=start: api.unregister_host(start))  # type: ignore[misc]
        return tuple(addresses)

    return Areas(together(control, register)[control.rank], own)


def _shared_pages(
    control: ControlPlane,
    local: Sequence[Rank],
    holdings: Holdings,
    host: Executor,
    num_bytes: int,
) -> list[int]:
    """Return the address here of whole pages of every rank, that all ranks of the host share."""
    group, index = host.group, local.index(control.rank)

    def make() -> int:
        memory = host.empty_bytes(num_bytes + layout.PAGE)
        holdings.shared.append(memory)
        start = -(-memory.ctypes.data // layout.PAGE) * layout.PAGE
        return int(start - group.address_of(index, 0))

    offsets = together(control, make)
    return [group.address_of(at, offsets[rank]) for at, rank in enumerate(local)]
