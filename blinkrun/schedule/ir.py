"""The program: what the verifier checks, the reference and native executors run.

A `Program` says for every rank which bytes move, in what order, and who waits for whom. It does
not know sizes: a `Part` is a range of *shares* of a block, and the executor turns shares into
elements when it is called (`chunking.part_range`), so one program serves every count.

Execution of one call, on every rank:

1. the rank runs its *prologue*: steps on its own memory only, one chunk each;
2. *entry*: all ranks meet, and check that they called the same thing. Every rank's prologue
   happens before every rank's channels;
3. the *channels* run, each an independent lane of progress. A channel covers one part, cut into
   chunks; its steps run in order once per chunk;
4. a rank leaves when its channels are through. A program must keep a rank in until no other rank
   touches its INPUT or OUTPUT any more (the verifier holds it to that).

Flags live at the rank that signals them and only count up: after chunk k, `Signal` sets the flag
to k + 1; `Wait` on it lets chunk k pass when it is at least k + 1 - lag.

**Over several hosts** (`Program.hosts`) ranks address memory and flags of their own host only. What
goes from host to host is a *message* of one chunk, on a *stream*: `Send` and `Recv` start it, at
once, and `Sent` and `Arrived` hold their channel until it is through. A message is through when
both its ends have been started; until then neither operand may be written, nor that of `Recv` read.
Nothing tells that but `Sent` and `Arrived`: not what is heard from the other end, and `Sent` says
nothing of the other end. A rank leaves a call when its own messages are through. Two channels do so
what one cannot: the one starts messages ahead of the other, which waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from blinkrun.errors import ProgramError
from blinkrun.types import Collective, Rank


class Buffer(IntEnum):
    """Where an operand lies.

    INPUT and OUTPUT are the caller's; when a call is in place they are the same memory (for
    allgather and reducescatter: INPUT is block `rank` of OUTPUT, or OUTPUT is block `rank` of
    INPUT). SCRATCH is arena memory of the rank, cut into slots.
    """

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


class Addressing(IntEnum):
    """Whose INPUT and OUTPUT a rank may touch."""

    DIRECT = 0  # everyone's: they lie in the arena
    STAGED = 1  # only its own: they are private memory; others are reached through SCRATCH
    OUTPUT_ONLY = 2  # everyone's OUTPUT, but only its own INPUT: results lie in the arena


@dataclass(frozen=True, slots=True)
class Part:
    """Shares `start` to `stop` of `Program.shares` of a block: a segment of the vector."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ProgramError(f"part [{self.start}, {self.stop}) is empty or negative")


