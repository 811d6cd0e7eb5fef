"""One direction only: broadcast and allgather down their trees, reduce and reducescatter up."""

from __future__ import annotations

from blinkrun.planner.plan import PlannedTree
from blinkrun.schedule.ir import (
    Addressing,
    Arrived,
    Buffer,
    Operand,
    Part,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Step,
)
from blinkrun.schedule.lower_builder import WINDOW, Builder, Phase, waits
from blinkrun.schedule.lower_network import Network, held_by
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
    net = Network(builder, tree)
    got = {r: builder.flag(r) for r in range(builder.size) if r != tree.root and net.is_awaited(r)}
    source = Operand(tree.root, Buffer.INPUT)
    for rank in range(builder.size):
        output = Operand(rank, Buffer.OUTPUT, block)
        leave = waits((child, got[child]) for child in net.near[rank])
        if rank == tree.root:
            builder.add(rank, Phase.UP, tree.root, part, [Reduce((output,), (source,)), *leave])
            net.send_from_root(source, part)
            continue
        parent = tree.parents[rank]
        ready = waits([(parent, got[parent])]) if parent in got else []
        src = Operand(parent, Buffer.OUTPUT, block) if parent != tree.root else source
        step: list[Step] = [Reduce((output,), (src,), via=("", tree.down[rank]))]
        if rank in net.heads:
            net.expect_down(output, part, taken=got.get(rank))
            ready, step = net.has_come_down(rank), []
        if rank in got:
            held = waits(((child, got[child]) for child in net.near[rank]), lag=WINDOW)
            move = [*ready, *held, *step, Signal(got[rank]), *net.send_down(output)]
            builder.add(rank, Phase.DOWN, tree.root, part, move)
        builder.add(rank, Phase.LEAVE, tree.root, part, leave)


def _broadcast_staged(builder: Builder, tree: PlannedTree, part: Part, block: int) -> None:
    """Every rank with children offers each chunk in one slot, from which all of them take it."""
    net = Network(builder, tree)
    got = {rank: builder.flag(rank) for rank in range(builder.size) if net.is_awaited(rank)}
    offer = {rank: builder.slot(rank) for rank in range(builder.size) if net.near[rank]}
    for rank in range(builder.size):
        output = Operand(rank, Buffer.OUTPUT, block)
        dsts = (offer[rank], output) if rank in offer else (output,)
        free = waits(((c, got[c]) for c in net.near[rank]), lag=builder.slot_depth)
        told = [Signal(got[rank])] if rank in got else []
        if rank == tree.root:
            copy = Reduce(dsts, (Operand(rank, Buffer.INPUT),))
            builder.add(rank, Phase.PUT, tree.root, part, [*free, copy, *told])
            net.send_from_root(Operand(rank, Buffer.INPUT), part)
            continue
        parent = tree.parents[rank]
        if rank in net.heads:
            net.expect_down(output, part, taken=got.get(rank))
            copies = [Reduce((offer[rank],), (output,))] if rank in offer else []
            ready = net.has_come_down(rank) if told else []
        else:
            via = (*("" for _ in dsts), tree.down[rank])
            copies = [Reduce(dsts, (offer[parent],), via=via)]
            ready = waits([(parent, got[parent])])
        move = [*free, *ready, *copies, *told, *net.send_down(output)]
        builder.add(rank, Phase.DOWN, tree.root, part, move)


