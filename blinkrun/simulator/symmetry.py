"""Allreduce over many equal hosts, timed by looking at one of them.

`plan_equal_hosts` plans a tree for every local tree k and every root host g, alike for all g. So a
rotation of the hosts takes the schedule to itself: host 0 does in tree (k, g) what host h does in
tree (k, g + h), at the same time. It is enough to run host 0's channels, of all trees. Where they
exchange messages with host h in tree (k, g), host 0 does h's part in tree (k, g - h) at the same
time; where a message takes what host h receives, its image takes what host 0 receives: so every
message takes both directions of host 0's.

What is not quite alike is left out: parts are cut at cache lines, and first chunks differ by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from blinkrun.errors import UsageError
from blinkrun.planner.multihost import LocalTrees
from blinkrun.planner.packing import Tree
from blinkrun.planner.plan import PlannedPacking, PlannedTree
from blinkrun.schedule.chunking import ALIGN_BYTES, Chunks, chunks_of
from blinkrun.schedule.ir import Part, Program
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.streams import Stream
from blinkrun.schedule.verify_static import lanes
from blinkrun.simulator.cost import OURS, Cost
from blinkrun.simulator.engine import Engine, usage_of
from blinkrun.simulator.load import Loader, check_call
from blinkrun.simulator.run import Run
from blinkrun.simulator.timed import (
    Load,
    TimedChannel,
    TimedHold,
    TimedPost,
    TimedReduce,
    TimedStep,
    TimedStream,
)
from blinkrun.topology.between import FINE_UNIT, Network, scale_of
from blinkrun.topology.graph import Link, LinkKind, Resource, Topology
from blinkrun.types import Collective, Rank

_HOST = "host 0"
_WAYS = (f"{_HOST} network in", f"{_HOST} network out")


def simulate_symmetric(  # noqa: PLR0913 - all that a run depends on
    host: Topology,
    local: LocalTrees,
    *,
    num_hosts: int,
    network_mb_per_s: Fraction | int,
    size_bytes: int,
    itemsize: int = 4,
    chunk_bytes: int = 0,
    channels_per_tree: int = 1,
    cost: Cost = OURS,
) -> Run:
    """Return how long allreduce takes over `num_hosts` equal hosts.

    Within a hundredth what `simulate` says of the same plan for all hosts, in the time that one
    host takes.

    Parameters
    ----------
    host : Topology
        One of the hosts, in MB/s.
    local : LocalTrees
        As `plan_equal_hosts` plans them.
    num_hosts : int
        At least 2.
    network_mb_per_s : Fraction or int
        What a host sends, and what it receives.
    size_bytes, itemsize, chunk_bytes, cost
        As for `simulate`.
    channels_per_tree : int, default 1
        As for `lower_packing`.

    Returns
    -------
    Run
        `usage` is that of the first host; there are no transfers.

    Raises
    ------
    UsageError
        If there are less than two hosts, or a number makes no sense.

    Examples
    --------
    >>> from blinkrun.planner.multihost import plan_equal_hosts
    >>> from blinkrun.topology.catalog import machine
    >>> dgx1 = machine("dgx-1v", "all")
    >>> local, rate = plan_equal_hosts(dgx1, num_hosts=16, network_mb_per_s=5000)
    >>> run = simulate_symmetric(
    ...     dgx1, local, num_hosts=16, network_mb_per_s=5000, size_bytes=10**8, chunk_bytes=250_000
    ... )
    >>> 0.9 < run.algbw_gb_per_s * 1000 / rate < 1
    True
    """
    if num_hosts < 2 or network_mb_per_s <= 0 or channels_per_tree < 1:
        raise UsageError(
            f"{num_hosts} hosts at {network_mb_per_s} MB/s, {channels_per_tree} channels per tree"
        )
    check_call(size_bytes, itemsize, chunk_bytes)
    hosts = _Hosts(host, local, num_hosts, channels_per_tree)
    loaded = _load(
        hosts,
        _with_network(hosts, Network(network_mb_per_s)),
        cost,
        (size_bytes, itemsize, chunk_bytes),
    )
    engine = Engine(loaded)
    engine.run()
    return Run(
        collective=Collective.ALLREDUCE,
        program="trees",
        num_ranks=num_hosts * host.size,
        size_bytes=size_bytes,
        chunk_bytes=chunk_bytes,
        time_ns=engine.now_ns,
        usage=usage_of(loaded, engine.account(), len(host.resources) + len(_WAYS)),
    )


@dataclass(frozen=True, slots=True)
class _Hosts:
    """Equal hosts; every local tree is cut for so many hosts, and each of these for channels.

    Ranks 0 to n - 1 are host 0's. Rank n + h - 1 stands for the root, of whichever tree, on host h.
    """

    host: Topology
    local: LocalTrees
    num_hosts: int
    channels: int

    @property
    def roots(self) -> list[Rank]:
        """Roots of the local trees."""
        return sorted({each.tree.root for each in self.local.trees})

    @property
    def num_trees(self) -> int:
        """Trees over all hosts, where every channel of a tree counts as one."""
        return len(self.local.trees) * self.channels * self.num_hosts


def _with_network(hosts: _Hosts, network: Network) -> Topology:
    """Return host 0 and its ways to the other hosts' roots."""
    n = hosts.host.size
    own = [
        replace(link, resources=tuple(f"{_HOST} {name}" for name in link.resources))
        for link in hosts.host.links
    ]
    between = [
        Link(*ends, _WAYS, LinkKind.NETWORK)
        for root in hosts.roots
        for other in range(n, n + hosts.num_hosts - 1)
        for ends in ((root, other), (other, root))
    ]
    scale = scale_of([network])
    inside = [
        Resource(f"{_HOST} {each.name}", each.capacity * scale) for each in hosts.host.resources
    ]
    return Topology(
        name=f"{hosts.num_hosts} x {hosts.host.name}",
        devices=tuple(range(n + hosts.num_hosts - 1)),
        links=(*own, *between),
        resources=(*inside, *(Resource(way, network.capacity(scale)) for way in _WAYS)),
        unit=hosts.host.unit if scale == 1 else FINE_UNIT,
    )


