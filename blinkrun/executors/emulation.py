"""An emulated machine: which of its links carries what, and how fast they are here.

The ranks are processes of one host, and move real bytes through shared memory. The native core
(`csrc/pacing.hpp`) holds each of them back until the links of the emulated machine, slowed down by
the scale, would have carried it. Ranks that no link joins do not have each other's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blinkrun.errors import UsageError
from blinkrun.schedule.ir import Program
from blinkrun.schedule.routes import Routes, ways
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

MIN_BYTES_PER_S = 1000  # below that a cache line takes longer than anyone waits
_BYTES_PER_MB = 10**6


@dataclass(frozen=True, slots=True)
class Emulation:
    """A machine at a fraction of its speed.

    Attributes
    ----------
    topology : Topology
        Of the ranks; capacities in MB/s.
    scale : int
        How many times slower its links are here; at least 1.
    routes : Routes
        Of `topology`.

    Raises
    ------
    UsageError
        If `topology` counts something else than MB/s, `scale` is no whole number of at least 1, or
        so large that a link would carry less than 1 KB/s.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> slow = Emulation(machine("dgx-1v", "all"), scale=1000)
    >>> slow.links[0], slow.topology.links[0].resources
    ((2,), ('nvlink 0->1',))
    >>> slow.bytes_per_s[2], slow.reaches(0, 5)
    (23000000, True)
    """

    topology: Topology
    scale: int
    routes: Routes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.scale) is not int or self.scale < 1:
            raise UsageError(f"scale is {self.scale}, need a whole number of at least 1")
        if self.topology.unit != "MB/s":
            raise UsageError(
                f"{self.topology.name} counts {self.topology.unit}, and an emulation needs MB/s"
            )
        for resource, rate in zip(self.topology.resources, self.bytes_per_s, strict=True):
            if rate < MIN_BYTES_PER_S:
                raise UsageError(
                    f"at scale {self.scale} {resource.name} of {self.topology.name} carries {rate}"
                    f" bytes/s, need {MIN_BYTES_PER_S}; the largest scale is"
                    f" {self._slowest() * _BYTES_PER_MB // MIN_BYTES_PER_S}"
                )
        object.__setattr__(self, "routes", Routes(self.topology))

    @property
    def bytes_per_s(self) -> tuple[int, ...]:
        """Bytes per second of each of the topology's resources here, rounded down."""
        return tuple(r.capacity * _BYTES_PER_MB // self.scale for r in self.topology.resources)

    @property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """For each link of the topology the numbers of its resources."""
        number = {resource.name: at for at, resource in enumerate(self.topology.resources)}
        return tuple(tuple(number[name] for name in link.resources) for link in self.topology.links)

    def reaches(self, one: Rank, other: Rank) -> bool:
        """Whether the two have each other's memory: a link joins them, one way or the other."""
        return one == other or (one, other) in self.routes.pairs()

    def check(self, program: Program) -> None:
        """Raise ProgramError if `program` needs a link that the machine lacks, on any rank."""
        for src, dst, kind in ways(program):
            self.routes.link(src, dst, kind)

    def _slowest(self) -> int:
        return min(resource.capacity for resource in self.topology.resources)
