"""Which trees a simulation may choose from, and the bound that none of them exceeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from blinkrun.cli.simulate_scene import Scene
from blinkrun.errors import UsageError
from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.explain import why
from blinkrun.planner.make import in_shares
from blinkrun.planner.multihost import plan_hosts
from blinkrun.planner.onehop import onehop_packing
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.packing_json import packing_from_json, packing_to_json
from blinkrun.planner.predict import Timing, Trees, candidates
from blinkrun.planner.solve import DEFAULT_LOSS, pack
from blinkrun.planner.store import cached, command_cache_dir
from blinkrun.select.candidates import Candidate, candidates_for
from blinkrun.types import Collective

OVER_HOSTS = "over hosts"
_MB_PER_GB = 1000


@dataclass(frozen=True, slots=True)
class Bound:
    """What no schedule exceeds, in MB/s, and why."""

    mb_per_s: Fraction
    why: str


@dataclass(frozen=True, slots=True)
class Packed:
    """The trees to choose from; none for alltoall."""

    bound: Bound
    candidates: tuple[Candidate, ...]


def packed(scene: Scene, wanted: str) -> Packed:
    """Return the trees that ``--trees`` leaves to choose from.

    Raises
    ------
    UsageError
        If the links allow no such trees, or the plan cache that is named cannot be used.
    """
    if scene.collective is Collective.ALLTOALL:
        return Packed(_direct_bound(scene), ())
    if len(scene.hosts) > 1:
        return _over_hosts(scene)
    best, certificate = _best(scene)
    bound = Bound(
        check_certificate(scene.topology, certificate),
        why(scene.topology, certificate, best).partition(": ")[2],
    )
    if wanted == "auto":
        return Packed(bound, candidates_for(scene.topology, scene.collective, scene.root))
    chosen = tuple(
        Candidate(name, in_shares(scene.topology, packing, certificate))
        for name, packing in _named(scene, wanted, best)
    )
    return Packed(bound, chosen)


def _over_hosts(scene: Scene) -> Packed:
    """Return trees in three phases: inside the hosts, between them, and inside again."""
    root = scene.root if scene.flow.is_rooted else None
    packing = plan_hosts(scene.hosts, scene.topology, scene.flow, root)
    bound = bound_over_hosts(scene, scene.flow)
    if packing.bound < bound.mb_per_s:
        why = "the links inside a host, with all other hosts drawn together to one rank"
        bound = Bound(packing.bound, why)
    return Packed(bound, (Candidate(OVER_HOSTS, packing),))


def bound_over_hosts(scene: Scene, flow: Flow) -> Bound:
    """Return what the network between the hosts allows."""
    count = len(scene.hosts)
    each = scene.network_mb_per_s / _MB_PER_GB
    why = f"{count} hosts whose networks carry {each:g} GB/s each way"
    return Bound(network_rate(flow, count, scene.network_mb_per_s), why)


def network_rate(flow: Flow, num_hosts: int, network_mb_per_s: int) -> Fraction:
    """Return what the network alone allows, in MB/s.

    Every byte of an allreduce enters all hosts but one twice, on the way to the root or from it;
    of a broadcast or reduce it passes the root's network once.

    >>> network_rate(Flow.BOTH, 3, 4000), network_rate(Flow.DOWN, 3, 4000)
    (Fraction(3000, 1), Fraction(4000, 1))
    """
    if flow is not Flow.BOTH:
        return Fraction(network_mb_per_s)
    return Fraction(network_mb_per_s * num_hosts, 2 * (num_hosts - 1))


def _best(scene: Scene) -> tuple[Packing, Certificate]:
    """Return the packing of the best rate with its proof, kept from an earlier run."""
    flow, root = scene.flow, scene.root if scene.flow.is_rooted else None
    return cached(
        command_cache_dir(),
        f"packing best {flow} {root} {scene.topology.content_hash}",
        lambda: pack(scene.topology, flow, root, loss=Fraction(0)),
        encode=packing_to_json,
        decode=packing_from_json,
    )


def _named(scene: Scene, wanted: str, best: Packing) -> Iterator[tuple[str, Packing]]:
    """Yield the packings of one name, with that name."""
    topology, flow, root = scene.topology, best.flow, best.root
    if wanted == "packed":
        yield wanted, best
    elif wanted == "few":
        yield "few packed", pack(topology, flow, root, loss=DEFAULT_LOSS)[0]
    elif wanted == "one-hop":
        yield wanted, _onehop(scene, best)
    else:
        for option in candidates(Timing(topology, scene.cost.latency_ns), best):
            if option.trees is Trees.SHALLOW:
                yield wanted, option.packing


def _onehop(scene: Scene, best: Packing) -> Packing:
    try:
        return onehop_packing(scene.topology, best.flow, best.root)
    except UsageError as err:
        raise UsageError(f"--trees one-hop: {str(err).partition(';')[0]}") from err


def _direct_bound(scene: Scene) -> Bound:
    """Return the rate of alltoall when every pair takes its widest link, by the fullest resource.

    Every rank hands each other one an n-th of its data, so a resource that p of the pairs take
    needs p / n of the time that one rank's data takes over it.
    """
    topology = scene.topology
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    widest: dict[tuple[int, int], tuple[int, tuple[str, ...]]] = {}
    for link in topology.links:
        width = min(capacity[name] for name in link.resources)
        if width > widest.get((link.src, link.dst), (0, ()))[0]:
            widest[link.src, link.dst] = width, link.resources
    takers: dict[str, int] = {}
    for _, names in widest.values():
        for name in names:
            takers[name] = takers.get(name, 0) + 1
    fullest = min(takers, key=lambda name: (Fraction(capacity[name], takers[name]), name))
    rate = Fraction(capacity[fullest] * topology.size, takers[fullest])
    return Bound(rate, f"{takers[fullest]} of the pairs share {fullest}")
