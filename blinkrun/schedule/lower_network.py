"""The edges of a tree that lead from host to host: streams of messages, and slots for sums.

On its way up a partial sum is sent from a slot of the child and arrives in one of the parent, so
both ends may be some chunks ahead; on its way down data is sent from where it lies and arrives in
OUTPUT. Nothing here depends on how ranks address the memory of their own host: what two hosts say
to each other is the same, and each may choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blinkrun.planner.plan import PlannedTree
from blinkrun.schedule.ir import Arrived, Buffer, Operand, Part, Recv, Reduce, Send, Sent, Step
from blinkrun.schedule.lower_builder import Builder, Phase, waits
from blinkrun.types import Rank


class Network:
    """A tree's edges by kind, with a stream for each that crosses the network.

    Attributes
    ----------
    near, far : dict
        Children of every rank on its own host, and on others, ascending.
    heads : tuple of Rank
        Ranks whose parent is on another host: data comes to a host there, and leaves it.
    """

    def __init__(self, builder: Builder, tree: PlannedTree) -> None:
        self._builder = builder
        self._tree = tree
        self.near: dict[Rank, tuple[Rank, ...]] = {}
        self.far: dict[Rank, tuple[Rank, ...]] = {}
        for rank in range(builder.size):
            children = tree.children(rank)
            self.far[rank] = tuple(child for child in children if builder.is_far(rank, child))
            self.near[rank] = tuple(child for child in children if not builder.is_far(rank, child))
        self.heads = tuple(sorted(child for children in self.far.values() for child in children))
        self._up: dict[Rank, int] = {}  # streams, by the child
        self._down: dict[Rank, int] = {}
        self.arriving: dict[Rank, Operand] = {}
        """Slots at the parent for the sums of its children on other hosts, by child."""

    def send_up(self, slot: Operand) -> list[Step]:
        """Return the step that starts the sum in a slot of a head on its way to the parent."""
        head = slot.rank
        return [Send(slot, self._tree.parents[head], self._up_stream(head))]

    def is_sent_up(self, head: Rank) -> list[Step]:
        """Return the step that holds until the slot of `send_up` is free for this chunk."""
        lag = self._builder.slot_depth
        return [Sent(self._tree.parents[head], self._up_stream(head), lag)]

    def expect_sums(self, rank: Rank, part: Part, taken: int) -> None:
        """Add the channels that receive sums from children on other hosts into slots.

        They are as far ahead of `taken`, the flag of `rank` that says that it has read them, as
        slots have room.
        """
        for child in self.far[rank]:
            self.arriving[child] = slot = self._builder.slot(rank)
            free = waits([(rank, taken)], lag=self._builder.slot_depth)
            step = Recv(slot, rank=child, stream=self._up_stream(child))
            self._builder.add(rank, Phase.POST, self._tree.root, part, [*free, step])

    def own_sum(self, rank: Rank) -> Operand:
        """Return a new slot of `rank` for the sum of its own host."""
        return self._builder.slot(rank)

    def in_host_order(self, held: Mapping[Rank, Operand]) -> tuple[Operand, ...]:
        """Return what ranks hold in the order of their hosts, then of the ranks."""
        hosts = self._builder.hosts
        return tuple(held[rank] for rank in sorted(held, key=lambda rank: (hosts[rank], rank)))

    def sums_arrived(self, rank: Rank) -> list[Step]:
        """Return the steps that hold until the sums of all children on other hosts are there."""
        return [Arrived(child, self._up_stream(child)) for child in self.far[rank]]

    def send_down(self, source: Operand) -> list[Step]:
        """Return the steps that send `source` to the children of its rank on other hosts."""
        return [step for child in self.far[source.rank] for step in self._send_to(child, source)]

    def send_from_root(self, source: Operand, part: Part) -> None:
        """Add a channel for every child of the root on another host that sends it `source`."""
        for child in self.far[source.rank]:
            steps = self._send_to(child, source)
            self._builder.add(source.rank, Phase.PUT, self._tree.root, part, steps)

    def expect_down(self, output: Operand, part: Part, *, taken: int | None) -> None:
        """Add the channel that receives from the parent of a head into its OUTPUT.

        It is ahead of `taken`, the flag that the head signals once a chunk has come, by a few; if
        there is none, of the last message that is through.
        """
        head, lag = output.rank, self._builder.slot_depth
        held = waits([(head, taken)], lag) if taken is not None else self.has_come_down(head, lag)
        steps = [*held, self.recv_down(output)]
        self._builder.add(head, Phase.POST, self._tree.root, part, steps)

    def recv_down(self, output: Operand) -> Step:
        """Return the step that receives from the parent of a head into its OUTPUT."""
        head = output.rank
        return Recv(output, self._tree.parents[head], self._down_stream(head))

    def has_come_down(self, head: Rank, lag: int = 0) -> list[Step]:
        """Return the step that holds until what `recv_down` receives is there."""
        return [Arrived(self._tree.parents[head], self._down_stream(head), lag)]

    def is_awaited(self, rank: Rank) -> bool:
        """Return whether others, or own messages, wait for data to be at `rank` on the way down."""
        if rank == self._tree.root:
            return bool(self.near[rank])
        return rank not in self.heads or bool(self._tree.children(rank))

    def _send_to(self, child: Rank, source: Operand) -> list[Step]:
        stream = self._down_stream(child)
        # Not for the memory, which is another for each chunk: few messages at a time.
        return [Sent(child, stream, self._builder.slot_depth), Send(source, child, stream)]

    def _up_stream(self, head: Rank) -> int:
        if head not in self._up:
            self._up[head] = self._builder.stream(head, self._tree.parents[head])
        return self._up[head]

    def _down_stream(self, head: Rank) -> int:
        if head not in self._down:
            self._down[head] = self._builder.stream(self._tree.parents[head], head)
        return self._down[head]


def sum_up(  # noqa: PLR0913 - all that the steps name
    net: Network,
    rank: Rank,
    near: Mapping[Rank, Operand],
    dsts: tuple[Operand, ...],
    *,
    pushed: Sequence[str] = (),
    pulled: Mapping[Rank, str] | None = None,
    final: bool = False,
) -> list[Step]:
    """Return the steps that add INPUT, what is `near`, and what arrives, into `dsts`.

    Sums that arrive are added in the order of their hosts, the own one among them, whose sum is
    stored first, as those of the others were: the bits are the same whichever host's rank does it.

    Parameters
    ----------
    near : mapping of Rank to Operand
        What children on the same host hold.
    pushed : sequence of str, optional
        Kinds of the links to `dsts`.
    pulled : mapping of Rank to str, optional
        Kinds of the links from `near`.
    final : bool, default False
        Of the last step.
    """
    held = dict(sorted({rank: Operand(rank, Buffer.INPUT), **near}.items()))
    kinds = pulled or {}
    own_via = [kinds.get(holder, "") for holder in held]
    via = tuple(pushed) or ("",) * len(dsts)
    if not net.far[rank]:
        return [Reduce(dsts, tuple(held.values()), final=final, via=(*via, *own_via))]
    slot = net.own_sum(rank)
    sums = net.in_host_order(
        {rank: slot, **{child: net.arriving[child] for child in net.far[rank]}}
    )
    return [
        Reduce((slot,), tuple(held.values()), via=("", *own_via)),
        *net.sums_arrived(rank),
        Reduce(dsts, sums, final=final, via=(*via, *("" for _ in sums))),
    ]


def held_by(
    net: Network, rank: Rank, near: Mapping[Rank, Operand], block: int = 0
) -> dict[Rank, Operand]:
    """Return what `rank` adds up, by holder: its INPUT, what is `near`, and what arrives."""
    held = {rank: Operand(rank, Buffer.INPUT, block), **near}
    held |= {child: net.arriving[child] for child in net.far[rank]}
    return dict(sorted(held.items()))
