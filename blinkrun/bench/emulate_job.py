"""What the ranks of an emulated machine get to do: a value, and its JSON for the hand-over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinkrun.bench.table import OURS
from blinkrun.bench.work import Work
from blinkrun.errors import LaunchError, UsageError
from blinkrun.planner.rings import RingKind
from blinkrun.schedule.choice import Choice, Choices
from blinkrun.schedule.ir import Program
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.peer import ring_programs
from blinkrun.topology.graph import Topology
from blinkrun.types import Collective, DType, Op, Rank

JOB_VERSION = 1
DTYPE = DType.FLOAT32
RING = "ring"


@dataclass(frozen=True, slots=True)
class Rings:
    """The peer's program for a size.

    Attributes
    ----------
    name : str
        ``ring`` or ``double binary trees``.
    chunk_bytes : int
    simulated_ns : int
        What the simulator predicts on the slowed links.
    """

    name: str
    chunk_bytes: int
    simulated_ns: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one size.

    Attributes
    ----------
    size_bytes : int
        That are really moved, counted as nccl-tests does.
    choice : Choice
        The trees.
    simulated_ns : int
        What the simulator predicts for them on the slowed links.
    rings : Rings or None
        None if the peer is not measured.
    """

    size_bytes: int
    choice: Choice
    simulated_ns: int
    rings: Rings | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """A program of a call, by the name that the table gives it.

    Attributes
    ----------
    name : str
        ``blinkrun`` or ``ring``.
    program : Program
    chunk_bytes : int
    simulated_ns : int
        What the simulator predicts on the slowed links.
    """

    name: str
    program: Program
    chunk_bytes: int
    simulated_ns: int


@dataclass(frozen=True, slots=True)
class Peer:
    """What a ring library finds on the machine.

    Attributes
    ----------
    kind : RingKind
    num_rings : int
        With both directions of a ring counted as one.
    mb_per_s : Fraction
        What they carry of the collective on the machine.
    lane_mb_per_s : int
        What a lane of the fabric is worth; 0 without one.
    """

    kind: RingKind
    num_rings: int
    mb_per_s: Fraction
    lane_mb_per_s: int


@dataclass(frozen=True, slots=True)
class EmulatedJob:
    """A collective on an emulated machine, planned.

    Attributes
    ----------
    topology : Topology
        The links of the machine between the ranks, in MB/s; what is emulated.
    links : str
        Which of them the trees may use.
    scale : int
        By how much every link is slower.
    collective : Collective
    root : Rank
        0 where there is none.
    calls : tuple of Call
        In the order of their rows.
    peer : Peer or None
    """

    topology: Topology
    links: str
    scale: int
    collective: Collective
    root: Rank
    calls: tuple[Call, ...]
    peer: Peer | None = None

    def __post_init__(self) -> None:
        if self.scale < 1:
            raise UsageError(f"--scale {self.scale}: need a whole number of at least 1")
        if not self.calls:
            raise UsageError("an emulation without a size measures nothing")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.topology.size

    def work(self, call: Call) -> Work:
        """Return what a call does, as `blinkrun.bench.work` measures it."""
        return Work(
            collective=self.collective.label,
            dtype=DTYPE,
            op=Op.SUM,
            root=self.root,
            num_ranks=self.size,
            size_bytes=call.size_bytes,
        )

    def ways(self, call: Call, rings: Mapping[str, Program]) -> list[Way]:
        """Return the programs of a call: our trees, and of `rings` the one that is measured."""
        choice, theirs = call.choice, call.rings
        found = [Way(OURS, self.tree_program(call), choice.chunk_bytes, call.simulated_ns)]
        if theirs is not None:
            program = rings[theirs.name]
            found.append(Way(RING, program, theirs.chunk_bytes, theirs.simulated_ns))
        return found

    def tree_program(self, call: Call) -> Program:
        """Return the program of our trees for a call."""
        return lower_packing(
            call.choice.packing,
            self.collective,
            root=self.root,
            channels_per_tree=call.choice.channels_per_tree,
        )

    def ring_programs(self) -> dict[str, Program]:
        """Return what the peer chooses from, by name; nothing where it is not measured."""
        if self.peer is None:
            return {}
        lane = self.peer.lane_mb_per_s or None
        found = ring_programs(self.topology, self.collective, self.root, lane=lane)
        return {one.name: one.program for one in found}

    def to_json(self) -> str:
        """Return the job as JSON text."""
        ordered = sorted({call.size_bytes for call in self.calls})
        return json.dumps(
            {
                "version": JOB_VERSION,
                "topology": json.loads(self.topology.to_json()),
                "links": self.links,
                "scale": self.scale,
                "collective": self.collective.label,
                "root": self.root,
                "peer": None if self.peer is None else _peer_out(self.peer),
                "choices": json.loads(_choices(self.calls, ordered).to_json()),
                "calls": [_call_out(call) for call in self.calls],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> EmulatedJob:
        """Return the job that `to_json` wrote.

        Raises
        ------
        LaunchError
            If `text` is no such job.
        """
        try:
            data = json.loads(text)
            if data["version"] != JOB_VERSION:
                raise LaunchError(f"a job of version {data['version']}, this is {JOB_VERSION}")
            choices = Choices.from_json(json.dumps(data["choices"]))
            return cls(
                topology=Topology.from_json(json.dumps(data["topology"])),
                links=data["links"],
                scale=data["scale"],
                collective=Collective[data["collective"].upper()],
                root=data["root"],
                calls=tuple(_call_in(entry, choices) for entry in data["calls"]),
                peer=None if data["peer"] is None else _peer_in(data["peer"]),
            )
        except LaunchError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as err:
            raise LaunchError(f"text is no emulated job: {type(err).__name__}: {err}") from err


def _choices(calls: tuple[Call, ...], ordered: list[int]) -> Choices:
    """Return what is chosen for every size; the last is for any."""
    by_size = {call.size_bytes: call.choice for call in calls}
    limits = [*ordered[:-1], None]
    return Choices(
        tuple(_upto(by_size[size], limit) for size, limit in zip(ordered, limits, strict=True))
    )


def _upto(choice: Choice, limit: int | None) -> Choice:
    return Choice(limit, choice.trees, choice.packing, choice.chunk_bytes, choice.channels_per_tree)


def _call_out(call: Call) -> dict[str, Any]:
    rings = call.rings
    return {
        "size_bytes": call.size_bytes,
        "simulated_ns": call.simulated_ns,
        "rings": None if rings is None else [rings.name, rings.chunk_bytes, rings.simulated_ns],
    }


def _call_in(entry: Mapping[str, Any], choices: Choices) -> Call:
    size_bytes = entry["size_bytes"]
    return Call(
        size_bytes=size_bytes,
        choice=_upto(choices.of(size_bytes), None),
        simulated_ns=entry["simulated_ns"],
        rings=None if entry["rings"] is None else Rings(*entry["rings"]),
    )


def _peer_out(peer: Peer) -> list[Any]:
    return [peer.kind.value, peer.num_rings, str(peer.mb_per_s), peer.lane_mb_per_s]


def _peer_in(entry: list[Any]) -> Peer:
    kind, num_rings, rate, lane = entry
    return Peer(RingKind(kind), num_rings, Fraction(rate), lane)
