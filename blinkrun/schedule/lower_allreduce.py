"""Allreduce over a tree: up to the root, one fused step there, and down again."""

from __future__ import annotations

from blinkrun.planner.plan import PlannedTree
from blinkrun.schedule.ir import Addressing, Buffer, Operand, Part, Reduce, Signal
from blinkrun.schedule.lower_builder import WINDOW, Builder, Phase, in_rank_order, waits
from blinkrun.types import Rank


def add_allreduce_tree(
    builder: Builder, tree: PlannedTree, part: Part, addressing: Addressing, block: int = 0
) -> None:
    """Add the channels that sum `part` over all ranks along `tree`; there is one block, 0."""
    if addressing is Addressing.STAGED:
        _add_staged(builder, tree, part)
    else:
        _add_direct(builder, tree, part, leaves_copy=addressing is Addressing.OUTPUT_ONLY)


def _add_direct(builder: Builder, tree: PlannedTree, part: Part, *, leaves_copy: bool) -> None:
    """Reduce upwards in the OUTPUTs of inner ranks; parents write the result to their children.

    A leaf only waits until its parent has read its INPUT and written its OUTPUT, or, where nobody
    else may read its INPUT, copies that to its OUTPUT first. An inner rank is done with its parent
    when the result has come, and nobody else touches its memory.

    No rank runs ahead of the next one on the way by more than `WINDOW` chunks: else a tree with a
    slow link would take a full share of all others, for chunks that nobody can use yet.
    """
    inner = [
        rank
        for rank in range(builder.size)
        if rank != tree.root and (leaves_copy or tree.children(rank))
    ]
    up = {rank: builder.flag(rank) for rank in inner}
    inside = {rank for rank in range(builder.size) if tree.children(rank)}
    down = {rank: builder.flag(rank) for rank in sorted(inside | {tree.root})}
    for rank in range(builder.size):
        children = tree.children(rank)
        outputs = tuple(Operand(child, Buffer.OUTPUT) for child in children)
        own = Operand(rank, Buffer.OUTPUT)
        pushed = [tree.down[child] for child in children]
        ready = waits((child, up[child]) for child in children if child in up)
        srcs = in_rank_order(
            Operand(r, Buffer.OUTPUT if r in up and r != rank else Buffer.INPUT)
            for r in (rank, *children)
        )
        pulled = [tree.up[src.rank] if src.rank != rank else "" for src in srcs]
        taken = waits(((child, down[child]) for child in children if child in down), lag=WINDOW)
        if rank == tree.root:
            fused = Reduce((own, *outputs), srcs, final=True, via=("", *pushed, *pulled))
            steps = [*ready, *taken, fused, Signal(down[rank])]
            builder.add(rank, Phase.UP, tree.root, part, steps)
            continue
        parent = tree.parents[rank]
        result = waits([(parent, down[parent])])
        if not children:
            if leaves_copy:
                copy = Reduce((own,), srcs)
                builder.add(rank, Phase.PUT, tree.root, part, [copy, Signal(up[rank])])
            builder.add(rank, Phase.LEAVE, tree.root, part, result)
            continue
        summed = up[parent] if parent in up else down[parent]
        asked = waits([(parent, summed)], lag=WINDOW)
        upward = [*ready, *asked, Reduce((own,), srcs, via=("", *pulled)), Signal(up[rank])]
        handed = Reduce(outputs, (own,), via=(*pushed, ""))
        downward = [*result, *taken, handed, Signal(down[rank])]
        builder.add(rank, Phase.UP, tree.root, part, upward)
        builder.add(rank, Phase.DOWN, tree.root, part, downward)


def _add_staged(builder: Builder, tree: PlannedTree, part: Part) -> None:
    """Do the same through one slot per edge, at the parent, used upwards and then downwards.

    Rank v fills its slot at the parent, the parent puts the result back into it, v takes it out:
    what v signals then also frees the slot for the chunk `slot_depth` later.
    """
    slots = {
        child: builder.slot(rank) for rank in range(builder.size) for child in tree.children(rank)
    }
    filled = {rank: builder.flag(rank) for rank in range(builder.size) if rank != tree.root}
    done = {rank: builder.flag(rank) for rank in range(builder.size)}
    for rank in range(builder.size):
        children = tree.children(rank)
        below = [slots[child] for child in children]
        ready = waits((child, filled[child]) for child in children)
        srcs = _own_and_slots(rank, children, slots)
        output = Operand(rank, Buffer.OUTPUT)
        if rank == tree.root:
            fused = Reduce((output, *below), srcs, final=True)
            builder.add(rank, Phase.UP, tree.root, part, [*ready, fused, Signal(done[rank])])
            continue
        parent = tree.parents[rank]
        # An inner rank's children have taken the result out of their slots before they fill them
        # again, so its own slot is free as well.
        free = [] if children else waits([(rank, done[rank])], lag=builder.slot_depth)
        local = ("",) * len(srcs)
        put = [
            *free,
            *ready,
            Reduce((slots[rank],), srcs, via=(tree.up[rank], *local)),
            Signal(filled[rank]),
        ]
        take = [
            *waits([(parent, done[parent])]),
            Reduce((output, *below), (slots[rank],), via=(*local, tree.down[rank])),
            Signal(done[rank]),
        ]
        builder.add(rank, Phase.UP if children else Phase.PUT, tree.root, part, put)
        builder.add(rank, Phase.DOWN, tree.root, part, take)


def _own_and_slots(
    rank: Rank, children: tuple[Rank, ...], slots: dict[Rank, Operand]
) -> tuple[Operand, ...]:
    """Own INPUT and the children's slots, by the rank whose values they hold."""
    held = {rank: Operand(rank, Buffer.INPUT)} | {child: slots[child] for child in children}
    return tuple(held[holder] for holder in sorted(held))
