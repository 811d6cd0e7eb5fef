"""Reads what `flatten` makes of a program, as the kernel does."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from blinkrun.executors import native
from blinkrun.schedule.ir import (
    Arrived,
    Buffer,
    Channel,
    Operand,
    Part,
    Rank,
    RankProgram,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Step,
    Wait,
)

LAYOUT = native.device_layout()


@dataclass
class Flat:
    """A flat program: `head` by the names of FlatProgram, and its steps in ranks of the program.

    `hosted` are the slots that lie in the host's memory, `device` those in a device's; `told` has
    the ranks that each signal of a flag reaches.
    """

    data: bytes
    local: tuple[Rank, ...]
    rank: Rank
    head: dict[str, int] = field(default_factory=dict)
    hosted: set[tuple[Rank, int]] = field(default_factory=set)
    device: set[tuple[Rank, int]] = field(default_factory=set)
    told: dict[int, tuple[Rank, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, at in LAYOUT.items():
            if name.startswith("FlatProgram."):
                wide = name == "FlatProgram.chunk_bytes"
                (value,) = struct.unpack_from("<Q" if wide else "<i", self.data, at)
                self.head[name.removeprefix("FlatProgram.")] = value

    def steps(self) -> RankProgram:
        head = self.head
        channels = [self._channel(i) for i in range(head["num_prologue"] + head["num_channels"])]
        cut = head["num_prologue"]
        return RankProgram(tuple(channels[:cut]), tuple(channels[cut:]))

    def _channel(self, index: int) -> Channel:
        at = self.head["channels_at"] + index * LAYOUT["Channel"]
        start, stop, first, count = struct.unpack_from("<4I", self.data, at)
        return Channel(Part(start, stop), tuple(self._step(first + s) for s in range(count)))

    def _step(self, index: int) -> Step:
        at = self.head["steps_at"] + index * LAYOUT["Step"]
        kind, rank, flag, lag, final, _, first, dsts, srcs = struct.unpack_from(
            "<4i??2x3I", self.data, at
        )
        if kind == 0:
            return Wait(self.local[rank], flag, lag)
        if kind == 1:
            self.told[flag] = tuple(r for at, r in enumerate(self.local) if first >> at & 1)
            return Signal(flag)
        if kind == 2:
            operands = [self._operand(first + i) for i in range(dsts + srcs)]
            return Reduce(tuple(operands[:dsts]), tuple(operands[dsts:]), final)
        other, number, sends, operand = struct.unpack_from(
            "<4I", self.data, self.head["streams_at"] + flag * LAYOUT["FlatStream"]
        )
        assert (other, bool(sends)) == (rank, kind in (3, 5))
        if kind in (5, 6):
            return (Sent if kind == 5 else Arrived)(rank, number, lag)
        if kind == 4:
            assert operand == first
        return (Send if kind == 3 else Recv)(self._operand(first), rank, number)

    def _operand(self, index: int) -> Operand:
        at = self.head["operands_at"] + index * LAYOUT["Operand"]
        rank, buffer, place, hosted = struct.unpack_from("<3iI", self.data, at)
        operand = Operand(self.local[rank], Buffer(buffer), place)
        if operand.buffer is Buffer.SCRATCH:
            (self.hosted if hosted else self.device).add((operand.rank, place))
        else:
            assert not hosted
        return operand