def _load(hosts: _Hosts, topology: Topology, cost: Cost, call: tuple[int, int, int]) -> Load:
    """Return host 0's channels in all trees; `call` is bytes in all, of an element, of a chunk."""
    images = _Images(hosts)
    programs = [(_on_top(hosts, each.tree), _below(hosts, each.tree)) for each in hosts.local.trees]
    flags = max(program.flags for both in programs for program in both)
    loader = Loader(topology, cost, num_ranks=hosts.host.size, flags_per_rank=flags)
    timed: list[TimedChannel] = []
    for at, both in enumerate(programs):
        for part in range(hosts.channels):
            chunks = _chunks(hosts, at, part, call, is_cut=both[0].pipelined)
            roles = [
                [
                    loader.channel(lane, chunks, call[1])
                    for lane in lanes(program)
                    if lane.rank < hosts.host.size
                ]
                for program in both
            ]
            first = (at * hosts.channels + part) * hosts.num_hosts
            timed += images.of(roles, flags, first, loader.streams)
    return replace(
        loader.done(timed),
        flags_per_rank=hosts.num_trees * flags,
        streams=images.streams(loader.streams),
    )


class _Images:
    """Makes host 0's channels in the trees of all root hosts, with flags and streams of their own.

    A stream is told by the trees that it belongs to, by whether it goes to the root of all, and by
    the tree in which host 0 is at its lower end.
    """

    def __init__(self, hosts: _Hosts) -> None:
        self._hosts = hosts
        self._streams: dict[tuple[int, bool, int, int], int] = {}

    def of(
        self,
        roles: Sequence[Sequence[TimedChannel]],
        flags: int,
        first: int,
        streams: Mapping[Stream, TimedStream],
    ) -> Iterator[TimedChannel]:
        """Yield the channels; the tree whose root is on host 0 has number `first`.

        In `roles` are the channels of that tree and of any other.
        """
        named = list(streams)
        for top in range(self._hosts.num_hosts):

            def renamed(step: TimedStep, top: int = top) -> TimedStep:
                if isinstance(step, TimedReduce):
                    return step
                if isinstance(step, (TimedPost, TimedHold)):
                    return replace(step, stream=self._stream(named[step.stream], first, top))
                rank, number = divmod(step.flag, flags)
                return replace(
                    step, flag=(rank * self._hosts.num_trees + first + top) * flags + number
                )

            for channel in roles[min(top, 1)]:
                yield replace(channel, steps=tuple(map(renamed, channel.steps)))

    def streams(self, streams: Mapping[Stream, TimedStream]) -> tuple[TimedStream, ...]:
        """Return all streams; between whichever hosts they run, they cross the same."""
        any_stream = next(iter(streams.values()))
        return tuple(
            replace(any_stream, name=f"stream {'to' if is_up else 'from'} the root of tree {tree}")
            for _, is_up, tree, _ in self._streams
        )

    def _stream(self, stream: Stream, first: int, top: int) -> int:
        n = self._hosts.host.size
        is_received = stream.dst < n
        is_up = is_received is (top == 0)
        other = (stream.src if is_received else stream.dst) - n + 1
        tree = self._hosts.num_hosts - other if top == 0 else top
        key = (first, is_up, tree, stream.number)
        return self._streams.setdefault(key, len(self._streams))


