"""One-shot allreduce for small blocks over several hosts: all hosts tell each other their sums.

The first rank of each host is its leader. All others put their INPUT into a slot before ranks meet;
the leader adds up its own and theirs and sends the sum to all other leaders: one message each way,
and no hop on the way. Then each leader adds up all hosts' sums, in the same order, and the ranks of
its host take the result.
"""

from __future__ import annotations

from blinkrun.errors import ProgramError
from blinkrun.schedule.ir import (
    Addressing,
    Arrived,
    Buffer,
    Channel,
    Operand,
    Part,
    Program,
    RankProgram,
    Recv,
    Reduce,
    Send,
    Signal,
    Step,
    Wait,
)
from blinkrun.types import Collective, Rank

_WHOLE = Part(0, 1)
_INPUT, _RESULT = 0, 1  # slots; the sum of host h lies in slot 2 + h


def lower_eager_hosts(
    hosts: tuple[int, ...], collective: Collective = Collective.ALLREDUCE
) -> Program:
    """Return the one-shot program of allreduce over `hosts`, for blocks that fit one slot.

    Parameters
    ----------
    hosts : tuple of int
        The host of every rank, numbered from 0 in the order of their first ranks.
    collective : Collective
        Allreduce: no other has such a program over several hosts.

    Raises
    ------
    ProgramError
        For another collective, or hosts that are numbered otherwise.
    """
    if collective is not Collective.ALLREDUCE:
        raise ProgramError(f"{collective.label} has no one-shot program over several hosts")
    num_hosts = len(set(hosts))
    ranks = tuple(
        RankProgram(_channels(_puts(hosts, rank)), _channels(_takes(hosts, rank)))
        for rank in range(len(hosts))
    )
    return Program(
        Collective.ALLREDUCE,
        0,
        Addressing.STAGED,
        shares=1,
        ranks=ranks,
        slots=2 + num_hosts,
        eager=True,
        name="one-shot",
        hosts=hosts,
    )


def _channels(steps: list[Step]) -> tuple[Channel, ...]:
    return (Channel(_WHOLE, tuple(steps)),) if steps else ()


def _slot(rank: Rank, index: int) -> Operand:
    return Operand(rank, Buffer.SCRATCH, index)


def _puts(hosts: tuple[int, ...], rank: Rank) -> list[Step]:
    """Return the copy of INPUT to where it is read or sent from, unless the leader adds it up."""
    if hosts.count(hosts[rank]) > 1 and rank == hosts.index(hosts[rank]):
        return []
    return [Reduce((_slot(rank, _INPUT),), (Operand(rank, Buffer.INPUT),))]


def _takes(hosts: tuple[int, ...], rank: Rank) -> list[Step]:
    """Return what a rank does once the ranks of its host have met."""
    own = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    output = Operand(rank, Buffer.OUTPUT)
    if rank != own[0]:
        return [Wait(own[0], 0), Reduce((output,), (_slot(own[0], _RESULT),))]
    leaders = [hosts.index(host) for host in range(len(set(hosts)))]
    sums = [_slot(rank, 2 + host) for host in range(len(leaders))]
    others = [(leader, sums[host]) for host, leader in enumerate(leaders) if leader != rank]
    expect = [Recv(slot, leader) for leader, slot in others]  # early, else MPI copies what comes
    arrived = [Arrived(leader) for leader, _ in others]
    if len(own) == 1:
        sums[hosts[rank]] = mine = _slot(rank, _INPUT)
        send = [Send(mine, leader) for leader, _ in others]
        return [*expect, *send, *arrived, Reduce((output,), tuple(sums), final=True)]
    mine = sums[hosts[rank]]
    terms = [Operand(rank, Buffer.INPUT), *(_slot(other, _INPUT) for other in own[1:])]
    add = Reduce((mine,), tuple(terms))
    send = [Send(mine, leader) for leader, _ in others]
    finish = Reduce((output, _slot(rank, _RESULT)), tuple(sums), final=True)
    return [*expect, add, *send, *arrived, finish, Signal(0)]
