"""Which GPUs NVLink or xGMI joins: lane by lane, or through switches.

A matrix prints the same ``NV12`` for twelve wires between two GPUs and for two GPUs that have
twelve lanes each into a switch. The sums tell: a GPU cannot have more wires than lanes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from blinkrun.topology.bandwidth import Bandwidths
from blinkrun.topology.machine import Machine, Wire
from blinkrun.topology.model_gpus import RAW_LANE_GB_PER_S, generation_of_lane, kind_of

# Most lanes that any GPU has: what an unknown one may have.
_MOST_LANES = 18
# Lanes into switches of whole GPUs: V100, H800 and A800, A100, H100 and later.
_SWITCHED_COUNTS = {6, 8, 12, 18}
# MI210 and MI100 have three xGMI links, MI300X seven.
_MI210_LINKS = 3

_Pair = tuple[int, int]


class FabricKind(StrEnum):
    """How GPUs are joined beside PCIe."""

    NONE = "none"
    DIRECT = "direct"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Fabric:
    """The wiring beside PCIe.

    Attributes
    ----------
    kind : FabricKind
        SWITCH if any GPUs are behind switches.
    generation : str
        ``nvlink1`` … ``nvlink5``, ``nvlink3_ga102``, ``xgmi1`` … ``xgmi3``; empty without lanes.
    lanes : tuple of int
        Per GPU: lanes that it uses, of wires and into switches.
    ports : tuple of int
        Per GPU: those of them that lead into switches.
    wires : tuple of Wire
        Point to point.
    islands : tuple of tuple of int
        Groups of GPUs behind switches, each any to any.
    narrow : tuple of Wire
        Pairs behind switches with fewer lanes between them than either GPU's port.
    """

    kind: FabricKind
    generation: str
    lanes: tuple[int, ...]
    ports: tuple[int, ...]
    wires: tuple[Wire, ...] = ()
    islands: tuple[tuple[int, ...], ...] = ()
    narrow: tuple[Wire, ...] = ()

    @property
    def is_xgmi(self) -> bool:
        """Whether it is AMD's."""
        return self.generation.startswith("xgmi")

    @property
    def pairs(self) -> frozenset[_Pair]:
        """Pairs i < j that it joins directly."""
        direct = {(wire.low, wire.high) for wire in self.wires}
        return frozenset(direct.union(*(combinations(island, 2) for island in self.islands)))


def fabric_of(machine: Machine) -> Fabric:
    """Return how the GPUs of `machine` are joined beside PCIe.

    Named switches are taken as they are. Else each group of GPUs that lanes join is judged by
    itself: it is behind a switch if a GPU's pairs add up to more lanes than it can have (as
    stated, or known of the model, or 18), or if three or more GPUs show one and the same count
    of a whole GPU (6, 8, 12, 18) for all pairs.

    Examples
    --------
    >>> from blinkrun.topology.machine import Gpu
    >>> def uniform(size, lanes):
    ...     wires = tuple(Wire(*pair, lanes) for pair in combinations(range(size), 2))
    ...     gpus = tuple(Gpu(f"GPU{gpu}") for gpu in range(size))
    ...     return fabric_of(Machine("m", "by hand", gpus, nvlink=wires))
    >>> mesh, switched = uniform(4, 4), uniform(8, 12)
    >>> mesh.kind.value, mesh.lanes[0], switched.kind.value, switched.lanes[0]
    ('direct', 12, 'switch', 12)
    """
    stated = _through_named_switches(machine)
    stated |= {(wire.low, wire.high): wire.lanes for wire in machine.nvlink or ()}
    ports, islands = _switched(machine, stated)
    switched = {pair for island in islands for pair in combinations(island, 2)}
    wires = [Wire(*pair, lanes) for pair, lanes in stated.items() if pair not in switched]
    # a machine has NVLink or xGMI
    wires += () if stated else _xgmi_wires(machine)
    lanes = Counter(ports)
    for wire in wires:
        lanes[wire.low] += wire.lanes
        lanes[wire.high] += wire.lanes
    kind = FabricKind.SWITCH if islands else FabricKind.DIRECT if wires else FabricKind.NONE
    return Fabric(
        kind=kind,
        generation=_generation(machine, kind, lanes, wires),
        lanes=tuple(lanes[gpu] for gpu in range(machine.num_gpus)),
        ports=tuple(ports[gpu] for gpu in range(machine.num_gpus)),
        wires=tuple(sorted(wires)),
        islands=islands,
        narrow=tuple(
            Wire(low, high, count)
            for (low, high), count in sorted(stated.items())
            if (low, high) in switched and count < min(ports[low], ports[high])
        ),
    )


def lane_mb_per_s(machine: Machine, bandwidths: Bandwidths, fabric: Fabric | None = None) -> int:
    """Return what one lane of the machine's fabric achieves per direction, in MB/s; 0 without one.

    The table's figure for its generation; where the report states a raw speed, in proportion to
    that.
    """
    found = fabric_of(machine) if fabric is None else fabric
    if not found.generation:
        return 0
    usual = bandwidths[f"{found.generation}_lane"]
    raw = RAW_LANE_GB_PER_S.get(found.generation)
    speeds = [gpu.lane_gb_per_s for gpu in machine.gpus if gpu.lane_gb_per_s]
    if raw is None or not speeds:
        return usual
    # stated speeds are rounded (25 for 25.78): only a real difference counts
    share = min(speeds) / raw
    return usual if 0.9 < share < 1.1 else max(round(usual * share), 1)


