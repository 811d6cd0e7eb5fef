"""The plan of a job on several hosts: right over any hosts, spread, as fast as the network."""

import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_hosts import cpu_host, in_blocks, plan_of_sizes

from blinkrun.errors import PlanError
from blinkrun.executors import reference
from blinkrun.planner.hosts_plan import LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES, HostsPlan
from blinkrun.planner.multihost_local import local_trees, port_parts
from blinkrun.planner.packing import Flow
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.lower_hosts import lower_hosts
from blinkrun.schedule.verify import verify
from blinkrun.topology.between import Network
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce
from blinkrun.types import Collective

COLLECTIVES = (
    Collective.ALLREDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALLGATHER,
    Collective.REDUCESCATTER,
)
JOINT = COLLECTIVES[3:]
DGX1V = machine("dgx-1v", "all")


@st.composite
def plans(draw):
    """Hosts of 1 to 3 ranks, of one or two sockets or with GPUs, whose ranks lie anywhere."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    order = draw(st.permutations(range(sum(sizes))))
    ranks = sorted(tuple(sorted(order[at] for at in own)) for own in in_blocks(sizes))
    hosts, networks = [], []
    for own in ranks:
        size = len(own)
        cpu = st.builds(cpu_host, st.just(size), st.sampled_from([2, 8]), st.sampled_from([1, 2]))
        gpus = st.just(induce(DGX1V, range(size)))
        hosts.append(draw(cpu | gpus))
        nics = draw(st.integers(1, 2))
        near = draw(st.just(()) | st.tuples(*[st.integers(0, nics - 1)] * size))
        rate = draw(st.sampled_from([Fraction(5, 4), 125, 1000, 12_500]))
        networks.append(Network(rate, 30, nics, near))
    return HostsPlan(tuple(hosts), tuple(ranks), tuple(networks))


def expected(collective, inputs, root):
    """What every rank ends with; None where that is nobody's business."""
    total, size = sum(inputs), len(inputs)
    blocks = np.split(total, size) if collective is Collective.REDUCESCATTER else []
    return {
        Collective.ALLREDUCE: lambda: [total] * size,
        Collective.BROADCAST: lambda: [inputs[root]] * size,
        Collective.REDUCE: lambda: [total if rank == root else None for rank in range(size)],
        Collective.ALLGATHER: lambda: [np.concatenate(inputs)] * size,
        Collective.REDUCESCATTER: lambda: blocks,
    }[collective]()


@settings(max_examples=25)
@given(plan=plans(), collective=st.sampled_from(COLLECTIVES), data=st.data())
def test_any_collective_over_any_hosts_is_right(plan, collective, data):
    root = data.draw(st.integers(0, plan.size - 1)) if collective.is_rooted else 0
    packing = plan.packing(collective, root)
    assert 0 < packing.rate <= packing.bound
    addressing = data.draw(st.sampled_from(Addressing))
    program = lower_hosts(packing, collective, plan.hosts_of, root=root, addressing=addressing)
    verify(program)
    count = 23 * program.input_blocks
    inputs = list(np.random.default_rng(1).integers(-99, 99, (plan.size, count)))
    got = reference.run(program, inputs, reference.Call(chunk_elements=16, seed=1))
    for rank, want in enumerate(expected(collective, inputs, root)):
        assert want is None or np.array_equal(got[rank], want)


def network_parts(plan, packing):
    """Which part of the data every rank sends to other hosts, and receives, in an allreduce."""
    sent = [Fraction(0)] * plan.size
    received = [Fraction(0)] * plan.size
    for tree in packing.trees:
        part = Fraction(tree.stop - tree.start, packing.shares)
        for child, parent in enumerate(tree.parents):
            if parent >= 0 and plan.hosts_of[child] != plan.hosts_of[parent]:
                for one, other in ((child, parent), (parent, child)):
                    sent[one] += part
                    received[other] += part
    return sent, received