def _chunks(
    hosts: _Hosts, at: int, part: int, call: tuple[int, int, int], *, is_cut: bool
) -> Chunks:
    """Return the chunks of one of the equal parts of a local tree, rounded up to a cache line."""
    size_bytes, itemsize, chunk_bytes = call
    pieces = hosts.num_hosts * hosts.channels
    parts = [each.part for each in hosts.local.trees]
    shares = lcm(*(each.denominator for each in parts)) * pieces
    width = int(parts[at] * shares) // pieces
    start = int(sum(parts[:at], Fraction(0)) * shares) + part * width
    count = size_bytes // itemsize
    chunk = max(1, chunk_bytes // itemsize) if chunk_bytes and is_cut else 0
    skip = chunks_of(Part(start, start + width), shares, count, itemsize, chunk).skip
    align = ALIGN_BYTES // itemsize
    elements = -(-count * width // (shares * align)) * align
    return Chunks(0, elements, chunk or max(1, elements), skip)


def _on_top(hosts: _Hosts, tree: Tree) -> Program:
    """Return the program of a tree whose root is host 0's: the other hosts' roots hang on it.

    Where hosts have several ranks each of those has a child, since they do more than a leaf does.
    """
    n, others = hosts.host.size, range(1, hosts.num_hosts)
    parents = [*tree.parents(n), *[tree.root] * len(others)]
    host_of = [*[0] * n, *others]
    if n > 1:
        parents += range(n, n + len(others))
        host_of += others
    return _program(hosts, tree, tree.root, parents, host_of)


def _below(hosts: _Hosts, tree: Tree) -> Program:
    """Return the program of a tree whose root is another host's."""
    n = hosts.host.size
    parents = [*tree.parents(n), -1]
    parents[tree.root] = n
    return _program(hosts, tree, n, parents, [*[0] * n, 1])


def _program(
    hosts: _Hosts, tree: Tree, root: Rank, parents: Sequence[Rank], host_of: Sequence[int]
) -> Program:
    """Lower one tree; what host 0's own tree does not name goes over the network."""
    up = [LinkKind.NETWORK.value] * len(parents)
    down = list(up)
    for edge in tree.edges:
        for at in edge.links:
            link = hosts.host.links[at]
            (up if link.src == edge.child else down)[edge.child] = link.kind.value
    up[root] = down[root] = ""
    planned = PlannedTree(root, tuple(parents), 0, 1, tuple(up), tuple(down))
    packing = PlannedPacking(1, (planned,), Fraction(1), Fraction(1), hosts.host.unit)
    return lower_packing(packing, Collective.ALLREDUCE, hosts=tuple(host_of))