def _switched(
    machine: Machine, stated: Mapping[_Pair, int]
) -> tuple[Counter[int], tuple[tuple[int, ...], ...]]:
    """Return each GPU's lanes into switches, and the groups of GPUs that these join."""
    ports = _named_ports(machine)
    islands = []
    for group in _groups(stated, ports):
        inside = {pair: lanes for pair, lanes in stated.items() if group.issuperset(pair)}
        is_named = not group.isdisjoint(+ports)
        if is_named or _is_switched(machine, group, inside):
            islands.append(tuple(sorted(group)))
            for pair, lanes in inside.items() if not is_named else ():
                for gpu in pair:
                    ports[gpu] = max(ports[gpu], lanes)
    return ports, tuple(islands)


def _named_ports(machine: Machine) -> Counter[int]:
    """Return each GPU's lanes into named switches."""
    ports: Counter[int] = Counter()
    for switch in machine.switches:
        for gpu, lanes in enumerate(switch.lanes[: machine.num_gpus]):
            ports[gpu] += lanes
    return ports


def _xgmi_wires(machine: Machine) -> list[Wire]:
    """Return xGMI links; two hops are a way over others, not a link."""
    return [
        Wire(pair.low, pair.high, pair.lanes or 1)
        for pair in machine.xgmi
        if pair.hops is None or pair.hops <= 1
    ]


def _through_named_switches(machine: Machine) -> dict[_Pair, int]:
    """Return the lanes between GPUs that share named switches: what fits through each, added up."""
    lanes: Counter[_Pair] = Counter()
    for switch in machine.switches:
        stated = enumerate(switch.lanes[: machine.num_gpus])
        ports = [(gpu, count) for gpu, count in stated if count > 0]
        for (low, into), (high, out) in combinations(ports, 2):
            lanes[low, high] += min(into, out)
    return dict(lanes)


def _groups(stated: Iterable[_Pair], ports: Mapping[int, int]) -> list[frozenset[int]]:
    """Return the groups of GPUs that lanes join, by their lowest GPU.

    GPUs with ports into named switches make groups of their own.
    """
    near: defaultdict[int, list[int]] = defaultdict(list)
    for low, high in stated:
        if bool(ports.get(low)) == bool(ports.get(high)):
            near[low].append(high)
            near[high].append(low)
    groups: list[frozenset[int]] = []
    seen: set[int] = set()
    for start in sorted(near):
        if start in seen:
            continue
        group, stack = {start}, [start]
        while stack:
            new = set(near[stack.pop()]) - group
            group |= new
            stack += new
        seen |= group
        groups.append(frozenset(group))
    return groups


def _is_switched(machine: Machine, group: frozenset[int], lanes: Mapping[_Pair, int]) -> bool:
    """Whether these GPUs show a switch's counts rather than those of wires."""
    size = len(group)
    if size < 3:
        return False
    total: Counter[int] = Counter()
    for (low, high), count in lanes.items():
        total[low] += count
        total[high] += count
    limits = {gpu: _most_lanes(machine, gpu, max(lanes.values())) for gpu in group}
    if any(total[gpu] > (limits[gpu] or _MOST_LANES) for gpu in group):
        return True
    if all(limits.values()) or len(lanes) < size * (size - 1) // 2:
        return False
    # a mesh of four H100 shows NV6 as V100s behind a switch do, but then it uses all 18 lanes
    counts = set(lanes.values())
    return len(counts) == 1 and counts <= _SWITCHED_COUNTS and max(total.values()) < _MOST_LANES


def _most_lanes(machine: Machine, gpu: int, shown: int) -> int | None:
    """Return how many lanes a GPU can have, None if nothing tells; `shown` it has at least."""
    named = machine.gpus[gpu]
    cut = {status.gpu for status in machine.status if status.is_cut}
    active = 0 if named.name in cut else named.lanes or 0
    kind = kind_of(named)
    known = kind.lanes if kind else 0
    return next((lanes for lanes in (active, known) if lanes >= shown), None)


def _generation(
    machine: Machine, kind: FabricKind, lanes: Mapping[int, int], wires: Sequence[Wire]
) -> str:
    """Return the generation by model, architecture, stated speed or counts, in this order."""
    if kind is FabricKind.NONE:
        return ""
    joined = [machine.gpus[gpu] for gpu in range(machine.num_gpus) if lanes.get(gpu)]
    amd = not machine.nvlink and not machine.switches
    for gpu in joined:
        known = kind_of(gpu)
        if known and known.fabric.startswith("xgmi" if amd else "nvlink"):
            return known.fabric
    speeds = [gpu.lane_gb_per_s for gpu in joined if gpu.lane_gb_per_s]
    if speeds and not amd:
        return generation_of_lane(min(speeds))
    most = max(lanes.values())
    if amd:
        return "xgmi3" if most > _MI210_LINKS else "xgmi2"
    return _nvlink_by_counts(kind, most, wires)


def _nvlink_by_counts(kind: FabricKind, most: int, wires: Sequence[Wire]) -> str:
    """Return the NVLink generation that such counts are usual for."""
    widest = max((wire.lanes for wire in wires), default=0)
    is_bridge = kind is FabricKind.DIRECT and most == widest
    if is_bridge and (widest == 4 or (widest == 3 and len(wires) == 1)):
        return "nvlink3_ga102"  # NV3 alone is a bridge of four with one down
    if kind is FabricKind.DIRECT and not is_bridge and widest == 1:
        return "nvlink1"
    limits = (6, "nvlink2"), (12, "nvlink3"), (_MOST_LANES, "nvlink4")
    return next((name for limit, name in limits if most <= limit), "nvlink4")