@pytest.mark.parametrize(
    "sizes", [(1, 1), (2, 2), (4, 4), (3, 5), (1, 7), (2, 2, 4), (1, 1, 1, 1), (2, 2, 2, 2)]
)
def test_an_allreduce_is_spread_over_all_ranks_of_every_host(sizes):
    """A NIC carries 2 (H - 1) / H of the data, and every rank of a host its part of that."""
    plan = plan_of_sizes(sizes)
    packing = plan.packing(Collective.ALLREDUCE)
    each = Fraction(2 * (len(sizes) - 1), len(sizes))
    for parts in network_parts(plan, packing):
        for own in plan.ranks:
            assert [parts[rank] for rank in own] == [each / len(own)] * len(own)
    assert packing.rate == packing.bound == 125 / each
    assert sorted({tree.root for tree in packing.trees}) == list(range(plan.size))


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3), (3, 5), (1, 7), (2, 2, 4), (1, 1, 6)])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_network_slower_than_the_hosts_is_used_in_full(sizes, collective):
    packing = plan_of_sizes(sizes).packing(collective)
    assert packing.rate == packing.bound
    bound = {
        Collective.ALLREDUCE: Fraction(len(sizes), 2 * (len(sizes) - 1)),
        Collective.BROADCAST: Fraction(1),
        Collective.REDUCE: Fraction(1),
    }.get(collective, Fraction(sum(sizes), sum(sizes) - min(sizes)))
    assert packing.bound == 125 * bound


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_host_with_a_faster_network_takes_more(collective):
    """Rates are proven: none could be higher where NICs differ."""
    rates = (100, 200, 400)
    hosts = (cpu_host(2),) * 3
    plan = HostsPlan(hosts, in_blocks((2, 2, 2)), tuple(map(Network, rates)))
    packing = plan.packing(collective)
    assert packing.rate >= Fraction(99, 100) * packing.bound
    if collective is Collective.ALLREDUCE:  # all data passes the slowest once each way
        assert packing.bound == 100


def test_ranks_may_lie_anywhere():
    blocks, mixed = (0, 1, 2), (0, 2, 4)
    plain = plan_of_sizes((3, 2))
    plan = plan_of_sizes((3, 2), ranks=(mixed, (1, 3)))
    assert plan.hosts_of == (0, 1, 0, 1, 0)
    name = dict(zip((*blocks, 3, 4), (*mixed, 1, 3), strict=True))
    for mine, other in zip(
        plan.packing(Collective.ALLREDUCE).trees,
        plain.packing(Collective.ALLREDUCE).trees,
        strict=True,
    ):
        assert mine.root == name[other.root]
        for child, parent in enumerate(other.parents):
            assert mine.parents[name[child]] == name.get(parent, -1)
    for collective in JOINT:
        roots = [tree.root for tree in plan.packing(collective).trees]
        assert roots == sorted(roots)


