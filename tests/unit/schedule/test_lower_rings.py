"""Rings as programs: right by the verifier, by the reference and in the native core."""

from collections import Counter
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mutants import mutants
from support.programs import star_plan
from support.threads import run_threads
from support.topologies import mesh_of, meshes, pcie_trees, switches

from blinkrun.errors import ProgramError
from blinkrun.executors import reference
from blinkrun.executors.cpu import CpuExecutor
from blinkrun.planner.packing import Flow
from blinkrun.planner.rings import RingKind, RingPeer, ring_peer
from blinkrun.schedule.encode import encode
from blinkrun.schedule.ir import Addressing, Reduce
from blinkrun.schedule.lower import lower
from blinkrun.schedule.lower_rings import directed_rings, lower_rings
from blinkrun.schedule.routes import Routes, ways
from blinkrun.schedule.verify import verify
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce
from blinkrun.types import Collective

FLOWS = {
    Collective.ALLREDUCE: Flow.BOTH,
    Collective.BROADCAST: Flow.DOWN,
    Collective.REDUCE: Flow.UP,
    Collective.ALLGATHER: Flow.ALL_DOWN,
    Collective.REDUCESCATTER: Flow.ALL_UP,
}
MACHINES = {
    "v-two": ("dgx-1v", [0, 1]),
    "v-two-wide": ("dgx-1v", [0, 3]),
    "v-three": ("dgx-1v", [0, 1, 2]),
    "v-three-pcie": ("dgx-1v", [0, 1, 4]),
    "v-four": ("dgx-1v", [0, 1, 2, 3]),
    "v-four-pcie": ("dgx-1v", [1, 4, 5, 7]),
    "v-five": ("dgx-1v", [0, 1, 4, 5, 7]),
    "v-six": ("dgx-1v", [0, 1, 2, 3, 4, 5]),
    "v-seven": ("dgx-1v", range(7)),
    "v-eight": ("dgx-1v", range(8)),
    "dgx2-three": ("dgx-2", range(3)),
    "dgx2": ("dgx-2", range(16)),
}
COUNTS = (0, 1, 7, 1009)


@cache
def topology_of(name):
    known, gpus = MACHINES[name]
    return induce(machine(known, "all"), gpus)


@cache
def program_of(name, collective, root=0, channels=1):
    topology = topology_of(name)
    flow = FLOWS[collective]
    peer = ring_peer(topology, flow, root if flow.is_rooted else None)
    return lower_rings(peer, topology, collective, root, channels)


def inputs_of(program, count):
    random = np.random.default_rng(count)
    return list(random.integers(-99, 99, (program.size, program.input_blocks * count)))


def results(program, inputs):
    """What each rank must hold at the end, by numpy; None where it holds nothing."""
    total = sum(inputs)
    match program.collective:
        case Collective.ALLREDUCE:
            return [total] * program.size
        case Collective.BROADCAST:
            return [inputs[program.root]] * program.size
        case Collective.REDUCE:
            return [total if rank == program.root else None for rank in range(program.size)]
        case Collective.ALLGATHER:
            return [np.concatenate(inputs)] * program.size
    return np.split(total, program.size)


@pytest.mark.parametrize("collective", FLOWS, ids=lambda collective: collective.label)
@pytest.mark.parametrize("name", MACHINES)
def test_they_verify_over_their_links_and_give_the_right_result(name, collective):
    program = program_of(name, collective, topology_of(name).size - 1)
    verify(program, links=Routes(topology_of(name)).pairs())
    assert program.name == "ring"
    assert program.pipelined
    for count in COUNTS[:3] if program.size == 16 else COUNTS:
        inputs = inputs_of(program, count)
        for in_place in (False, True):
            call = reference.Call(chunk_elements=16, in_place=in_place, seed=count)
            got = reference.run(program, inputs, call)
            for rank, want in enumerate(results(program, inputs)):
                assert want is None or np.array_equal(got[rank], want), (count, in_place, rank)


@pytest.mark.parametrize("name", ["v-two", "v-three-pcie", "v-four", "v-five"])
@pytest.mark.parametrize("collective", FLOWS, ids=lambda collective: collective.label)
def test_the_native_core_runs_them(name, collective, monkeypatch):
    program = program_of(name, collective)
    plan = star_plan(program.size)
    load_ring_instead(monkeypatch, program, plan)
    sent = {count: inputs_of(program, count) for count in COUNTS}

    def body(comm):
        return [call(comm, collective, sent[count][comm.rank], place) for count, place in CALLS]

    got = run_threads(plan, body, chunk_bytes=256, eager_bytes=0)
    for at, (count, _) in enumerate(CALLS):
        for rank, want in enumerate(results(program, sent[count])):
            assert want is None or np.array_equal(got[rank][at], want)


CALLS = [(count, in_place) for count in COUNTS for in_place in (False, True)]


def call(comm, collective, values, in_place):
    """One call with buffers in the arena, where rings are used."""
    mine = comm.empty(values.shape, values.dtype)
    mine[:] = values
    out = {"out": mine} if in_place else {}
    match collective:
        case Collective.ALLREDUCE:
            result = comm.allreduce(mine, **out)
        case Collective.BROADCAST:
            result = comm.broadcast(mine, 0, **out)
        case Collective.REDUCE:
            result = comm.reduce(mine, 0, **(out if comm.rank == 0 else {}))
        case Collective.ALLGATHER:
            result = comm.allgather(mine)
        case _:
            result = comm.reducescatter(mine)
    return None if result is None else np.array(result)


