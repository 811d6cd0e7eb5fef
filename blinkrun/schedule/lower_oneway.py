"""One direction only: broadcast and allgather down their trees, reduce and reducescatter up."""

from __future__ import annotations

from blinkrun.planner.plan import PlannedTree
from blinkrun.schedule.ir import Addressing, Buffer, Operand, Part, Reduce, Signal, Step
from blinkrun.schedule.lower_builder import WINDOW, Builder, Phase, waits
from blinkrun.types import Rank


def add_broadcast_tree(
    builder: Builder, tree: PlannedTree, part: Part, addressing: Addressing, block: int = 0
) -> None:
    """Add the channels that bring `part` of the root's INPUT to OUTPUT[`block`] everywhere."""
    add = _broadcast_direct if addressing is Addressing.DIRECT else _broadcast_staged
    add(builder, tree, part, block)


def _broadcast_direct(builder: Builder, tree: PlannedTree, part: Part, block: int) -> None:
    """Every rank pulls from its parent, and stays until its own children have pulled.

    It runs ahead of its children by `WINDOW` chunks at most: else a tree with a slow link far down
    would take a full share of the links above it, for chunks that nobody can use yet.
    """
    got = {rank: builder.flag(rank) for rank in range(builder.size) if rank != tree.root}
    source = Operand(tree.root, Buffer.INPUT)
    for rank in range(builder.size):
        output = Operand(rank, Buffer.OUTPUT, block)
        leave = waits((child, got[child]) for child in tree.children(rank))
        if rank == tree.root:
            builder.add(rank, Phase.UP, tree.root, part, [Reduce((output,), (source,)), *leave])
            continue
        parent = tree.parents[rank]
        ready = waits([(parent, got[parent])]) if parent != tree.root else []
        src = Operand(parent, Buffer.OUTPUT, block) if parent != tree.root else source
        held = waits(((child, got[child]) for child in tree.children(rank)), lag=WINDOW)
        step = Reduce((output,), (src,), via=("", tree.down[rank]))
        builder.add(rank, Phase.DOWN, tree.root, part, [*ready, *held, step, Signal(got[rank])])
        builder.add(rank, Phase.LEAVE, tree.root, part, leave)


def _broadcast_staged(builder: Builder, tree: PlannedTree, part: Part, block: int) -> None:
    """Every rank with children offers each chunk in one slot, from which all of them take it."""
    got = {rank: builder.flag(rank) for rank in range(builder.size)}
    offer = {rank: builder.slot(rank) for rank in range(builder.size) if tree.children(rank)}
    for rank in range(builder.size):
        output = Operand(rank, Buffer.OUTPUT, block)
        dsts = (offer[rank], output) if rank in offer else (output,)
        free = waits(((c, got[c]) for c in tree.children(rank)), lag=builder.slot_depth)
        parent = tree.parents[rank]
        ready = waits([(parent, got[parent])]) if rank != tree.root else []
        src = offer[parent] if rank != tree.root else Operand(rank, Buffer.INPUT)
        phase = Phase.PUT if rank == tree.root else Phase.DOWN
        via = (*("" for _ in dsts), tree.down[rank])
        move = [*free, *ready, Reduce(dsts, (src,), via=via), Signal(got[rank])]
        builder.add(rank, phase, tree.root, part, move)


def add_reduce_tree(
    builder: Builder, tree: PlannedTree, part: Part, addressing: Addressing, block: int = 0
) -> None:
    """Add the channels that sum `part` of INPUT[`block`] of all ranks to the root's OUTPUT.

    Every parent pulls from its children: from a leaf's INPUT where it may be addressed, from
    a slot at the child otherwise. No OUTPUT but the root's is touched. What a parent signals tells
    a leaf that it may leave and an inner rank that its slot is free again.
    """
    partial = {
        rank: builder.slot(rank)
        for rank in range(builder.size)
        if rank != tree.root and (tree.children(rank) or addressing is not Addressing.DIRECT)
    }
    done = {
        rank: builder.flag(rank)
        for rank in range(builder.size)
        if rank in partial or tree.children(rank)
    }
    for rank in range(builder.size):
        held = {c: partial.get(c, Operand(c, Buffer.INPUT, block)) for c in tree.children(rank)}
        held[rank] = Operand(rank, Buffer.INPUT, block)
        srcs = tuple(held[holder] for holder in sorted(held))
        via = ("", *(tree.up[holder] if holder != rank else "" for holder in sorted(held)))
        ready = waits((c, done[c]) for c in tree.children(rank) if c in partial)
        if rank == tree.root:
            total = Reduce((Operand(rank, Buffer.OUTPUT),), srcs, final=True, via=via)
            builder.add(rank, Phase.UP, tree.root, part, [*ready, total, Signal(done[rank])])
            continue
        parent = tree.parents[rank]
        if rank not in partial:
            builder.add(rank, Phase.LEAVE, tree.root, part, waits([(parent, done[parent])]))
            continue
        free = waits([(parent, done[parent])], lag=builder.slot_depth)
        up = [*free, *ready, Reduce((partial[rank],), srcs, via=via), Signal(done[rank])]
        phase = Phase.UP if tree.children(rank) else Phase.PUT
        builder.add(rank, phase, tree.root, part, up)


def add_alltoall(builder: Builder, part: Part, addressing: Addressing) -> None:
    """Add the channels that bring INPUT[`rank`] of every rank b to OUTPUT[b] of `rank`.

    DIRECT, each rank pulls its blocks, the next rank's first; STAGED, every pair has a slot at the
    sender.
    """
    if addressing is Addressing.DIRECT:
        _alltoall_direct(builder, part)
        return
    for rank in range(builder.size):
        for peer in range(builder.size):
            _alltoall_pair(builder, part, rank, peer)


def _alltoall_direct(builder: Builder, part: Part) -> None:
    got = {rank: builder.flag(rank) for rank in range(builder.size)}
    for rank in range(builder.size):
        peers = [(rank + turn) % builder.size for turn in range(builder.size)]
        pulls: list[Step] = [
            Reduce((Operand(rank, Buffer.OUTPUT, peer),), (Operand(peer, Buffer.INPUT, rank),))
            for peer in peers
        ]
        builder.add(rank, Phase.UP, rank, part, [*pulls, Signal(got[rank])])
        leave = waits((peer, got[peer]) for peer in peers[1:])
        builder.add(rank, Phase.LEAVE, rank, part, leave)


def _alltoall_pair(builder: Builder, part: Part, sender: Rank, receiver: Rank) -> None:
    source = Operand(sender, Buffer.INPUT, receiver)
    target = Operand(receiver, Buffer.OUTPUT, sender)
    if sender == receiver:
        builder.add(sender, Phase.UP, sender, part, [Reduce((target,), (source,))])
        return
    slot = builder.slot(sender)
    filled, got = builder.flag(sender), builder.flag(receiver)
    free = waits([(receiver, got)], lag=builder.slot_depth)
    put = [*free, Reduce((slot,), (source,)), Signal(filled)]
    take = [*waits([(sender, filled)]), Reduce((target,), (slot,)), Signal(got)]
    builder.add(sender, Phase.PUT, receiver, part, put)
    builder.add(receiver, Phase.DOWN, sender, part, take)
