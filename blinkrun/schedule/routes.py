"""Which links a program's operands cross: the one place where programs and topologies meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import Program, Reduce
from blinkrun.topology.graph import Topology
from blinkrun.types import Rank

Way = tuple[Rank, Rank, str]  # from, to, kind of link: what `Reduce.moves` yields


@dataclass(frozen=True, slots=True)
class Routes:
    """The links of a topology, to be found by their ends and kind.

    Attributes
    ----------
    topology : Topology

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> routes = Routes(machine("dgx-1v", "all"))
    >>> [routes.topology.links[routes.link(0, 3, kind)].kind.value for kind in ("", "pcie-staged")]
    ['nvlink', 'pcie-staged']
    """

    topology: Topology
    _links: dict[Way, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        capacity = {resource.name: resource.capacity for resource in self.topology.resources}
        width = [min(capacity[name] for name in link.resources) for link in self.topology.links]
        found: dict[Way, int] = {}
        for at, link in enumerate(self.topology.links):
            for way in ((link.src, link.dst, link.kind.value), (link.src, link.dst, "")):
                if way not in found or width[at] > width[found[way]]:
                    found[way] = at
        object.__setattr__(self, "_links", found)

    def link(self, src: Rank, dst: Rank, kind: str = "") -> int:
        """Return the index of the link from `src` to `dst` of that kind; "": the widest of all.

        Raises
        ------
        ProgramError
            If there is none.
        """
        at = self._links.get((src, dst, kind))
        if at is None:
            what = f"{kind} link" if kind else "link"
            raise ProgramError(
                f"{self.topology.name}: no {what} from rank {src} to rank {dst}; the program was "
                "made for other links"
            )
        return at

    def of(self, step: Reduce, rank: Rank) -> tuple[int, ...]:
        """Return the link of every operand that `rank` reaches over one, in `moves`' order."""
        return tuple(self.link(src, dst, kind) for src, dst, kind in step.moves(rank))

    def pairs(self) -> frozenset[tuple[Rank, Rank]]:
        """Return who may address whose memory: `verify`'s `links`. Either direction will do.

        A rank that pulls over a link also sets flags that the other end waits for.
        """
        linked = {(link.src, link.dst) for link in self.topology.links}
        return frozenset(linked | {(dst, src) for src, dst in linked})


def ways(program: Program) -> Iterator[Way]:
    """Yield every way that data takes between ranks, once, in the order of ranks and steps."""
    seen: set[Way] = set()
    for rank, steps in enumerate(program.ranks):
        for channel in (*steps.prologue, *steps.channels):
            for step in channel.steps:
                if isinstance(step, Reduce):
                    for way in step.moves(rank):
                        if way not in seen:
                            seen.add(way)
                            yield way
