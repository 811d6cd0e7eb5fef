"""Allreduce over a tree: up to the root, one fused step there, and down again.

Where an edge leads to another host, a partial sum is sent up from a slot of the child and the
result comes down into its OUTPUT, see `lower_network`; inside a host it is read and written where
it lies. A rank to which sums of other hosts come stores that of its own host first (`sum_up`).
"""

from __future__ import annotations

from collections.abc import Sequence

from blinkrun.planner.plan import PlannedTree
from blinkrun.schedule.ir import Addressing, Buffer, Operand, Part, Reduce, Signal, Step
from blinkrun.schedule.lower_builder import WINDOW, Builder, Phase, waits
from blinkrun.schedule.lower_network import Network, sum_up
from blinkrun.types import Rank


def add_allreduce_tree(
    builder: Builder, tree: PlannedTree, part: Part, addressing: Addressing, block: int = 0
) -> None:
    """Add the channels that sum `part` over all ranks along `tree`; there is one block, 0."""
    if addressing is Addressing.STAGED:
        _Staged(builder, tree, part).add()
    else:
        _Direct(builder, tree, part, leaves_copy=addressing is Addressing.OUTPUT_ONLY).add()


class _Direct:
    """Reduce upwards in the OUTPUTs of inner ranks; parents write the result to their children.

    A leaf only waits until its parent has read its INPUT and written its OUTPUT, or, where nobody
    else may read its INPUT, copies that to its OUTPUT first. An inner rank is done with its parent
    when the result has come, and nobody else touches its memory.

    No rank runs ahead of the next one on the way by more than `WINDOW` chunks: else a tree with a
    slow link would take a full share of all others, for chunks that nobody can use yet.
    """

    def __init__(
        self, builder: Builder, tree: PlannedTree, part: Part, *, leaves_copy: bool
    ) -> None:
        self.builder, self.tree, self.part = builder, tree, part
        self.net = net = Network(builder, tree)
        ranks = range(builder.size)
        inside = {rank for rank in ranks if tree.children(rank)}
        below = {rank for rank in ranks if rank != tree.root and rank not in net.heads}
        summing = {rank for rank in below if leaves_copy or rank in inside}
        # A head tells nobody but its own host, if anyone there wants to know.
        summing |= {head for head in net.heads if net.far[head] or inside & {*net.near[head]}}
        handing = (inside & below) | {head for head in net.heads if net.near[head]} | {tree.root}
        self.up = {rank: builder.flag(rank) for rank in sorted(summing)}
        self.down = {rank: builder.flag(rank) for rank in sorted(handing)}
        for rank in sorted(inside):
            if net.far[rank]:
                flag = self.down[rank] if rank == tree.root else self.up[rank]
                net.expect_sums(rank, part, flag)

    def add(self) -> None:
        for rank in range(self.builder.size):
            if rank == self.tree.root:
                self._add_root(rank)
            elif rank in self.net.heads:
                self._add_head(rank)
            elif self.tree.children(rank):
                self._add_inner(rank)
            else:
                self._add_leaf(rank)

    def _add_root(self, rank: Rank) -> None:
        own = _output(rank)
        outputs = tuple(map(_output, self.net.near[rank]))
        pushed = [self.tree.down[child] for child in self.net.near[rank]]
        fused = self._sum(rank, (own, *outputs), ["", *pushed], final=True)
        steps = [*self._ready(rank), *self._taken(rank), *fused, Signal(self.down[rank])]
        self._add(rank, Phase.UP, [*steps, *self.net.send_down(own)])

    def _add_head(self, rank: Rank) -> None:
        """Add a rank whose parent is on another host.

        In place, the result may come to where INPUT was once that has been summed.
        """
        slot = self.builder.slot(rank)
        summed = [Signal(self.up[rank])] if rank in self.up else []
        self._add(
            rank,
            Phase.UP if self.tree.children(rank) else Phase.PUT,
            [
                *self.net.is_sent_up(rank),
                *self._ready(rank),
                *self._sum(rank, (slot,), [""]),
                *summed,
                *self.net.send_up(slot),
                self.net.recv_down(_output(rank)),
            ],
        )
        if self.tree.children(rank):
            self._add(rank, Phase.DOWN, [*self.net.has_come_down(rank), *self._hand_on(rank)])

    def _add_inner(self, rank: Rank) -> None:
        parent = self.tree.parents[rank]
        summed = self.down[parent] if parent == self.tree.root else self.up[parent]
        asked = waits([(parent, summed)], lag=WINDOW)
        total = self._sum(rank, (_output(rank),), [""])
        self._add(rank, Phase.UP, [*self._ready(rank), *asked, *total, Signal(self.up[rank])])
        result = waits([(parent, self.down[parent])])
        self._add(rank, Phase.DOWN, [*result, *self._hand_on(rank)])

    def _add_leaf(self, rank: Rank) -> None:
        if rank in self.up:
            copy = self._sum(rank, (_output(rank),), [""])
            self._add(rank, Phase.PUT, [*copy, Signal(self.up[rank])])
        parent = self.tree.parents[rank]
        self._add(rank, Phase.LEAVE, waits([(parent, self.down[parent])]))

    def _add(self, rank: Rank, phase: Phase, steps: list[Step]) -> None:
        self.builder.add(rank, phase, self.tree.root, self.part, steps)

    def _ready(self, rank: Rank) -> list[Step]:
        summing = [child for child in self.net.near[rank] if child in self.up]
        return waits((child, self.up[child]) for child in summing)

    def _sum(
        self, rank: Rank, dsts: tuple[Operand, ...], via: list[str], *, final: bool = False
    ) -> list[Step]:
        """Return the steps that add INPUT and what the children have; `via` is that of `dsts`."""
        near = {
            child: Operand(child, Buffer.OUTPUT if child in self.up else Buffer.INPUT)
            for child in self.net.near[rank]
        }
        pulled = {child: self.tree.up[child] for child in near}
        return sum_up(self.net, rank, near, dsts, pushed=via, pulled=pulled, final=final)

    def _taken(self, rank: Rank) -> list[Step]:
        handing = [child for child in self.net.near[rank] if child in self.down]
        return waits(((child, self.down[child]) for child in handing), lag=WINDOW)

    def _hand_on(self, rank: Rank) -> list[Step]:
        """Return the steps that bring the result in a rank's OUTPUT to its children."""
        own, near = _output(rank), self.net.near[rank]
        steps = self._taken(rank)
        if near:
            pushed = [self.tree.down[child] for child in near]
            steps.append(Reduce(tuple(map(_output, near)), (own,), via=(*pushed, "")))
        if rank in self.down:
            steps.append(Signal(self.down[rank]))
        return [*steps, *self.net.send_down(own)]


