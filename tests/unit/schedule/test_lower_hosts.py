"""Programs over several hosts: they verify for any trees, and hosts say the same in any way."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import (
    SPLITS,
    hosted_packings,
    hosted_programs,
    joint,
    packing,
    plans,
    star,
)

from blinkrun.errors import ProgramError
from blinkrun.planner.hosts_plan import HostsPlan, Network
from blinkrun.schedule.ir import (
    Addressing,
    Arrived,
    Buffer,
    Operand,
    Program,
    Recv,
    Reduce,
    Send,
    Sent,
    Signal,
    Wait,
)
from blinkrun.schedule.lower import lower
from blinkrun.schedule.lower_hosts import lower_barrier_hosts, lower_eager_hosts, lower_hosts
from blinkrun.schedule.streams import stream_of
from blinkrun.schedule.verify import verify
from blinkrun.topology.cpu import Cpu, Host, cpu_topology
from blinkrun.types import Collective

MOVING = [collective for collective in Collective if collective is not Collective.BARRIER]
OVER_TREES = [collective for collective in MOVING if collective is not Collective.ALLTOALL]


@pytest.mark.parametrize("collective", MOVING, ids=lambda collective: collective.label)
@settings(max_examples=8)
@given(st.data())
def test_what_is_lowered_verifies(collective, data):
    data.draw(hosted_programs([collective]))


@settings(max_examples=6)
@given(hosted_programs(MOVING, SPLITS[:6]))
def test_any_number_of_chunks_verifies(program):
    if not program.eager:
        verify(program, chunks=(2, 3, 7, 9))


def said(program: Program):
    """What every rank says to others: (end, stream, part), sorted."""
    talk = [
        [
            (type(step), stream_of(rank, step), channel.part)
            for channel in steps.channels
            for step in channel.steps
            if isinstance(step, (Send, Recv))
        ]
        for rank, steps in enumerate(program.ranks)
    ]
    return [sorted(own, key=lambda entry: (entry[0].__name__, entry[1])) for own in talk]


@settings(max_examples=10)
@given(st.data(), st.sampled_from(OVER_TREES), st.sampled_from(SPLITS))
def test_every_host_may_address_its_own_memory_in_its_own_way(data, collective, hosts):
    """The parts of a program that other hosts see are the same, and any mixture is right."""
    root = data.draw(st.integers(0, len(hosts) - 1))
    trees = data.draw(hosted_packings(collective, len(hosts), root))
    made = [
        lower_hosts(trees, collective, hosts, root=root, addressing=each) for each in Addressing
    ]
    assert len({each.pipelined for each in made}) == 1
    assert all(said(each) == said(made[0]) for each in made)
    chosen = [data.draw(st.sampled_from(made)) for _ in range(max(hosts) + 1)]
    mixed = replace(
        made[0],  # DIRECT: allows all that the others do
        ranks=tuple(chosen[host].ranks[rank] for rank, host in enumerate(hosts)),
        slots=max(each.slots for each in made),
        slot_depth=max(each.slot_depth for each in made),
    )
    verify(mixed)


@settings(max_examples=10)
@given(plans(min_size=2, max_size=5), st.sampled_from(MOVING), st.sampled_from(Addressing))
def test_on_one_host_nothing_is_different(plan, collective, addressing):
    packings = {
        Collective.ALLREDUCE: plan.allreduce,
        Collective.BROADCAST: plan.broadcast[0],
        Collective.REDUCE: plan.reduce[0],
        Collective.ALLGATHER: plan.allgather,
        Collective.REDUCESCATTER: plan.reducescatter,
    }
    trees = packings.get(collective, plan.allreduce)
    program = lower_hosts(trees, collective, (0,) * plan.size, addressing=addressing)
    assert program.ranks == lower(plan, collective, addressing=addressing).ranks


def two_by_two() -> HostsPlan:
    host = cpu_topology(Host((Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0))), 2)
    return HostsPlan((host, host), ((0, 1), (2, 3)), (Network(125), Network(125)))


def test_two_hosts_of_two_cross_the_network_once_each_way():
    """Each NIC carries what it must; a host's sum is stored, then one step makes all results."""
    plan = two_by_two()
    program = lower_hosts(plan.packing(Collective.ALLREDUCE), Collective.ALLREDUCE, plan.hosts_of)
    shares = dict.fromkeys((0, 1), 0)
    for rank, talk in enumerate(said(program)):
        shares[program.hosts[rank]] += sum(
            part.stop - part.start for end, _, part in talk if end is Send
        )
    assert shares == {0: program.shares, 1: program.shares}
    steps = [[type(step) for step in channel.steps] for channel in program.ranks[0].channels]
    assert steps == [
        [Wait, Recv],  # sums of the other host
        [Reduce, Arrived, Reduce, Signal, Sent, Send],  # as top of a tree
        [Sent, Reduce, Send, Recv],  # as head of another
        [Arrived, Reduce, Signal],
        [Wait],
        [Wait],
    ]


def test_a_broadcast_is_received_where_it_belongs():
    """No copy but the pulls inside hosts: INPUT is sent, OUTPUT receives."""
    program = lower_hosts(packing([(0, (-1, 0, 0, 2))]), Collective.BROADCAST, (0, 0, 1, 1))
    assert program.slots == 0
    ends = [
        step.operand
        for steps in program.ranks
        for channel in steps.channels
        for step in channel.steps
        if isinstance(step, (Send, Recv))
    ]
    assert ends == [Operand(0, Buffer.INPUT), Operand(2, Buffer.OUTPUT)]


def test_a_barrier_is_the_entry_of_all_hosts():
    program = lower_hosts(packing([star(3, 0)]), Collective.BARRIER, (0, 1, 0))
    assert program == lower_barrier_hosts((0, 1, 0))
    assert not any(steps.channels or steps.prologue for steps in program.ranks)
    verify(program)


@pytest.mark.parametrize("hosts", SPLITS, ids=str)
def test_one_shot_is_one_message_between_any_two_hosts(hosts):
    program = lower_eager_hosts(hosts)
    verify(program)
    sends = [stream for talk in said(program) for end, stream, _ in talk if end is Send]
    leaders = [hosts.index(host) for host in range(max(hosts) + 1)]
    assert sorted((stream.src, stream.dst) for stream in sends) == [
        (a, b) for a in leaders for b in leaders if a != b
    ]


@pytest.mark.parametrize("collective", [c for c in Collective if c is not Collective.ALLREDUCE])
def test_only_allreduce_has_a_one_shot_program(collective):
    with pytest.raises(ProgramError, match=f"{collective.label} has no one-shot program"):
        lower_eager_hosts((0, 1), collective)


@pytest.mark.parametrize(
    ("hosts", "root", "says"),
    [
        ((0, 1, 1), 3, "root 3 is none of the 3 ranks"),
        ((1, 0, 1), 0, "not numbered from 0 in the order of first ranks"),
        ((0, 1), 0, "allreduce over 2 ranks, got a packing of 3 ranks"),
        ((0, 2, 1), 0, "not numbered from 0"),
    ],
)
def test_hosts_that_do_not_fit(hosts, root, says):
    with pytest.raises(ProgramError, match=says):
        lower_hosts(packing([star(3, 0)]), Collective.ALLREDUCE, hosts, root=root)


def test_trees_of_all_roots_are_for_those_who_need_them():
    trees = joint([packing([star(2, root)]) for root in range(2)])
    with pytest.raises(ProgramError, match="from all roots"):
        lower_hosts(trees, Collective.ALLREDUCE, (0, 1))