@dataclass(frozen=True, slots=True)
class Operand:
    """The current chunk of the channel's part, in one rank's buffer.

    `index` is the block within INPUT or OUTPUT, or the slot within SCRATCH. A slot is a ring of
    `Program.slot_depth` chunks: chunk k lies at position k modulo the depth.
    """

    rank: Rank
    buffer: Buffer
    index: int = 0

    def __post_init__(self) -> None:
        if self.rank < 0 or self.index < 0:
            raise ProgramError(f"operand has rank {self.rank}, index {self.index}; need >= 0")


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold this channel at chunk k until flag `flag` of `rank` is at least k + 1 - `lag`."""

    rank: Rank
    flag: int
    lag: int = 0

    def __post_init__(self) -> None:
        if self.rank < 0 or self.flag < 0 or self.lag < 0:
            raise ProgramError(f"wait for flag {self.flag} of rank {self.rank}, lag {self.lag}")


@dataclass(frozen=True, slots=True)
class Reduce:
    """Write op(srcs) to every operand of `dsts`; one source makes it a copy.

    Sources are combined left to right: ((s0 op s1) op s2) … . A source in INPUT is multiplied by
    the call's prescale as it is read. A `final` step's result is divided by the size for AVERAGE
    and multiplied by the call's postscale before it is stored. 16-bit floats are held in float32
    between the loads and the stores of one step.

    `via` names the kind of the link (`LinkKind`) that carries each operand, destinations first: ""
    for memory of the rank itself, and where it is left to the only link that there is. It says
    nothing of what happens, only where: executors that pace and the simulator look at it.

    Broadcast and allgather only move data: op and scales play no part in them, no step is final,
    and a destination that is the very memory of the single source is left out (the root's copy of
    INPUT to OUTPUT in place), so that others may read it at the same time.
    """

    dsts: tuple[Operand, ...]
    srcs: tuple[Operand, ...]
    final: bool = False
    via: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.dsts or not self.srcs:
            raise ProgramError("a reduce needs at least one source and one destination")
        if len(set(self.dsts)) != len(self.dsts):
            raise ProgramError("a reduce writes the same operand twice")
        if not self.via:
            object.__setattr__(self, "via", ("",) * (len(self.dsts) + len(self.srcs)))
        if len(self.via) != len(self.dsts) + len(self.srcs):
            raise ProgramError(f"a reduce names {len(self.via)} links for its operands")

    def moves(self, rank: Rank) -> Iterator[tuple[Rank, Rank, str]]:
        """Yield what crosses a link when `rank` carries this out: (from, to, kind of link).

        >>> inputs = Operand(0, Buffer.INPUT), Operand(1, Buffer.INPUT)
        >>> step = Reduce((Operand(0, Buffer.OUTPUT),), inputs, via=("", "", "nvlink"))
        >>> list(step.moves(0))
        [(1, 0, 'nvlink')]
        """
        kinds = iter(self.via)
        for dst, kind in zip(self.dsts, kinds, strict=False):
            if dst.rank != rank:
                yield rank, dst.rank, kind
        for src, kind in zip(self.srcs, kinds, strict=True):
            if src.rank != rank:
                yield src.rank, rank, kind


@dataclass(frozen=True, slots=True)
class Signal:
    """Set own flag `flag` to k + 1: everything this channel did up to chunk k is visible."""

    flag: int

    def __post_init__(self) -> None:
        if self.flag < 0:
            raise ProgramError(f"flag {self.flag} is negative")


@dataclass(frozen=True, slots=True)
class Send:
    """Start to send the current chunk of `operand`, of this rank, to `rank` on another host.

    `stream` numbers the messages from this rank to that one, one per chunk and in order: of each
    (from, to, stream) there is one `Send` and one `Recv` in a program, in channels of equal parts.
    """

    operand: Operand
    rank: Rank
    stream: int = 0

    def __post_init__(self) -> None:
        if self.rank < 0 or self.stream < 0:
            raise ProgramError(f"send to rank {self.rank}, stream {self.stream}")


@dataclass(frozen=True, slots=True)
class Recv:
    """Start to receive the current chunk into `operand`, of this rank, from `rank`; see `Send`."""

    operand: Operand
    rank: Rank
    stream: int = 0

    def __post_init__(self) -> None:
        if self.rank < 0 or self.stream < 0:
            raise ProgramError(f"receive from rank {self.rank}, stream {self.stream}")


@dataclass(frozen=True, slots=True)
class Sent:
    """Hold this channel at chunk k until the message of chunk k - `lag` to `rank` is through."""

    rank: Rank
    stream: int = 0
    lag: int = 0

    def __post_init__(self) -> None:
        if self.rank < 0 or self.stream < 0 or self.lag < 0:
            raise ProgramError(f"sent to rank {self.rank}, stream {self.stream}, lag {self.lag}")


@dataclass(frozen=True, slots=True)
class Arrived:
    """Hold this channel at chunk k until the message of chunk k - `lag` from `rank` is through."""

    rank: Rank
    stream: int = 0
    lag: int = 0

    def __post_init__(self) -> None:
        if self.rank < 0 or self.stream < 0 or self.lag < 0:
            raise ProgramError(
                f"arrived from rank {self.rank}, stream {self.stream}, lag {self.lag}"
            )


Message = Send | Recv | Sent | Arrived
Step = Wait | Reduce | Signal | Message


@dataclass(frozen=True, slots=True)
class Channel:
    """Steps that run in order, once per chunk of `part`."""

    part: Part
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ProgramError("a channel without steps; leave it out")


@dataclass(frozen=True, slots=True)
class RankProgram:
    """What one rank does: the prologue before entry, then its channels."""

    prologue: tuple[Channel, ...] = ()
    channels: tuple[Channel, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A collective for every rank.

    Attributes
    ----------
    collective : Collective
        What the program promises.
    root : Rank
        Of broadcast and reduce, in the communicator's ranks; 0 elsewhere.
    addressing : Addressing
        Whether INPUT and OUTPUT of other ranks may be addressed.
    shares : int
        Number of shares that a block is cut into; parts are ranges of them.
    ranks : tuple of RankProgram
        One per rank.
    slots : int
        SCRATCH slots per rank (the same on all).
    slot_depth : int
        Chunks that a slot holds; at least 1.
    eager : bool
        One chunk only: each part must fit one slot. SCRATCH is then a small area that alternates
        between two copies from call to call, so the prologue may fill it before entry.
    pipelined : bool
        Whether cutting parts into chunks helps (more than one hop, or staged). Where it is false
        a part is one chunk.
    name : str
        For people: ``trees``, ``one-shot``, ``ring``.
    hosts : tuple of int
        The host of every rank, numbered from 0 in the order of their first ranks; empty: all ranks
        are on one.
    """

    collective: Collective
    root: Rank
    addressing: Addressing
    shares: int
    ranks: tuple[RankProgram, ...]
    slots: int = 0
    slot_depth: int = 1
    eager: bool = False
    pipelined: bool = False
    name: str = "trees"
    hosts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ProgramError("a program needs at least one rank")
        if self.shares < 1 or self.slot_depth < 1 or self.slots < 0:
            raise ProgramError(
                f"program has shares {self.shares}, slots {self.slots}, depth {self.slot_depth}"
            )
        if not 0 <= self.root < len(self.ranks):
            raise ProgramError(f"root {self.root} is none of {len(self.ranks)} ranks")
        if self.hosts:
            _check_hosts(self.hosts, len(self.ranks))
        for rank, steps in enumerate(self.ranks):
            if steps.prologue and not self.eager:
                raise ProgramError(
                    f"rank {rank} has a prologue, which only eager programs may have"
                )
            for channel in (*steps.prologue, *steps.channels):
                _check_channel(self, rank, channel)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def host_ranks(self, rank: Rank) -> tuple[Rank, ...]:
        """Return the ranks on the host of `rank`, ascending; all where there is one host."""
        if not self.hosts:
            return tuple(range(self.size))
        return tuple(other for other in range(self.size) if self.hosts[other] == self.hosts[rank])

    @property
    def flags(self) -> int:
        """Flags that a rank needs (the same on all ranks): one more than the highest used."""
        used = [
            step.flag
            for steps in self.ranks
            for channel in steps.channels
            for step in channel.steps
            if isinstance(step, (Wait, Signal))
        ]
        return max(used, default=-1) + 1

    @property
    def input_blocks(self) -> int:
        """Blocks in INPUT: the size for reducescatter and alltoall, else 1."""
        split = (Collective.REDUCESCATTER, Collective.ALLTOALL)
        return self.size if self.collective in split else 1

    @property
    def output_blocks(self) -> int:
        """Blocks in OUTPUT: the size for allgather and alltoall, else 1."""
        joined = (Collective.ALLGATHER, Collective.ALLTOALL)
        return self.size if self.collective in joined else 1


