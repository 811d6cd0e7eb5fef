"""Many equal hosts: one of them is simulated, the others are its images.

The program of a thousand ranks is never made, so it cannot be verified as a whole. The same trees
over three hosts can: with three, a root has one child inside the network's star that is like all
others, and another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import lcm

from blinkrun.cli.simulate_options import LEAST_CHUNK_BYTES, SimulateOptions
from blinkrun.cli.simulate_scene import Scene
from blinkrun.cli.simulate_search import Found, check_chunk
from blinkrun.cli.simulate_trees import OVER_HOSTS, Bound, bound_over_hosts
from blinkrun.planner.multihost import LocalTrees, plan_equal_hosts
from blinkrun.planner.packing import Tree
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.planner.report import depth_of
from blinkrun.planner.rings import RingKind, RingPeer
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.routes import Routes
from blinkrun.schedule.verify import verify
from blinkrun.simulator.symmetry import simulate_symmetric
from blinkrun.topology.graph import LinkKind, Topology
from blinkrun.topology.hosts import join_hosts, program_hosts
from blinkrun.types import Collective

_CHUNKS = (2, 8, 32)  # in how many a tree's part is cut
_VERIFIED_HOSTS = 3


class ManyHosts:
    """The trees of a scene of equal hosts; as `Search`, but for what needs all ranks."""

    def __init__(self, scene: Scene, options: SimulateOptions) -> None:
        self.scene = scene
        self.options = options
        self.host = scene.hosts[0]
        self.num_hosts = len(scene.hosts)
        self.local, _ = plan_equal_hosts(
            self.host, num_hosts=self.num_hosts, network_mb_per_s=scene.network_mb_per_s
        )
        self.bound: Bound = bound_over_hosts(scene)
        verify_over_hosts(self.host, self.local)

    def fastest(self, size_bytes: int) -> Found:
        """Return the channels and chunks with the least time, the first of equals."""
        tried = [self._run(size_bytes, chunk) for chunk in self._chunks(size_bytes)]
        return min(tried, key=lambda found: found.run.time_ns)

    def ring(self, size_bytes: int) -> Found | None:
        """Return None: rings over so many ranks are not simulated."""
        return None

    def ring_peer(self) -> RingPeer:
        """Return no rings."""
        return RingPeer(RingKind.NONE, (), Fraction(0), is_exact=True)

    def again(self, found: Found) -> Found:
        """Return `found`: there is no timeline of one host for all."""
        return found

    @property
    def num_trees(self) -> int:
        """Trees over all hosts."""
        return len(self.local.trees) * self.num_hosts

    def _chunks(self, size_bytes: int) -> Iterator[int]:
        asked = self.options.chunk_bytes
        if asked is not None:
            check_chunk(asked, size_bytes)
            yield asked
            return
        part = size_bytes // self.num_trees
        chunks = [part // count // LEAST_CHUNK_BYTES * LEAST_CHUNK_BYTES for count in _CHUNKS]
        yield from dict.fromkeys(max(chunk, LEAST_CHUNK_BYTES) for chunk in chunks)

    def _run(self, size_bytes: int, chunk_bytes: int) -> Found:
        channels = self.options.channels or 1
        run = simulate_symmetric(
            self.host,
            self.local,
            num_hosts=self.num_hosts,
            network_mb_per_s=self.scene.network_mb_per_s,
            size_bytes=size_bytes,
            chunk_bytes=chunk_bytes,
            channels_per_tree=channels,
            cost=self.scene.cost,
        )
        depth = 1 + max(depth_of(each.tree) for each in self.local.trees)
        return Found(OVER_HOSTS, run, self.num_trees, depth, channels)


def verify_over_hosts(host: Topology, local: LocalTrees) -> None:
    """Return if allreduce over a few such hosts is right.

    Raises
    ------
    ProgramError
        If it is not.
    """
    joined = join_hosts([host] * _VERIFIED_HOSTS, network_gbps=1)
    packing = over_equal_hosts(host, local, _VERIFIED_HOSTS)
    program = lower_packing(packing, Collective.ALLREDUCE, hosts=program_hosts(joined))
    verify(program, links=Routes(joined).pairs())


def over_equal_hosts(host: Topology, local: LocalTrees, num_hosts: int) -> PlannedPacking:
    """Return local trees as trees over all ranks of so many hosts: each host is on top of some."""
    shares = lcm(*(each.part.denominator for each in local.trees)) * num_hosts
    trees: list[PlannedTree] = []
    for each in local.trees:
        for top in range(num_hosts):
            start = trees[-1].stop if trees else 0
            stop = start + int(each.part * shares) // num_hosts
            trees.append(_over_hosts(host, each.tree, top, num_hosts, (start, stop)))
    rate = Fraction(1)  # nobody asks how fast it is
    return PlannedPacking(shares, tuple(trees), rate, rate, host.unit)


def _over_hosts(
    host: Topology, tree: Tree, top: int, num_hosts: int, shares: tuple[int, int]
) -> PlannedTree:
    """Return one tree: `top`'s local tree, and the others below its root."""
    n = host.size
    own = tree.parents(n)
    up, down = [LinkKind.NETWORK.value] * n, [LinkKind.NETWORK.value] * n
    for edge in tree.edges:
        for at in edge.links:
            link = host.links[at]
            (up if link.src == edge.child else down)[edge.child] = link.kind.value
    root = top * n + tree.root
    parents = [root if p < 0 else h * n + p for h in range(num_hosts) for p in own]
    parents[root] = -1
    ups, downs = up * num_hosts, down * num_hosts
    ups[root] = downs[root] = ""
    return PlannedTree(root, tuple(parents), *shares, tuple(ups), tuple(downs))
