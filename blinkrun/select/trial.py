"""Times of trees by size, channels and chunk, from the simulator; long runs are extended.

A pipeline that is filled moves as much in every stretch of time. So of a run of many chunks two
short ones tell nearly all: of so much data that they have a few thousand steps, the second with
twice as much as the first. What a byte more takes is known from the two, and the rest follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from blinkrun.schedule.choice import Choice
from blinkrun.schedule.chunking import chunks_of
from blinkrun.schedule.ir import Program, Reduce
from blinkrun.schedule.lower import lower_packing
from blinkrun.select.candidates import Candidate
from blinkrun.simulator.cost import Cost
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.run import Run
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import program_hosts
from blinkrun.types import Collective, Rank

ITEMSIZE = 4
_SHORT = 8_000  # steps and transfers of the longer of two short runs


@dataclass(frozen=True, slots=True)
class Setting:
    """Trees with the number of channels of each.

    Attributes
    ----------
    candidate : Candidate
    channels : int
        Per tree.
    """

    candidate: Candidate
    channels: int

    def choice(self, chunk_bytes: int) -> Choice:
        """Return it as a choice for any size."""
        one = self.candidate
        return Choice(None, one.trees, one.packing, chunk_bytes, self.channels)


class Trials:
    """Simulated times of one collective over one topology; none is simulated twice.

    Parameters
    ----------
    topology : Topology
    collective : Collective
    root : Rank
    cost : Cost
    """

    def __init__(self, topology: Topology, collective: Collective, root: Rank, cost: Cost) -> None:
        self.topology = topology
        self.collective = collective
        self.root = root
        self.cost = cost
        self._programs: dict[Setting, Program] = {}
        self._steps: dict[Setting, int] = {}
        self._runs: dict[tuple[Setting, int, int], Run] = {}

    def program(self, setting: Setting) -> Program:
        """Return the program of a setting."""
        if setting not in self._programs:
            self._programs[setting] = lower_packing(
                setting.candidate.packing,
                self.collective,
                root=self.root,
                channels_per_tree=setting.channels,
                hosts=program_hosts(self.topology),
            )
        return self._programs[setting]

    def run(self, setting: Setting, size_bytes: int, chunk_bytes: int) -> Run:
        """Return the whole run."""
        key = (setting, size_bytes, chunk_bytes)
        if key not in self._runs:
            self._runs[key] = simulate(
                self.program(setting),
                self.topology,
                size_bytes=size_bytes,
                itemsize=ITEMSIZE,
                chunk_bytes=chunk_bytes,
                cost=self.cost,
            )
        return self._runs[key]

    def time_ns(self, setting: Setting, size_bytes: int, chunk_bytes: int) -> int:
        """Return the time of a run, extended from two short ones where it is long."""
        moves = self.num_moves(setting, size_bytes, chunk_bytes)
        if moves <= 2 * _SHORT:
            return self.run(setting, size_bytes, chunk_bytes).time_ns
        blocks = ITEMSIZE * self.topology.size
        longer = size_bytes * _SHORT // moves // blocks * blocks
        shorter = longer // 2 // blocks * blocks
        first = self.run(setting, shorter, chunk_bytes).time_ns
        second = self.run(setting, longer, chunk_bytes).time_ns
        return second + (second - first) * (size_bytes - longer) // (longer - shorter)

    def num_moves(self, setting: Setting, size_bytes: int, chunk_bytes: int) -> int:
        """Return how many steps and transfers a run has: what its simulation takes."""
        program = self.program(setting)
        count = size_bytes // max(program.input_blocks, program.output_blocks) // ITEMSIZE
        chunk = chunk_bytes // ITEMSIZE if program.pipelined else 0
        return sum(
            chunks_of(channel.part, program.shares, count, ITEMSIZE, chunk).num_chunks
            * sum(
                1 + sum(1 for _ in step.moves(rank))
                for step in channel.steps
                if isinstance(step, Reduce)
            )
            for rank, steps in enumerate(program.ranks)
            for channel in steps.channels
        )
