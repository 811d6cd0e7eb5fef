"""Programs for ranks on several hosts: shared memory inside each, messages between them."""

from __future__ import annotations

from blinkrun.errors import ProgramError
from blinkrun.planner.plan import PlannedPacking
from blinkrun.schedule.ir import Addressing, Part, Program, RankProgram
from blinkrun.schedule.lower import lower_packing
from blinkrun.schedule.lower_builder import SLOT_DEPTH, Builder
from blinkrun.schedule.lower_eager_hosts import lower_eager_hosts
from blinkrun.schedule.lower_oneway import add_alltoall
from blinkrun.types import Collective, Rank

__all__ = ["lower_alltoall_hosts", "lower_barrier_hosts", "lower_eager_hosts", "lower_hosts"]


def lower_hosts(  # noqa: PLR0913 - all that a program depends on
    packing: PlannedPacking,
    collective: Collective,
    hosts: tuple[int, ...],
    *,
    root: Rank = 0,
    addressing: Addressing = Addressing.DIRECT,
    channels_per_tree: int = 1,
    slot_depth: int = SLOT_DEPTH,
) -> Program:
    """Return the program that carries out `collective` over trees that span several hosts.

    An edge of a tree inside a host is a pull or a push through shared memory, as on one host; an
    edge between hosts becomes messages of a chunk each. All that hosts say to each other is the
    same for every `addressing`, and so are the chunks: each host may choose for itself.

    Parameters
    ----------
    packing : PlannedPacking
        Trees of any shape over all ranks; hosts may be crossed anywhere. Alltoall and barrier take
        no notice of it.
    collective : Collective
        What to do.
    hosts : tuple of int
        The host of every rank, numbered from 0 in the order of their first ranks. The ranks of a
        host need not follow each other.
    root : Rank, default 0
        Of broadcast and reduce; ignored elsewhere.
    addressing : Addressing
        Whose INPUT and OUTPUT ranks of one host may touch.
    channels_per_tree : int, default 1
        Into how many channels of equal parts each tree is cut.
    slot_depth : int
        Chunks that a slot holds; so many messages of a stream are under way at a time.

    Returns
    -------
    Program
        Pipelined, and it passes `verify`. Sums of 16-bit floats are rounded to 16 bits where they
        cross the network.

    Raises
    ------
    ProgramError
        If hosts, root and packing do not go together.

    Examples
    --------
    Two hosts of one rank each, summed at rank 0:

    >>> from fractions import Fraction
    >>> from blinkrun.planner.plan import PlannedTree
    >>> from blinkrun.schedule.render import render
    >>> tree = PlannedTree(root=0, parents=(-1, 0), start=0, stop=1)
    >>> packing = PlannedPacking(1, (tree,), Fraction(1), Fraction(1), "MB/s")
    >>> program = lower_hosts(packing, Collective.ALLREDUCE, (0, 1))
    >>> print(render(program, rank=1), end="")
    allreduce, 2 ranks on 2 hosts, direct, stars: 1 share, 2 slots of depth 4, 1 flag, pipelined
    rank 1 on host 1
      channel 0, shares [0, 1)
        sent r0 s0 -4
        r1.slot[0] <- r1.in
        send r1.slot[0] to r0 s0
        recv r1.out from r0 s0
    """
    if not 0 <= root < len(hosts):
        raise ProgramError(f"root {root} is none of the {len(hosts)} ranks on the hosts {hosts}")
    if collective is Collective.BARRIER:
        return lower_barrier_hosts(hosts)
    if collective is Collective.ALLTOALL:
        return lower_alltoall_hosts(hosts, addressing, slot_depth=slot_depth)
    if packing.size != len(hosts):
        raise ProgramError(
            f"{collective.label} over {len(hosts)} ranks, got a packing of {packing.size} ranks"
        )
    return lower_packing(
        packing,
        collective,
        root=root,
        addressing=addressing,
        channels_per_tree=channels_per_tree,
        slot_depth=slot_depth,
        hosts=hosts,
    )


def lower_alltoall_hosts(
    hosts: tuple[int, ...], addressing: Addressing, *, slot_depth: int = SLOT_DEPTH
) -> Program:
    """Return alltoall: inside hosts as on one, else by messages from INPUT to OUTPUT."""
    builder = Builder(len(hosts), slot_depth, hosts)
    add_alltoall(builder, Part(0, 1), addressing)
    return builder.build(Collective.ALLTOALL, addressing, shares=1, depth=1)


def lower_barrier_hosts(hosts: tuple[int, ...]) -> Program:
    """Return the program that only enters: the ranks of all hosts meet, and nothing moves."""
    ranks = (RankProgram(),) * len(hosts)
    return Program(Collective.BARRIER, 0, Addressing.DIRECT, 1, ranks, name="barrier", hosts=hosts)
