"""The ring library on a topology: the programs that it would choose from, and their chunks.

What NCCL 2.4 does, as its sources and papers describe it:

- *rings* for every collective: all NVLink rings that there are side by side, in both directions;
  where there is none, one ring in the order of the devices, over NVLink where a hop has one and
  PCIe elsewhere (`planner.rings`). A ring takes one lane of a hop, however many there are;
- *double binary trees* for allreduce of small data, where any two ranks are linked through
  switches (`planner.double_trees`); the caller takes whichever is faster for the size;
- *between hosts* one ring that enters and leaves every host through one GPU's PCIe link and one
  NIC: Blink's paper [1]_ (section 5.5, figure 19) finds that NCCL gains nothing from a faster
  network because of it.

What a ring leaves unused is not in `PeerProgram.topology`: lanes that no ring takes, and the
network beyond that PCIe link (`through_one_gpu`).

Chunks follow NCCL's buffers [2]_: 4 MB for each channel in 8 steps of 512 KB. Ring allreduce,
allgather and reducescatter hand on slices of 2 steps, broadcast and reduce of 1 step. Data too
small for that is cut into a slice for each half of a rank's block, down to the 16 KB that the
low-latency protocol moves at a time. Trees start from one step and halve it, down to 32 KB, until
there are enough chunks to fill the tree.

References
----------
.. [1] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020.
.. [2] NCCL 2.4, src/init.cc (DEFAULT_BUFFER_SIZE_BYTES), src/include/collectives.h (…_CHUNKSTEPS,
   …_SLICESTEPS), src/enqueue.cc (lastChunkSize), src/include/devcomm.h (NCCL_LL_SLICE_LINES).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from blinkrun.errors import ProgramError
from blinkrun.planner.double_trees import double_trees
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import RingPeer, lane_width, ring_peer
from blinkrun.schedule.ir import Program
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.lower_rings import NAME as RING
from blinkrun.schedule.lower_rings import directed_rings, lower_rings
from blinkrun.topology.graph import LinkKind, Topology
from blinkrun.topology.hosts import through_one_gpu
from blinkrun.types import Collective, Rank

DOUBLE_TREES = "double binary trees"

STEP_BYTES = 4 << 20 >> 3  # 4 MB of buffer in 8 steps
SLICES_IN_FLIGHT = (1, 2, 4)
"""How many slices of a channel may be under way: what its buffer holds at the most is 8 steps."""
LL_SLICE_BYTES = 2048 * 8  # lines of the low-latency protocol, 8 bytes of data in each
_SLICE_STEPS = {Collective.BROADCAST: 1, Collective.REDUCE: 1}  # others 2
# an allreduce over trees has so many chunks per hop before they get smaller than that
_TREE_CHUNKS = ((8, 128 << 10), (4, 64 << 10), (1, 32 << 10))

_FLOWS = {
    Collective.ALLREDUCE: Flow.BOTH,
    Collective.BROADCAST: Flow.DOWN,
    Collective.REDUCE: Flow.UP,
    Collective.ALLGATHER: Flow.ALL_DOWN,
    Collective.REDUCESCATTER: Flow.ALL_UP,
}


@dataclass(frozen=True, slots=True)
class PeerProgram:
    """A program that a ring library might choose.

    Attributes
    ----------
    name : str
        ``ring`` or ``double binary trees``.
    program : Program
    topology : Topology
        Where it is to be timed: the caller's, with as much of the links as the library takes.
    chunk_bytes : int
        Its chunks where there is data enough; `chunk_bytes_of` tells those of a size.
    channels : int
        Into how many channels the library cuts the data.
    lanes : int
        How many of these one part of the program stands for: its chunks are as many times larger.
    pieces : int
        Pieces of a channel's data that go their own way: the ranks' blocks of an allreduce; 1
        elsewhere.
    depth : int
        Hops of the trees; 0 for rings.
    """

    name: str
    program: Program
    topology: Topology
    chunk_bytes: int
    channels: int
    lanes: int
    pieces: int = 1
    depth: int = 0

    def chunk_bytes_of(self, size_bytes: int) -> int:
        """Return the chunks that the library takes for a size.

        Parameters
        ----------
        size_bytes : int
            Of the collective, as nccl-tests counts.

        Examples
        --------
        >>> from blinkrun.topology.catalog import machine
        >>> ring, trees = ring_programs(machine("dgx-2"), Collective.ALLREDUCE)
        >>> [ring.chunk_bytes_of(size) // ring.lanes for size in (1 << 30, 10 << 20, 1024)]
        [1048576, 54614, 16384]
        >>> [trees.chunk_bytes_of(size) // trees.lanes for size in (1 << 30, 10 << 20, 1024)]
        [524288, 65536, 32768]
        """
        if self.depth:
            return self.lanes * self._tree_chunk(size_bytes)
        block = -(-size_bytes // (self.channels * self.pieces))
        slice_bytes = max(-(-block // 2), LL_SLICE_BYTES)
        return min(self.chunk_bytes, self.lanes * slice_bytes)

    def _tree_chunk(self, size_bytes: int) -> int:
        chunk = STEP_BYTES
        for per_hop, least in _TREE_CHUNKS:
            while chunk > least and size_bytes // (self.channels * chunk) < self.depth * per_hop:
                chunk //= 2
        return chunk


def ring_programs(
    topology: Topology,
    collective: Collective,
    root: Rank = 0,
    *,
    lane: int | None = None,
    slices: int = 1,
) -> tuple[PeerProgram, ...]:
    """Return what a ring library would choose from for a collective, that for large data first.

    Parameters
    ----------
    topology : Topology
        All links of the allocation, `induce`d; hosts as `join_hosts` gives them.
    collective : Collective
        Broadcast, reduce, allreduce, allgather or reducescatter.
    root : Rank, default 0
        Of broadcast and reduce.
    lane : int, optional
        Width of an NVLink lane in the topology's unit; as for `ring_peer`. Behind switches whose
        ports are given in MB/s only this tells how many rings there are, and so the chunks.
    slices : int, default 1
        How many slices of a channel are under way at the same time, of `SLICES_IN_FLIGHT`: while
        one waits for its step another one moves. Each goes in a channel of its own.

    Returns
    -------
    tuple of PeerProgram
        The ring, and for allreduce behind switches the double binary trees.

    Raises
    ------
    ProgramError
        If no ring joins the ranks, or rings know no such collective.
    PlanError
        If there is a single rank.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> [each.name for each in ring_programs(machine("dgx-2"), Collective.ALLREDUCE)]
    ['ring', 'double binary trees']
    >>> [each.name for each in ring_programs(machine("dgx-1v"), Collective.ALLREDUCE)]
    ['ring']
    """
    if collective not in _FLOWS:
        raise ProgramError(f"{collective.label} is nothing that rings do")
    flow = _FLOWS[collective]
    topology = through_one_gpu(topology)
    peer = ring_peer(topology, flow, root if flow.is_rooted else None, lane=lane)
    found = [_ring(peer, _lanes_taken(topology, peer, lane), collective, root, slices)]
    if collective is Collective.ALLREDUCE and _is_switched(topology):
        found.append(_double_trees(topology, len(peer.rings), slices))
    return tuple(found)


def _lanes_taken(topology: Topology, peer: RingPeer, lane: int | None) -> Topology:
    """Return the topology with only so many lanes between two ranks as rings run there."""
    taken: Counter[str] = Counter(
        name
        for ring in peer.rings
        for at in (*ring.links, *ring.back)
        for name in topology.links[at].resources
        if topology.links[at].kind in (LinkKind.NVLINK, LinkKind.XGMI)
    )
    wide = lane_width(topology, lane)
    resources = (
        replace(each, capacity=min(each.capacity, wide * taken[each.name]))
        if each.name in taken
        else each
        for each in topology.resources
    )
    return replace(topology, resources=tuple(resources))


def _ring(
    peer: RingPeer, topology: Topology, collective: Collective, root: Rank, slices: int
) -> PeerProgram:
    program = lower_rings(peer, topology, collective, root, channels_per_ring=slices)
    channels = sum(2 if ring.back else 1 for ring in peer.rings)
    lanes = max(1, channels // len(directed_rings(peer, topology)))
    slice_bytes = STEP_BYTES * _SLICE_STEPS.get(collective, 2)
    pieces = 1 if collective.is_rooted else topology.size
    return PeerProgram(RING, program, topology, slice_bytes * lanes, channels, lanes, pieces)


def _double_trees(topology: Topology, channels: int, slices: int) -> PeerProgram:
    packing = double_trees(topology)
    program = lower_packing(packing, Collective.ALLREDUCE, channels_per_tree=slices)
    lanes = max(1, channels // len(packing.trees))
    chunk_bytes = STEP_BYTES * lanes
    return PeerProgram(
        DOUBLE_TREES, program, topology, chunk_bytes, channels, lanes, depth=packing.depth
    )


def _is_switched(topology: Topology) -> bool:
    """Return whether any two ranks are linked through switches of the fabric."""
    linked = {(link.src, link.dst) for link in topology.links if link.kind is LinkKind.NVSWITCH}
    return len(linked) == topology.size * (topology.size - 1) > 0
