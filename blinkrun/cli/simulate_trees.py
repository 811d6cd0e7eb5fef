"""Which trees a simulation may choose from, and the bound that none of them exceeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from blinkrun.cli.simulate_scene import Scene
from blinkrun.errors import UsageError
from blinkrun.planner import predict
from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.explain import why
from blinkrun.planner.make import in_shares
from blinkrun.planner.multihost import plan_hosts
from blinkrun.planner.onehop import onehop_packing
from blinkrun.planner.packing import Flow, Packing
from blinkrun.planner.packing_json import packing_from_json, packing_to_json
from blinkrun.planner.plan import PlannedPacking
from blinkrun.planner.solve import DEFAULT_LOSS, pack
from blinkrun.planner.store import cached, command_cache_dir
from blinkrun.select.candidates import Candidate, candidates_for
from blinkrun.topology.hosts import units_per_mb_per_s
from blinkrun.types import Collective

OVER_HOSTS = "over hosts"
_MB_PER_GB = 1000


@dataclass(frozen=True, slots=True)
class Bound:
    """What no schedule exceeds, in MB/s, and why."""

    mb_per_s: Fraction
    why: str


class Trees:
    """The trees that ``--trees`` leaves to choose from; each thing is worked out when asked for."""

    def __init__(self, scene: Scene, wanted: str) -> None:
        self.scene = scene
        self.wanted = wanted

    @cached_property
    def bound(self) -> Bound:
        """What no schedule over these links exceeds.

        Raises
        ------
        UsageError
            If the plan cache that is named cannot be used.
        """
        scene = self.scene
        if scene.collective is Collective.ALLTOALL:
            return _direct_bound(scene)
        if len(scene.hosts) > 1:
            return self._bound_over_hosts()
        packing, certificate = self._best
        mb_per_s = check_certificate(scene.topology, certificate)
        return Bound(mb_per_s, why(scene.topology, certificate, packing).partition(": ")[2])

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """The trees, at least one packing.

        Raises
        ------
        UsageError
            If the links allow no such trees.
        """
        scene = self.scene
        if len(scene.hosts) > 1:
            return (Candidate(OVER_HOSTS, self._over_hosts),)
        if self.wanted == "auto":
            return candidates_for(scene.topology, scene.collective, scene.root)
        best, certificate = self._best
        return tuple(
            Candidate(name, in_shares(scene.topology, packing, certificate))
            for name, packing in _named(scene, self.wanted, best)
        )

    @cached_property
    def _best(self) -> tuple[Packing, Certificate]:
        """The packing of the best rate with its proof, kept from an earlier run."""
        topology, flow = self.scene.topology, self.scene.flow
        root = self.scene.root if flow.is_rooted else None
        return cached(
            command_cache_dir(),
            f"packing best {flow} {root} {topology.content_hash}",
            lambda: pack(topology, flow, root, loss=Fraction(0)),
            encode=packing_to_json,
            decode=packing_from_json,
        )

    @cached_property
    def _over_hosts(self) -> PlannedPacking:
        """Trees in three phases: inside the hosts, between them, and inside again."""
        scene = self.scene
        root = scene.root if scene.flow.is_rooted else None
        return plan_hosts(scene.hosts, scene.topology, scene.flow, root)

    def _bound_over_hosts(self) -> Bound:
        network = bound_over_hosts(self.scene)
        bound = self._over_hosts.bound / units_per_mb_per_s(self.scene.topology)
        if bound >= network.mb_per_s:
            return network
        why = "the links inside a host, with all other hosts drawn together to one rank"
        return Bound(bound, why)


def bound_over_hosts(scene: Scene) -> Bound:
    """Return what the network between the hosts allows."""
    count = len(scene.hosts)
    each = float(scene.network_mb_per_s / _MB_PER_GB)
    why = f"{count} hosts whose networks carry {each:g} GB/s each way"
    sizes = [host.size for host in scene.hosts]
    return Bound(network_rate(scene.flow, sizes, scene.network_mb_per_s), why)


def network_rate(flow: Flow, sizes: Sequence[int], network_mb_per_s: Fraction) -> Fraction:
    """Return what the network alone allows, in MB/s, between hosts of so many ranks.

    Every byte of an allreduce enters all hosts but one twice, on the way to the root or from it;
    of a broadcast or reduce it passes the root's network once. The blocks of all other ranks enter,
    or leave, the smallest host in allgather and reducescatter.

    >>> rate = Fraction(4000)
    >>> [int(network_rate(flow, (2, 2, 2), rate)) for flow in (Flow.BOTH, Flow.DOWN, Flow.ALL_UP)]
    [3000, 4000, 6000]
    """
    if flow.is_joint:
        return network_mb_per_s * Fraction(sum(sizes), sum(sizes) - min(sizes))
    if flow is not Flow.BOTH:
        return network_mb_per_s
    return network_mb_per_s * Fraction(len(sizes), 2 * (len(sizes) - 1))


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
        timing = predict.Timing(topology, scene.cost.latency_ns)
        for option in predict.candidates(timing, best):
            if option.trees is predict.Trees.SHALLOW:
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
    rate /= units_per_mb_per_s(topology)
    return Bound(rate, f"{takers[fullest]} of the pairs share {fullest}")