class _Staged:
    """Do the same through one slot per edge, at the parent, used upwards and then downwards.

    Rank v fills its slot at the parent, the parent puts the result back into it, v takes it out:
    what v signals then also frees the slot for the chunk `slot_depth` later.
    """

    def __init__(self, builder: Builder, tree: PlannedTree, part: Part) -> None:
        self.builder, self.tree, self.part = builder, tree, part
        self.net = net = Network(builder, tree)
        ranks = range(builder.size)
        self.slots = {child: builder.slot(rank) for rank in ranks for child in net.near[rank]}
        self.slots |= {head: builder.slot(head) for head in net.heads}
        below = [rank for rank in ranks if rank != tree.root and rank not in net.heads]
        summing = sorted([*below, *(head for head in net.heads if net.far[head])])
        self.filled = {rank: builder.flag(rank) for rank in summing}
        self.done = {r: builder.flag(r) for r in ranks if r not in net.heads or net.near[r]}
        for rank in ranks:
            if net.far[rank]:
                flag = self.done[rank] if rank == tree.root else self.filled[rank]
                net.expect_sums(rank, part, flag)

    def add(self) -> None:
        for rank in range(self.builder.size):
            if rank == self.tree.root:
                self._add_root(rank)
            elif rank in self.net.heads:
                self._add_head(rank)
            else:
                self._add_below(rank)

    def _add_root(self, rank: Rank) -> None:
        fused = self._sum(rank, (_output(rank), *self._below(rank)), final=True)
        steps = [*self._ready(rank), *fused, Signal(self.done[rank])]
        self._add(rank, Phase.UP, [*steps, *self.net.send_down(_output(rank))])

    def _add_head(self, rank: Rank) -> None:
        """Add a rank whose parent is on another host; its slot is its own, and goes up only."""
        slot, below, own = self.slots[rank], self._below(rank), _output(rank)
        summed = [Signal(self.filled[rank])] if rank in self.filled else []
        self._add(
            rank,
            Phase.UP if self.tree.children(rank) else Phase.PUT,
            [
                *self.net.is_sent_up(rank),
                *self._ready(rank),
                *self._sum(rank, (slot,)),
                *summed,
                *self.net.send_up(slot),
                self.net.recv_down(own),
            ],
        )
        if self.tree.children(rank):
            handed: list[Step] = [Reduce(below, (own,)), Signal(self.done[rank])] if below else []
            come = self.net.has_come_down(rank)
            self._add(rank, Phase.DOWN, [*come, *handed, *self.net.send_down(own)])

    def _add_below(self, rank: Rank) -> None:
        """Add a rank with its parent on the same host."""
        parent, below, own = self.tree.parents[rank], self._below(rank), _output(rank)
        # A rank's children there have taken the result out of their slots before they fill them
        # again, so its own slot is free as well.
        free = [] if below else waits([(rank, self.done[rank])], lag=self.builder.slot_depth)
        put = self._sum(rank, (self.slots[rank],), [self.tree.up[rank]])
        steps = [*free, *self._ready(rank), *put, Signal(self.filled[rank])]
        self._add(rank, Phase.UP if self.tree.children(rank) else Phase.PUT, steps)
        via = ("", *("" for _ in below), self.tree.down[rank])
        take = Reduce((own, *below), (self.slots[rank],), via=via)
        steps = [*waits([(parent, self.done[parent])]), take, Signal(self.done[rank])]
        self._add(rank, Phase.DOWN, [*steps, *self.net.send_down(own)])

    def _add(self, rank: Rank, phase: Phase, steps: list[Step]) -> None:
        self.builder.add(rank, phase, self.tree.root, self.part, steps)

    def _below(self, rank: Rank) -> tuple[Operand, ...]:
        return tuple(self.slots[child] for child in self.net.near[rank])

    def _ready(self, rank: Rank) -> list[Step]:
        return waits((child, self.filled[child]) for child in self.net.near[rank])

    def _sum(
        self, rank: Rank, dsts: tuple[Operand, ...], via: Sequence[str] = (), *, final: bool = False
    ) -> list[Step]:
        near = {child: self.slots[child] for child in self.net.near[rank]}
        return sum_up(self.net, rank, near, dsts, pushed=via, final=final)


def _output(rank: Rank) -> Operand:
    return Operand(rank, Buffer.OUTPUT)
