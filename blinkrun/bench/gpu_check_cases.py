"""The calls whose results `gpu_check` compares, element by element, with the reference's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

import numpy as np

from blinkrun.bench.gpu_check_ranks import Array, GpuRank
from blinkrun.executors import reference
from blinkrun.executors.numerics import numpy_dtype
from blinkrun.planner.plan import Plan
from blinkrun.schedule.ir import Addressing, Program
from blinkrun.schedule.lower import lower
from blinkrun.types import Collective, DType, Op, Rank

POISON = 0x5A
GUARD = 256  # bytes before and behind an output, which stay as they were
SIZES = (0, 1, 7, 64, 1009, 4095, 4096, 4097, 50_021, 200_003)
_MANY_IN = (Collective.REDUCESCATTER, Collective.ALLTOALL)
_MANY_OUT = (Collective.ALLGATHER, Collective.ALLTOALL)
_REDUCING = (Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCESCATTER)


class Place(Enum):
    """Where input and output lie."""

    USER = "user"
    ARENA = "arena"
    OUTPUT = "output in the arena"


@dataclass(frozen=True, slots=True)
class Case:
    """One call on all ranks.

    Attributes
    ----------
    offset : int
        Elements by which the input begins behind a multiple of 256 bytes; the output begins at one.
    bits : bool
        Whether inputs are random bits; else small whole numbers, whose sums are exact.
    """

    collective: Collective
    dtype: DType
    op: Op
    count: int
    root: Rank
    place: Place
    in_place: bool
    offset: int
    bits: bool
    scales: tuple[float, float] = (1.0, 1.0)
    seed: int = 0

    def blocks(self, size: int) -> tuple[int, int]:
        """Return how many blocks of `count` elements a rank's input and output have."""
        return (
            size if self.collective in _MANY_IN else 1,
            size if self.collective in _MANY_OUT else 1,
        )

    def inputs(self, size: int) -> list[Array]:
        """Return every rank's input."""
        random = np.random.default_rng(self.seed)
        num = self.count * self.blocks(size)[0]
        dtype = numpy_dtype(self.dtype)
        if self.bits and self.dtype is not DType.BOOL:
            drawn = [random.bytes(num * dtype.itemsize) for _ in range(size)]
            return [np.frombuffer(each, dtype).copy() for each in drawn]
        return [random.integers(0, 4, num).astype(dtype) for _ in range(size)]


