"""The programs of a rank on its device: lowered when first called for, then put there.

All ranks make the same calls, so all load the same programs, each by itself and from the same
values: nobody needs to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blinkrun.errors import ProgramError
from blinkrun.executors import device_layout as layout
from blinkrun.executors import native
from blinkrun.executors.base import Request
from blinkrun.executors.device_join import Reach
from blinkrun.planner.plan import Plan
from blinkrun.schedule.devices import fits, hosted_slots
from blinkrun.schedule.encode import encode_device
from blinkrun.schedule.ir import Addressing, Program, Recv, Send, Step
from blinkrun.schedule.lower import lower
from blinkrun.types import Collective, Rank

ANY_SIZE = 2**64 - 1
EAGER_BYTES = 16 << 10  # largest block that goes the one-shot way, which one thread block carries
BYTES_PER_BLOCK = 32 << 10  # of a call; more thread blocks than that have nothing to do

_ONE_BLOCK = (Collective.ALLREDUCE, Collective.BROADCAST, Collective.REDUCE)

Lowered = Iterator[tuple[Program, int, int]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The programs of a collective and root for calls up to a size.

    Attributes
    ----------
    most_bytes : int
        Largest call that they are for.
    addresses : tuple of int
        On the device, by `layout.Variant`; 0: there is none.
    lanes : int
        Of the variant with most; at least 1.
    eager_bytes : int
        Largest block that goes the one-shot way; 0: none does.
    eager_lanes : int
        Lanes of that way.
    flat : bytes
        One of the programs, as it is on the device.
    """

    most_bytes: int
    addresses: tuple[int, int, int, int]
    lanes: int
    eager_bytes: int
    eager_lanes: int
    flat: bytes

    def blocks(self, block_bytes: int, most: int) -> int:
        """Return how many thread blocks carry a call on blocks of `block_bytes`."""
        if block_bytes <= self.eager_bytes or not block_bytes:
            return self.eager_lanes
        least = -(-self.lanes // layout.LANES)
        return max(min(self.lanes, most, 1 + block_bytes // BYTES_PER_BLOCK), least)


NOTHING = Loaded(ANY_SIZE, (0, 0, 0, 0), 1, 0, 1, b"")  # a barrier: entering is all there is to it


def lowered_on_host(plan: Plan, collective: Collective, root: Rank) -> Lowered:
    """Yield the programs of a collective on one host, each with the sizes and chunks it is for."""
    ways = [Addressing.DIRECT, Addressing.STAGED]
    if collective is Collective.ALLREDUCE:  # gradients come from anywhere and stay in buckets
        ways.append(Addressing.OUTPUT_ONLY)
    for addressing in ways:
        yield lower(plan, collective, root=root, addressing=addressing), ANY_SIZE, 0
    yield lower(plan, collective, root=root, eager=True), ANY_SIZE, 0


class DevicePrograms:
    """Programs by collective and root.

    Parameters
    ----------
    rank : Rank
        This rank, among all.
    reach : tuple of tuple of bool
        Among all ranks; True where they are on different hosts.
    lowered : callable
        ``lowered(collective, root)`` yields programs with the largest call, in bytes, and the chunk
        that each is for.
    blocks : int
        Thread blocks that every rank has at least; the same on all ranks.
    has_areas : bool
        Whether there is host memory for what devices cannot address.
    put : callable
        ``put(data)`` returns the address of a copy on the device.
    """

    def __init__(  # noqa: PLR0913
        self,
        rank: Rank,
        reach: Reach,
        lowered: Callable[[Collective, Rank], Lowered],
        *,
        blocks: int,
        has_areas: bool,
        put: Callable[[bytes], int],
    ) -> None:
        self._rank = rank
        self._reach = reach
        self._lowered = lowered
        self._blocks = blocks
        self._has_areas = has_areas
        self._put = put
        self._loaded: dict[tuple[Collective, Rank], tuple[Loaded, ...]] = {}
        self._known: dict[int, tuple[Loaded, ...]] = {}  # by what a call says, quick to look up

    def get(self, collective: Collective, root: Rank) -> tuple[Loaded, ...] | None:
        """Return the programs if they are on the device; quickly."""
        return self._known.get(root << 8 | collective)

    def load(self, collective: Collective, root: Rank) -> tuple[Loaded, ...]:
        """Return the programs of `collective`, smallest calls first.

        Raises
        ------
        ProgramError
            If a program is beyond what a device's group has room for.
        """
        key = self._key(collective, root)
        found = self._loaded.get(key)
        if found is None:
            found = self._loaded[key] = tuple(self._make(*key))
        self._known[root << 8 | collective] = found
        return found

    @staticmethod
    def _key(collective: Collective, root: Rank) -> tuple[Collective, Rank]:
        return collective, root if collective.is_rooted else 0

    def _make(self, collective: Collective, root: Rank) -> Iterator[Loaded]:
        if collective is Collective.BARRIER:
            yield NOTHING
            return
        sizes: dict[int, list[tuple[Program, int]]] = {}
        eager = None
        pieces = self._blocks  # the same of all: hosts choose among them, and talk to each other
        for program, most_bytes, chunk_bytes in self._lowered(collective, root):
            if program.eager:
                eager = program
                continue
            pieces = min(pieces, pieces_of(program, self._blocks))
            if fits(program, self._reach):
                sizes.setdefault(most_bytes, []).append((program, chunk_bytes))
        small = (1, b"") if eager is None else self._flat(eager, 1, 0)
        small_bytes = 0
        small_address = 0
        if eager is not None:
            ring = max(eager.slots * eager.slot_depth, 1)
            small_bytes = min(EAGER_BYTES, layout.EAGER_BYTES // ring // 64 * 64)
            small_address = self._put(small[1])
        for most_bytes in sorted(sizes):
            addresses = [0, 0, 0, small_address]
            lanes = 1
            flat = b""
            for program, chunk_bytes in sizes[most_bytes]:
                of_this, flat = self._flat(program, pieces, chunk_bytes)
                addresses[_VARIANTS[program.addressing]] = self._put(flat)
                lanes = max(lanes, of_this)
            direct, staged, output_only, small_way = addresses
            yield Loaded(
                most_bytes,
                (direct, staged, output_only, small_way),
                lanes,
                small_bytes,
                max(small[0], 1),
                flat,
            )

    def _flat(self, program: Program, pieces: int, chunk_bytes: int) -> tuple[int, bytes]:
        """Return the lanes of this rank, and the program as it lies on the device."""
        hosted = hosted_slots(program, self._reach)
        if hosted and not self._has_areas:
            raise ProgramError(f"{program.name} has slots in host memory, and there is none")
        most = max(len(rank.channels) for rank in program.ranks) * pieces
        if -(-most // layout.LANES) > self._blocks:
            raise ProgramError(
                f"{program.name} has {most} channels, more than {self._blocks} thread blocks can"
                f" run, each {layout.LANES}"
            )
        lanes = len(program.ranks[self._rank].channels) * pieces
        words = encode_device(program, self._rank, hosted)
        try:
            return lanes, native.flatten(words, pieces, chunk_bytes)
        except ValueError as err:
            raise ProgramError(
                f"{program.collective.label} on {program.size} ranks: {err}"
            ) from None


_REDUCES = (Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCESCATTER)


def desc_of(request: Request) -> bytes:
    """Return what the ranks of other hosts compare of a call."""
    return bytes(
        layout.Desc(
            count=request.count,
            scales=layout.hash_scales(request.prescale, request.postscale),
            root=request.root if request.collective.is_rooted else 0,
            collective=request.collective,
            dtype=request.dtype,
            op=request.op if request.collective in _REDUCES else 0,
        )
    )


_VARIANTS = {
    Addressing.DIRECT: layout.Variant.DIRECT,
    Addressing.STAGED: layout.Variant.STAGED,
    Addressing.OUTPUT_ONLY: layout.Variant.OUTPUT_ONLY,
}


def pieces_of(program: Program, blocks: int) -> int:
    """Return in how many pieces each channel is cut: the same on all ranks."""
    if program.eager:
        return 1
    channels = max(len(rank.channels) for rank in program.ranks)
    streams = num_streams(program)
    return max(
        1,
        min(
            blocks // max(channels, 1),
            layout.FLAGS // max(program.flags, 1),
            layout.STREAMS // max(streams, 1),
        ),
    )


def num_streams(program: Program) -> int:
    """Return how many message streams the rank with most of them has."""
    return max((len(_streams(program, rank)) for rank in range(program.size)), default=0)


def _streams(program: Program, rank: Rank) -> set[tuple[type[Step], Rank, int]]:
    """Return what tells the message streams of a rank from each other."""
    return {
        (type(step), step.rank, step.stream)
        for channel in program.ranks[rank].channels
        for step in channel.steps
        if isinstance(step, (Send, Recv))
    }


def call_blocks(collective: Collective, size: int) -> int:
    """Return how many blocks a call's size counts: the larger of input and output."""
    return 1 if collective in _ONE_BLOCK else size
