"""Symbolic memory: what each chunk of each buffer holds, and who touched it last.

Time is a vector clock per channel. An access is remembered as the channel's number and the
channel's own time; it happened before now if the clock of the channel that acts now has reached
that time. See C. Flanagan and S. Freund, "FastTrack", PLDI 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from blinkrun.schedule.ir import Buffer, Operand, Program, Reduce
from blinkrun.schedule.promise import Location, input_block, location, moves_only

NEVER = (0, 0)  # an access before entry: every clock has reached time 0 of channel 0
Access = tuple[int, int]
"""Number of a channel within the replay, and its own time: steps done, counted from 1."""
Clock = list[int]


class Broken(Exception):  # noqa: N818 - a verdict on the way to ProgramError
    """A step breaks a rule; `other` is the access that it collides with, if that is the rule."""

    def __init__(self, what: str, other: Access | None = None) -> None:
        super().__init__(what)
        self.other = other


@dataclass(frozen=True, slots=True)
class Value:
    """Sum of the contributions of some ranks to a chunk of one block.

    Which chunk need not be said: what a slot holds at chunk 0 is ordered as at any other, and no
    certainty leads from a later chunk to an earlier one.

    `raw` means INPUT as the caller left it, not yet read (and so not yet prescaled). `recipe`
    numbers the way in which the value was made, roundings included: what is made by one recipe
    has the same bits.
    """

    contributions: int
    block: int
    raw: bool = False
    final: bool = False
    recipe: int = -1


@dataclass(slots=True)
class Cell:
    """A chunk in memory: its value and the accesses that a new one must come after."""

    value: Value | None
    write: Access = NEVER
    reads: dict[int, int] = field(default_factory=dict)


class Memory:
    """The chunks of all buffers of all ranks, for the channels of one part."""

    def __init__(self, program: Program, *, in_place: bool) -> None:
        self._program = program
        self._in_place = in_place
        self._everyone = (1 << program.size) - 1
        self._moves_only = moves_only(program.collective)
        self._places: dict[Operand, Location] = {}
        self._recipes: dict[tuple[object, ...], int] = {}
        self.cells: dict[tuple[Location, int], Cell] = {}

    def carry_out(self, step: Reduce, chunk: int, actor: int, clock: Clock) -> None:
        """Do `step` for `chunk` as channel `actor`, whose clock says what has happened before.

        Raises
        ------
        Broken
            If an operand may be in use elsewhere, or the sources do not add up.
        """
        terms = [self._read(src, chunk, actor, clock) for src in step.srcs]
        value = terms[0]
        for src, term in zip(step.srcs[1:], terms[1:], strict=True):
            value = _combine(value, term, src)
        if step.final:
            value = self._finish(value)
        value = self._made(value, step, terms)
        for dst in step.dsts:
            if self._moves_only and self._place(dst) == self._place(step.srcs[0]):
                continue  # a copy of a block onto itself is left out
            self._write(dst, value, chunk, (actor, clock[actor]), clock)

    def send(self, src: Operand, chunk: int, actor: int, clock: Clock) -> Value:
        """Return what a message from `src` carries, as `actor` reads it.

        Raises
        ------
        Broken
            If the memory may be written elsewhere, or holds nothing.
        """
        value = self._read(src, chunk, actor, clock)
        return self._made(value, Reduce((src,), (src,)), [value])

    def expect(self, dst: Operand, chunk: int, access: Access, clock: Clock) -> None:
        """Give `dst` to a message that will be there at `access`; nobody may touch it until then.

        Raises
        ------
        Broken
            If it may still be in use at `clock`, also by another message.
        """
        self._write(dst, None, chunk, access, clock)

    def arrive(self, dst: Operand, value: Value, chunk: int) -> None:
        """Put what a message carries to `dst`, which was given to it."""
        self._cell(dst, chunk).value = value

    def _made(self, value: Value, step: Reduce, terms: list[Value]) -> Value:
        """Return `value` as it is once stored; copying what was stored before changes nothing."""
        if len(terms) == 1 and not step.final and step.srcs[0].buffer is not Buffer.INPUT:
            return value
        made = self._recipe("stored", step.final, *(term.recipe for term in terms))
        return replace(value, recipe=made)

    def _recipe(self, *how: object) -> int:
        return self._recipes.setdefault(how, len(self._recipes))

    def _place(self, operand: Operand) -> Location:
        place = self._places.get(operand)
        if place is None:
            place = location(operand, self._program.collective, in_place=self._in_place)
            self._places[operand] = place
        return place

    def _cell(self, operand: Operand, chunk: int) -> Cell:
        place = self._place(operand)
        position = chunk
        if operand.buffer is Buffer.SCRATCH:
            position = chunk % self._program.slot_depth
        cell = self.cells.get((place, position))
        if cell is None:
            block = input_block(place, self._program, in_place=self._in_place)
            value = None if block is None else Value(1 << place[0], block, raw=True)
            cell = self.cells[place, position] = Cell(value)
        return cell

    def _read(self, src: Operand, chunk: int, actor: int, clock: Clock) -> Value:
        cell = self._cell(src, chunk)
        writer, time = cell.write
        if clock[writer] < time:
            raise Broken(f"reads {_name(src)} while it may be written", cell.write)
        cell.reads[actor] = clock[actor]
        value = cell.value
        if src.buffer is Buffer.INPUT:
            if value is None or not value.raw:
                raise Broken(f"reads {_name(src)} after it was overwritten in place")
            recipe = self._recipe("input", src.rank, value.block)
            return Value(value.contributions, value.block, recipe=recipe)
        if value is None or value.raw:
            raise Broken(f"reads {_name(src)} before anything was written there")
        return value

    def _write(
        self, dst: Operand, value: Value | None, chunk: int, access: Access, clock: Clock
    ) -> None:
        cell = self._cell(dst, chunk)
        writer, time = cell.write
        if clock[writer] < time:
            raise Broken(f"writes {_name(dst)} while it may be written", cell.write)
        for reader, at in cell.reads.items():
            if clock[reader] < at:
                raise Broken(f"writes {_name(dst)} while it may be read", (reader, at))
        cell.value = value
        cell.write = access
        cell.reads.clear()

    def _finish(self, value: Value) -> Value:
        if value.final:
            raise Broken("finishes a result that is finished already")
        if value.contributions != self._everyone:
            raise Broken(f"finishes a result that has only {ranks_in(value.contributions)}")
        return replace(value, final=True)

    def find_late_access(self, ends: Callable[[int], Clock]) -> tuple[Location, int, Access] | None:
        """Return a chunk of INPUT or OUTPUT that is touched after its rank may have left.

        `ends` gives the clock of a rank's end. Accesses that a later one has replaced happened
        before it, so the last ones are enough.
        """
        for (place, position), cell in self.cells.items():
            rank, buffer, _ = place
            if buffer is Buffer.SCRATCH:
                continue  # the next call touches it only after all ranks have left this one
            end = ends(rank)
            for actor, time in (cell.write, *cell.reads.items()):
                if end[actor] < time:
                    return place, position, (actor, time)
        return None

    def held(self, operand: Operand, chunk: int) -> Value | None:
        """Return what a chunk holds now, None if nothing was ever there."""
        return self._cell(operand, chunk).value


def _combine(total: Value, term: Value, src: Operand) -> Value:
    if total.block != term.block:
        raise Broken(f"adds block {term.block} of {_name(src)} to block {total.block}")
    twice = total.contributions & term.contributions
    if twice:
        raise Broken(f"adds {_name(src)}, which counts {ranks_in(twice)} a second time")
    return Value(total.contributions | term.contributions, total.block)


def _name(operand: Operand) -> str:
    return f"{operand.buffer.name}[{operand.index}] of rank {operand.rank}"


def ranks_in(contributions: int) -> str:
    """Return the ranks whose bits are set, in words.

    >>> ranks_in(0b101), ranks_in(0b10)
    ('ranks 0, 2', 'rank 1')
    """
    ranks = [str(rank) for rank in range(contributions.bit_length()) if contributions >> rank & 1]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