def add_reduce_tree(
    builder: Builder, tree: PlannedTree, part: Part, addressing: Addressing, block: int = 0
) -> None:
    """Add the channels that sum `part` of INPUT[`block`] of all ranks to the root's OUTPUT.

    Every parent pulls from its children: from a leaf's INPUT where it may be addressed, from
    a slot at the child otherwise. No OUTPUT but the root's is touched. What a parent signals tells
    a leaf that it may leave and an inner rank that its slot is free again. From a slot goes what
    is sent to a parent on another host, too.
    """
    net = Network(builder, tree)
    copies = addressing is not Addressing.DIRECT
    partial = {
        rank: builder.slot(rank)
        for rank in range(builder.size)
        if rank != tree.root and (copies or rank in net.heads or tree.children(rank))
    }
    done = {
        rank: builder.flag(rank)
        for rank in range(builder.size)
        if tree.children(rank) or (rank in partial and rank not in net.heads)
    }
    for rank in range(builder.size):
        near = {c: partial.get(c, Operand(c, Buffer.INPUT, block)) for c in net.near[rank]}
        if net.far[rank]:
            net.expect_sums(rank, part, taken=done[rank])
        held = held_by(net, rank, near, block)
        srcs = tuple(held.values())
        via = ("", *(tree.up[holder] if holder in near else "" for holder in held))
        ready = waits((c, done[c]) for c in near if c in partial)
        ready += net.sums_arrived(rank)
        told = [Signal(done[rank])] if rank in done else []
        if rank == tree.root:
            total = Reduce((Operand(rank, Buffer.OUTPUT),), srcs, final=True, via=via)
            builder.add(rank, Phase.UP, tree.root, part, [*ready, total, *told])
            continue
        parent = tree.parents[rank]
        if rank not in partial:
            builder.add(rank, Phase.LEAVE, tree.root, part, waits([(parent, done[parent])]))
            continue
        free = waits([(parent, done[parent])], lag=builder.slot_depth)
        sent: list[Step] = []
        if rank in net.heads:
            free, sent = net.is_sent_up(rank), net.send_up(partial[rank])
        up = [*free, *ready, Reduce((partial[rank],), srcs, via=via), *told, *sent]
        phase = Phase.UP if tree.children(rank) else Phase.PUT
        builder.add(rank, phase, tree.root, part, up)


def add_alltoall(builder: Builder, part: Part, addressing: Addressing) -> None:
    """Add the channels that bring INPUT[`rank`] of every rank b to OUTPUT[b] of `rank`.

    DIRECT, each rank pulls its blocks, the next rank's first; STAGED, every pair has a slot at the
    sender. From host to host blocks are sent from INPUT to OUTPUT.
    """
    if addressing is Addressing.DIRECT:
        _alltoall_direct(builder, part)
    for rank in range(builder.size):
        for peer in range(builder.size):
            if builder.is_far(rank, peer):
                _alltoall_far(builder, part, rank, peer)
            elif addressing is not Addressing.DIRECT:
                _alltoall_pair(builder, part, rank, peer)


def _alltoall_direct(builder: Builder, part: Part) -> None:
    got = {rank: builder.flag(rank) for rank in range(builder.size)}
    for rank in range(builder.size):
        turns = [(rank + turn) % builder.size for turn in range(builder.size)]
        peers = [peer for peer in turns if not builder.is_far(rank, peer)]
        pulls: list[Step] = [
            Reduce((Operand(rank, Buffer.OUTPUT, peer),), (Operand(peer, Buffer.INPUT, rank),))
            for peer in peers
        ]
        told = [Signal(got[rank])] if peers[1:] else []
        builder.add(rank, Phase.UP, rank, part, [*pulls, *told])
        leave = waits((peer, got[peer]) for peer in peers[1:])
        builder.add(rank, Phase.LEAVE, rank, part, leave)


def _alltoall_far(builder: Builder, part: Part, sender: Rank, receiver: Rank) -> None:
    source = Operand(sender, Buffer.INPUT, receiver)
    target = Operand(receiver, Buffer.OUTPUT, sender)
    stream, ahead = builder.stream(sender, receiver), builder.slot_depth
    send: list[Step] = [Sent(receiver, stream, ahead), Send(source, receiver, stream)]
    recv: list[Step] = [Arrived(sender, stream, ahead), Recv(target, sender, stream)]
    builder.add(sender, Phase.PUT, receiver, part, send)
    builder.add(receiver, Phase.POST, sender, part, recv)


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