def _check_hosts(hosts: tuple[int, ...], size: int) -> None:
    if len(hosts) != size:
        raise ProgramError(f"{size} ranks on the hosts {hosts}")
    found = tuple(dict.fromkeys(hosts))
    if found != tuple(range(len(found))):
        raise ProgramError(f"hosts {hosts} are not numbered from 0 in the order of first ranks")


def _check_channel(program: Program, rank: Rank, channel: Channel) -> None:
    """Raise ProgramError if a channel names what does not exist; `verify` checks the meaning."""
    where = f"rank {rank}, part [{channel.part.start}, {channel.part.stop})"
    if channel.part.stop > program.shares:
        raise ProgramError(f"{where}: beyond the {program.shares} shares")
    for step in channel.steps:
        if isinstance(step, Wait):
            if step.rank >= program.size:
                raise ProgramError(f"{where}: waits for rank {step.rank} of {program.size}")
            if program.hosts and program.hosts[step.rank] != program.hosts[rank]:
                raise ProgramError(f"{where}: waits for a flag of rank {step.rank}, another host's")
        elif isinstance(step, Reduce):
            for operand in (*step.dsts, *step.srcs):
                _check_operand(program, rank, operand, where)
        elif not isinstance(step, Signal):
            _check_message(program, rank, step, where)


def _check_message(program: Program, rank: Rank, step: Message, where: str) -> None:
    if step.rank >= program.size:
        raise ProgramError(f"{where}: a message with rank {step.rank} of {program.size}")
    if not program.hosts or program.hosts[step.rank] == program.hosts[rank]:
        raise ProgramError(f"{where}: a message with rank {step.rank} of the same host")
    if isinstance(step, (Send, Recv)):
        if step.operand.rank != rank:
            raise ProgramError(f"{where}: a message in memory of rank {step.operand.rank}")
        _check_operand(program, rank, step.operand, where)


def _check_operand(program: Program, rank: Rank, operand: Operand, where: str) -> None:
    limit = {
        Buffer.INPUT: program.input_blocks,
        Buffer.OUTPUT: program.output_blocks,
        Buffer.SCRATCH: program.slots,
    }[operand.buffer]
    if operand.rank >= program.size or operand.index >= limit:
        raise ProgramError(
            f"{where}: no {operand.buffer.name}[{operand.index}] at rank {operand.rank}"
        )
    if program.hosts and program.hosts[operand.rank] != program.hosts[rank]:
        raise ProgramError(f"{where}: touches memory of rank {operand.rank} on another host")
    private = {
        Addressing.DIRECT: (),
        Addressing.STAGED: (Buffer.INPUT, Buffer.OUTPUT),
        Addressing.OUTPUT_ONLY: (Buffer.INPUT,),
    }[program.addressing]
    if operand.buffer in private and operand.rank != rank:
        raise ProgramError(f"{where}: touches private memory of rank {operand.rank}")
