"""From a plan to programs: which bytes move over the planned trees, and who waits for whom.

Two ways of addressing: DIRECT, where INPUT and OUTPUT lie in the arena and ranks read and write
each other's, and STAGED, where they are private and data goes through SCRATCH slots. Small
blocks take the one-shot (eager) programs of `lower_eager`.
"""

from __future__ import annotations

from collections.abc import Callable

from blinkrun.errors import ProgramError
from blinkrun.planner.plan import Plan, PlannedPacking, PlannedTree
from blinkrun.schedule.ir import Addressing, Buffer, Operand, Part, Program, RankProgram, Reduce
from blinkrun.schedule.lower_allreduce import add_allreduce_tree
from blinkrun.schedule.lower_builder import (
    SLOT_DEPTH,
    Builder,
    Phase,
    parts_of,
    shares_of,
)
from blinkrun.schedule.lower_eager import lower_eager
from blinkrun.schedule.lower_oneway import add_alltoall, add_broadcast_tree, add_reduce_tree
from blinkrun.types import Collective, Rank

AddTree = Callable[[Builder, PlannedTree, Part, Addressing, int], None]

__all__ = [
    "lower",
    "lower_allgather",
    "lower_allreduce",
    "lower_alltoall",
    "lower_barrier",
    "lower_broadcast",
    "lower_eager",
    "lower_packing",
    "lower_reduce",
    "lower_reducescatter",
]


def lower(  # noqa: PLR0913 - all that a program depends on
    plan: Plan,
    collective: Collective,
    *,
    root: Rank = 0,
    addressing: Addressing = Addressing.DIRECT,
    eager: bool = False,
    channels_per_tree: int = 1,
) -> Program:
    """Return the program that carries out `collective` over `plan`'s trees.

    Parameters
    ----------
    plan : Plan
        The packings for all ranks.
    collective : Collective
        What to do.
    root : Rank
        Of broadcast and reduce; ignored elsewhere.
    addressing : Addressing
        Whether INPUT and OUTPUT lie in the arena (DIRECT) or are private (STAGED).
    eager : bool
        Make the one-shot program for small blocks; it takes no notice of the trees.
    channels_per_tree : int
        Into how many channels of equal parts each tree is cut: while one waits or starts a chunk
        another moves data.

    Returns
    -------
    Program
        It passes `verify`.

    Raises
    ------
    ProgramError
        If `root` is none of the plan's ranks, or there is less than one channel per tree.
    """
    size = plan.size
    if not 0 <= root < size:
        raise ProgramError(f"root {root} is none of the plan's {size} ranks")
    if collective is Collective.BARRIER:
        return lower_barrier(size)
    if eager:
        return lower_eager(collective, size, root)
    if collective is Collective.ALLTOALL:
        return lower_alltoall(size, addressing)
    packings = {
        Collective.ALLREDUCE: plan.allreduce,
        Collective.BROADCAST: plan.broadcast[root],
        Collective.REDUCE: plan.reduce[root],
        Collective.ALLGATHER: plan.allgather,
        Collective.REDUCESCATTER: plan.reducescatter,
    }
    return lower_packing(
        packings[collective],
        collective,
        root=root,
        addressing=addressing,
        channels_per_tree=channels_per_tree,
    )


def lower_packing(  # noqa: PLR0913 - all that a program depends on
    packing: PlannedPacking,
    collective: Collective,
    *,
    root: Rank = 0,
    addressing: Addressing = Addressing.DIRECT,
    channels_per_tree: int = 1,
    slot_depth: int = SLOT_DEPTH,
    hosts: tuple[int, ...] = (),
) -> Program:
    """Return the program that carries out `collective` over these trees; see `lower`.

    Where `hosts` gives the host of every rank, edges between hosts become messages; see
    `lower_hosts`, which also knows the collectives that need no trees.
    """
    size = packing.size
    adds: dict[Collective, AddTree] = {
        Collective.ALLREDUCE: add_allreduce_tree,
        Collective.BROADCAST: add_broadcast_tree,
        Collective.REDUCE: add_reduce_tree,
        Collective.ALLGATHER: add_broadcast_tree,
        Collective.REDUCESCATTER: add_reduce_tree,
    }
    return _lower(
        packing,
        size,
        collective,
        addressing,
        adds[collective],
        slot_depth=slot_depth,
        root=root if collective.is_rooted else 0,
        channels_per_tree=channels_per_tree,
        hosts=hosts,
    )