def cases(size: int, *, sizes: Sequence[int] = SIZES, seed: int = 0) -> Iterator[Case]:
    """Yield every collective, type and operation, sizes, roots and places in turn.

    On two ranks there are random bits too: two numbers have one sum, in whichever order.
    """
    places = tuple(Place)
    moving = [each for each in Collective if each is not Collective.BARRIER]
    number = seed
    for dtype in DType:
        for collective in moving:
            for op in Op if collective in _REDUCING else (Op.SUM,):
                if dtype is DType.BOOL and op is Op.AVERAGE:
                    continue
                for bits in (False, True) if size == 2 and collective in _REDUCING else (False,):
                    number += 1
                    yield Case(
                        collective,
                        dtype,
                        op,
                        sizes[number % len(sizes)],
                        number % size,
                        places[number // 2 % 3],
                        collective is Collective.ALLREDUCE and number % 3 == 0,
                        number % 5,
                        bits,
                        _scales(dtype) if bits and number % 2 else (1.0, 1.0),
                        number,
                    )


def _scales(dtype: DType) -> tuple[float, float]:
    # a prescaled 16-bit float is rounded on its way through a slot, and not without one
    return (1.0 if dtype in (DType.FLOAT16, DType.BFLOAT16) else 0.3), 1.7


def expected(plan: Plan, case: Case, inputs: Sequence[Array]) -> list[Array | None]:
    """Return what every rank must get; None where it gets nothing."""
    program = _program(plan, case.collective, case.root)
    call = reference.Call(case.op, *case.scales, chunk_elements=1 << 14)
    with np.errstate(all="ignore"):
        wanted = reference.run(program, inputs, call)
    rooted = case.collective is Collective.REDUCE
    return [None if rooted and rank != case.root else each for rank, each in enumerate(wanted)]


@cache
def _program(plan: Plan, collective: Collective, root: Rank) -> Program:
    return lower(plan, collective, root=root, addressing=Addressing.STAGED)


def room_bytes(size: int, sizes: Sequence[int] = SIZES) -> int:
    """Return how much memory a rank's largest input or output takes, guards and offset included."""
    return max(sizes) * 8 * size + 4 * GUARD


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a rank for inputs and outputs, of either kind."""

    user: tuple[int, int]
    arena: tuple[int, int]

    @staticmethod
    def of(rank: GpuRank, num_bytes: int) -> Room:
        """Take it, on all ranks before any of them makes a call."""
        user = rank.user(num_bytes), rank.user(num_bytes)
        room = Room(user, (rank.arena(num_bytes), rank.arena(num_bytes)))
        rank.barrier()
        return room

    def pointers(self, case: Case, itemsize: int) -> tuple[int, int]:
        """Return where input and output of `case` begin."""
        inputs = self.arena if case.place is Place.ARENA else self.user
        outputs = self.user if case.place is Place.USER else self.arena
        output = outputs[1] + GUARD
        return (output if case.in_place else inputs[0] + GUARD + case.offset * itemsize), output


def wrong_elements(
    me: GpuRank, room: Room, case: Case, mine: Array, wanted: Array | None
) -> tuple[int, int]:
    """Make the call of `case`; return how many elements were compared, and how many are wrong."""
    item = case.dtype.itemsize
    given, out = room.pointers(case, item)
    out_bytes = case.count * case.blocks(me.size)[1] * item
    me.api.memset(out - GUARD, POISON, out_bytes + 2 * GUARD, me.stream)
    gives = case.collective is not Collective.BROADCAST or me.rank == case.root
    if gives:
        me.upload(given, mine)
    me.executor.run(
        me.request(
            case.collective,
            case.dtype,
            (given if gives else 0, out if wanted is not None else 0),
            case.count,
            op=case.op,
            root=case.root,
            scales=case.scales,
        )
    )
    me.executor.synchronize(me.stream)
    found = me.download(out - GUARD, out_bytes + 2 * GUARD)
    wrong = int(np.count_nonzero(found[:GUARD] != POISON))
    wrong += int(np.count_nonzero(found[GUARD + out_bytes :] != POISON))
    if not case.in_place and gives and case.count:
        wrong += int(np.count_nonzero(me.download(given, mine.nbytes) != mine.view(np.uint8)))
    if wanted is None:
        return 0, wrong
    inside = found[GUARD : GUARD + out_bytes].view(wanted.dtype)
    return wanted.size, wrong + _differ(inside, wanted)


def _differ(found: Array, wanted: Array) -> int:
    """Return how many elements differ in more than the payload of a NaN or the sign of a zero."""
    same = found.view(f"u{found.itemsize}") == wanted.view(f"u{wanted.itemsize}")
    if same.all():
        return 0
    with np.errstate(all="ignore"):
        same |= (found == wanted) | ((found != found) & (wanted != wanted))  # noqa: PLR0124
    return int(np.count_nonzero(~same))


def check_cases(
    me: GpuRank, everything: Sequence[tuple[Case, list[Array], list[Array | None]]], room: Room
) -> tuple[int, Counter[str]]:
    """Return how many elements were compared on this rank, and how many are wrong, by case."""
    compared, wrong = 0, Counter[str]()
    for case, inputs, wanted in everything:
        num, bad = wrong_elements(me, room, case, inputs[me.rank], wanted[me.rank])
        compared += num
        if bad:
            wrong[f"{case.collective.label} {case.op.name} {case.dtype.label} {case}"] += bad
    return compared, wrong