def test_every_nic_carries_the_same_where_it_is_known_who_takes_which():
    """Three GPUs at one NIC and one at the other, on machines that pack trees of their own."""
    near = (0, 0, 0, 1)
    host = induce(DGX1V, range(4))
    network = Network(10_000, nics=2, nic_of=near)
    plan = HostsPlan((host, host), in_blocks((4, 4)), (network, network))
    packing = plan.packing(Collective.ALLREDUCE)
    sent, received = network_parts(plan, packing)
    for parts in (sent, received):
        nics = [Fraction(0)] * 4
        for rank, part in enumerate(parts):
            nics[2 * (rank // 4) + near[rank % 4]] += part
        assert nics == [Fraction(1, 2)] * 4
    assert packing.rate == packing.bound == 10_000
    assert port_parts(4, network) == (Fraction(1, 6),) * 3 + (Fraction(1, 2),)


def test_trees_of_a_host_that_are_no_stars_start_at_the_nics_rank():
    host = induce(DGX1V, range(4))
    network = Network(10_000, nics=2, nic_of=(0, 0, 0, 1))
    found = local_trees(host, Flow.BOTH, wanted=Fraction(10_000), network=network)
    assert sum(each.part for each in found.trees) == 1
    assert all(each.port == each.tree.root for each in found.trees)
    down = local_trees(host, Flow.DOWN, root=2, wanted=Fraction(10_000), network=network)
    assert {each.tree.root for each in down.trees} == {2}
    assert {each.port for each in down.trees} == {0, 1, 2, 3}


def test_a_broadcast_leaves_its_host_by_all_ranks():
    plan = plan_of_sizes((3, 3), mb_per_s=1000)
    for collective in (Collective.BROADCAST, Collective.REDUCE):
        packing = plan.packing(collective, 1)
        ends = {
            (tree.parents[child], child)
            for tree in packing.trees
            for child in (3, 4, 5)
            if tree.parents[child] < 3
        }
        assert sorted(parent for parent, _ in ends) == [0, 1, 2]
        assert sorted(child for _, child in ends) == [3, 4, 5]


def test_the_same_hosts_give_the_same_plan():
    plan = plan_of_sizes((3, 2), Fraction(5, 4), ranks=((0, 2, 4), (1, 3)))
    again = HostsPlan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert again.topology_hash == plan.topology_hash
    for collective in COLLECTIVES:
        assert again.packing(collective) == plan.packing(collective)
        assert again.chunks(collective) == plan.chunks(collective)
    other = replace(plan, network=(Network(2), Network(Fraction(5, 4))))
    assert other.topology_hash != plan.topology_hash


def test_slow_networks_are_counted_exactly():
    plan = plan_of_sizes((2, 2), Fraction(5, 4))
    packing = plan.packing(Collective.ALLREDUCE)
    assert (packing.rate, packing.bound, packing.unit) == (Fraction(5, 4), Fraction(5, 4), "MB/s")
    assert "network 1.25 MB/s, 50 us" in plan.describe()


@pytest.mark.parametrize("mb_per_s", [1, 125, 12_500])
@pytest.mark.parametrize("collective", [*COLLECTIVES, Collective.ALLTOALL])
def test_chunks_grow_with_sizes_and_are_neither_tiny_nor_huge(collective, mb_per_s):
    chunks = plan_of_sizes((2, 3), mb_per_s).chunks(collective)
    limits, lengths = zip(*chunks, strict=True)
    assert limits[-1] is None
    assert list(limits[:-1]) == sorted(set(limits[:-1]))
    assert list(lengths) == sorted(set(lengths))
    assert LEAST_CHUNK_BYTES <= lengths[0] <= lengths[-1] <= MOST_CHUNK_BYTES


def test_a_fast_and_far_network_gets_chunks_that_keep_it_full():
    """12.5 GB/s and back in 200 us: 2.5 MB are on their way, in 4 chunks of each of 2 trees."""
    host = cpu_host(1)
    far = HostsPlan((host, host), in_blocks((1, 1)), (Network(12_500, 100),) * 2)
    near = HostsPlan((host, host), in_blocks((1, 1)), (Network(125, 100),) * 2)
    for collective, (_, longest) in (
        (Collective.ALLREDUCE, far.chunks(Collective.ALLREDUCE)[-1]),
        (Collective.BROADCAST, far.chunks(Collective.BROADCAST)[-1]),
    ):
        num_trees = len(far.packing(collective).trees)
        assert 12_500 * 2 * 100 <= longest * 4 * num_trees <= 4 * 12_500 * 2 * 100
        assert near.chunks(collective)[-1] == (None, 256 << 10)


def test_a_plan_says_what_it_is():
    plan = plan_of_sizes((3, 2), ranks=((0, 1, 4), (2, 3)))
    text = plan.describe().splitlines()
    assert text[0] == "2 hosts: 5 ranks"
    assert text[1].startswith("  host 0, ranks 0-1,4: cpu host, 8 cores on 1 socket")
    assert text[3].startswith("  allreduce: 8 2-hop trees, roots 0 2 1 2 1 3 4 3, 125 MB/s, 100 %")
    assert len(text) == 3 + len(COLLECTIVES)
    near = replace(plan, network=(Network(250, 9, nics=2), Network(125)))
    assert "network 250 MB/s over 2 NICs, 9 us" in near.describe()


@pytest.mark.parametrize(
    ("hosts", "ranks", "networks", "message"),
    [
        (1, [(0, 1)], 1, "a plan for several hosts, but there are 1"),
        (2, [(0, 1)], 2, "2 hosts, ranks of 1, networks of 2"),
        (2, [(0, 1), (1, 2)], 2, "every rank must be on one of them"),
        (2, [(0,), (1, 2, 3)], 2, r"host 0 .* has 2 ranks, not \(0,\)"),
        (2, [(1, 0), (2, 3)], 2, r"host 0 .* has 2 ranks, not \(1, 0\) in order"),
        (2, [(2, 3), (0, 1)], 2, r"by their first ranks, these are \[2, 0\]"),
    ],
)
def test_what_contradicts_itself_is_no_plan(hosts, ranks, networks, message):
    with pytest.raises(PlanError, match=message):
        HostsPlan((cpu_host(2),) * hosts, tuple(ranks), (Network(125),) * networks)


def test_what_has_no_trees_is_said():
    plan = plan_of_sizes((2, 1))
    with pytest.raises(PlanError, match="alltoall takes no trees"):
        plan.packing(Collective.ALLTOALL)
    with pytest.raises(PlanError, match="reduce from root 3 of 3 ranks"):
        plan.packing(Collective.REDUCE, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-9], "text is no plan of hosts: JSONDecodeError"),
        (lambda text: text.replace('"version":1', '"version":0'), "plan of version 0, this is 1"),
        (lambda text: text.replace('"network"', '"net"'), "text is no plan of hosts: KeyError"),
        (lambda text: text.replace('"125"', '"-1"'), "text is no plan of hosts: TopologyError"),
        (lambda text: text.replace("[[0,1],[2]]", "[[0,1],[3]]"), "every rank must be on one"),
    ],
)
def test_other_texts_are_refused(change, message):
    with pytest.raises(PlanError, match=message):
        HostsPlan.from_json(change(plan_of_sizes((2, 1)).to_json()))


def test_a_plan_is_quick_where_a_job_waits_for_it():
    """Every rank makes it at its start: no linear program for hosts that share memory."""
    plan = plan_of_sizes((8, 8))
    began_s = time.process_time()
    plan.packing(Collective.ALLREDUCE)
    assert time.process_time() - began_s < 1
    assert len(plan.packing(Collective.ALLREDUCE).trees) == 16