def lower_allreduce(
    packing: PlannedPacking,
    size: int,
    addressing: Addressing,
    *,
    slot_depth: int = SLOT_DEPTH,
) -> Program:
    """Return allreduce: each tree reduces its part to its root and brings the result back.

    A one-hop star is a single fused step: its root reads all INPUTs and writes all OUTPUTs.
    """
    return _lower(
        packing, size, Collective.ALLREDUCE, addressing, add_allreduce_tree, slot_depth=slot_depth
    )


def lower_broadcast(
    packing: PlannedPacking,
    size: int,
    root: Rank,
    addressing: Addressing,
    *,
    slot_depth: int = SLOT_DEPTH,
) -> Program:
    """Return broadcast: each rank pulls from its parent in the tree, chunk by chunk."""
    return _lower(
        packing,
        size,
        Collective.BROADCAST,
        addressing,
        add_broadcast_tree,
        root=root,
        slot_depth=slot_depth,
    )


def lower_reduce(
    packing: PlannedPacking,
    size: int,
    root: Rank,
    addressing: Addressing,
    *,
    slot_depth: int = SLOT_DEPTH,
) -> Program:
    """Return reduce: each rank pulls from its children; only the root's OUTPUT is touched."""
    return _lower(
        packing,
        size,
        Collective.REDUCE,
        addressing,
        add_reduce_tree,
        root=root,
        slot_depth=slot_depth,
    )


def lower_allgather(
    packing: PlannedPacking,
    size: int,
    addressing: Addressing,
    *,
    slot_depth: int = SLOT_DEPTH,
) -> Program:
    """Return allgather: all ranks' broadcasts at once, that of rank b into block b of OUTPUT."""
    return _lower(
        packing, size, Collective.ALLGATHER, addressing, add_broadcast_tree, slot_depth=slot_depth
    )


def lower_reducescatter(
    packing: PlannedPacking,
    size: int,
    addressing: Addressing,
    *,
    slot_depth: int = SLOT_DEPTH,
) -> Program:
    """Return reducescatter: all ranks' reductions at once, block b of INPUT up to rank b."""
    return _lower(
        packing, size, Collective.REDUCESCATTER, addressing, add_reduce_tree, slot_depth=slot_depth
    )


def lower_alltoall(size: int, addressing: Addressing, *, slot_depth: int = SLOT_DEPTH) -> Program:
    """Return alltoall: every pair of ranks by itself, so all must be able to reach each other."""
    builder = Builder(size, slot_depth)
    add_alltoall(builder, Part(0, 1), addressing)
    return builder.build(Collective.ALLTOALL, addressing, shares=1, depth=1)


def lower_barrier(size: int) -> Program:
    """Return the program that only enters: all ranks meet, and nothing moves."""
    ranks = (RankProgram(),) * size
    return Program(Collective.BARRIER, 0, Addressing.DIRECT, 1, ranks, name="barrier")


def _lower(  # noqa: PLR0913 - one call per collective above
    packing: PlannedPacking,
    size: int,
    collective: Collective,
    addressing: Addressing,
    add: AddTree,
    *,
    slot_depth: int,
    root: Rank = 0,
    channels_per_tree: int = 1,
    hosts: tuple[int, ...] = (),
) -> Program:
    """Add every tree of `packing`; where all ranks are roots, a tree serves its root's block."""
    if channels_per_tree < 1:
        raise ProgramError(f"{channels_per_tree} channels per tree, need at least 1")
    wrong_root = collective.is_rooted and packing.trees[0].root != root
    joint = collective in (Collective.ALLGATHER, Collective.REDUCESCATTER)
    if packing.size != size or wrong_root or packing.joint is not joint:
        raise ProgramError(
            f"{collective.label} of {size} ranks, root {root}, got a packing of "
            f"{packing.size} ranks from {'all roots' if packing.joint else _root_of(packing)}"
        )
    builder = Builder(size, slot_depth, hosts)
    if size == 1:
        return _lower_alone(builder, collective, addressing)
    shares = shares_of(packing, channels_per_tree)
    for tree in packing.trees:
        for part in parts_of(tree, packing, shares, channels_per_tree):
            add(builder, tree, part, addressing, tree.root if joint else 0)
    return builder.build(collective, addressing, shares=shares, depth=packing.depth, root=root)


def _root_of(packing: PlannedPacking) -> str:
    return f"root {packing.trees[0].root}"


def _lower_alone(builder: Builder, collective: Collective, addressing: Addressing) -> Program:
    """Return the program of a single rank: INPUT becomes OUTPUT."""
    final = collective not in (Collective.BROADCAST, Collective.ALLGATHER)
    copy = Reduce((Operand(0, Buffer.OUTPUT),), (Operand(0, Buffer.INPUT),), final=final)
    builder.add(0, Phase.UP, 0, Part(0, 1), [copy])
    return builder.build(collective, addressing, shares=1, depth=0)