def load_ring_instead(monkeypatch, program, plan):
    """Let every group take the ring where buffers lie in the arena."""

    def load(self, collective, root):
        if not self.group.covers(int(collective), root):
            direct = program
            if collective is not program.collective:
                direct = lower(plan, collective, root=root)
            staged = lower(plan, collective, root=root, addressing=Addressing.STAGED)
            for each in (direct, staged):
                self.group.load(encode(each, self.rank))

    monkeypatch.setattr(CpuExecutor, "load", load)


def bytes_over_hops(program):
    """Shares that cross every (from, to, kind), as part of all data."""
    load = Counter()
    for rank, steps in enumerate(program.ranks):
        for channel in steps.channels:
            part = Fraction(channel.part.stop - channel.part.start, program.shares)
            for step in channel.steps:
                if isinstance(step, Reduce):
                    for way in step.moves(rank):
                        load[way] += part
    return load


@pytest.mark.parametrize("name", ["v-two-wide", "v-three-pcie", "v-six", "v-eight", "dgx2"])
def test_every_hop_of_an_allreduce_carries_twice_the_data_but_for_two_blocks(name):
    """The known optimum: 2 (n - 1) / n of a ring's data over each of its hops."""
    topology = topology_of(name)
    peer = ring_peer(topology, Flow.BOTH)
    program = program_of(name, Collective.ALLREDUCE)
    rings = directed_rings(peer, topology)
    width = sum(ring.width for ring in rings)
    want = Counter()
    for ring in rings:
        hops = zip(ring.order, (*ring.order[1:], ring.order[0]), ring.kinds, strict=True)
        for hop in hops:
            want[hop] += ring.width / width * Fraction(2 * (program.size - 1), program.size)
    assert bytes_over_hops(program) == want


@pytest.mark.parametrize("collective", FLOWS, ids=lambda collective: collective.label)
def test_they_take_links_of_the_rings_only_and_name_their_kind(collective):
    for name in ("v-eight", "v-three-pcie"):
        topology = topology_of(name)
        peer = ring_peer(topology, FLOWS[collective], 0 if collective.is_rooted else None)
        wanted = {
            (link.src, link.dst, link.kind.value)
            for ring in peer.rings
            for link in (topology.links[at] for at in (*ring.links, *ring.back))
        }
        assert set(ways(program_of(name, collective))) <= wanted


def test_a_ring_used_both_ways_is_two_directed_rings():
    topology = topology_of("v-four")
    peer = ring_peer(topology, Flow.BOTH)
    rings = directed_rings(peer, topology)
    assert len(rings) == 2 * len(peer.rings) == 4
    orders = {ring.order for ring in rings}
    for ring in peer.rings:
        assert ring.order in orders
        assert (ring.order[0], *reversed(ring.order[1:])) in orders


def test_channels_cut_a_ring_without_changing_what_it_moves():
    for collective in FLOWS:
        one, three = (program_of("v-four", collective, 0, channels) for channels in (1, 3))
        verify(three)
        assert bytes_over_hops(three) == bytes_over_hops(one)
        count_of = [sum(len(each.channels) for each in p.ranks) for p in (one, three)]
        assert count_of[1] == 3 * count_of[0]


def test_too_thin_a_ring_is_left_out():
    """A ring with a 100000th of the width gets no share; the data is whole all the same."""
    peer = ring_peer(topology_of("v-four"), Flow.BOTH)
    thin = type(peer.rings[0])(
        peer.rings[0].order, peer.rings[0].links, peer.rings[0].back, Fraction(1, 5)
    )
    lopsided = RingPeer(RingKind.NVLINK, (thin, *peer.rings[1:]), Fraction(1), is_exact=True)
    for collective in (Collective.ALLREDUCE, Collective.BROADCAST):
        verify(lower_rings(lopsided, topology_of("v-four"), collective))


@settings(max_examples=25)
@given(
    topology=st.one_of(meshes(), switches(max_size=5), pcie_trees(max_size=5)),
    collective=st.sampled_from(list(FLOWS)),
    data=st.data(),
)
def test_any_rings_verify(topology, collective, data):
    root = data.draw(st.integers(0, topology.size - 1))
    flow = FLOWS[collective]
    peer = ring_peer(topology, flow, root if flow.is_rooted else None)
    if peer.rings:
        program = lower_rings(peer, topology, collective, root, data.draw(st.integers(1, 2)))
        verify(program, links=Routes(topology).pairs())


def test_no_step_of_a_ring_can_be_left_out():
    program = program_of("v-three", Collective.ALLREDUCE)
    dropped = [(what, each) for what, each in mutants(program) if " drop " in what]
    assert len(dropped) > 100
    accepted = []
    for what, mutant in dropped:
        try:
            verify(mutant)
        except ProgramError:
            continue
        accepted.append(what)
    assert not accepted


def test_what_cannot_be_is_said():
    topology = topology_of("v-three")
    peer = ring_peer(topology, Flow.BOTH)
    with pytest.raises(ProgramError, match="root 3 is none of the 3 ranks"):
        lower_rings(peer, topology, Collective.BROADCAST, 3)
    with pytest.raises(ProgramError, match="0 channels per ring"):
        lower_rings(peer, topology, Collective.ALLREDUCE, channels_per_ring=0)
    with pytest.raises(ProgramError, match="alltoall is nothing that rings do"):
        lower_rings(peer, topology, Collective.ALLTOALL)
    path = mesh_of(3, {(0, 1): 1, (1, 0): 1, (1, 2): 1, (2, 1): 1})
    with pytest.raises(ProgramError, match="no ring joins the 3 ranks"):
        lower_rings(ring_peer(path, Flow.BOTH), path, Collective.ALLREDUCE)
