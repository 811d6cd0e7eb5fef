"""From the machine to the program: what the planner gives is lowered, verified and run."""

from functools import cache

import numpy as np
import pytest
from support.programs import lowered

from blinkrun.executors import reference
from blinkrun.planner.make import make_plan
from blinkrun.planner.plan import Plan
from blinkrun.schedule.ir import Addressing
from blinkrun.schedule.verify import verify
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import Cpu, Host, cpu_topology
from blinkrun.topology.graph import Topology, induce
from blinkrun.types import Collective

TOPOLOGIES = {
    "dgx1v": lambda: machine("dgx-1v"),
    "dgx1v-three": lambda: induce(machine("dgx-1v"), [0, 1, 4]),
    "dgx1p-six": lambda: induce(machine("dgx-1p"), range(6)),
    "dgx2-four": lambda: induce(machine("dgx-2"), range(4)),
    "one-socket": lambda: cpu_topology(host(sockets=1), 4),
    "two-sockets": lambda: cpu_topology(host(sockets=2), 5),
}
OVER_TREES = [c for c in Collective if c not in (Collective.BARRIER, Collective.ALLTOALL)]


def host(sockets: int) -> Host:
    return Host(tuple(Cpu(4 * s + c, c, s, s) for s in range(sockets) for c in range(4)))


@cache
def planned(name: str) -> tuple[Topology, Plan]:
    topology = TOPOLOGIES[name]()
    return topology, make_plan(topology)


@pytest.mark.parametrize("collective", OVER_TREES, ids=lambda collective: collective.label)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_programs_of_real_machines_verify_over_their_links(name, collective):
    topology, plan = planned(name)
    wired = {(link.src, link.dst) for link in topology.links}
    links = wired | {(dst, src) for src, dst in wired}  # a link lets both ends address each other
    for addressing in Addressing:
        verify(lowered(plan, collective, root=1, addressing=addressing), links=links)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_they_sum(name):
    _, plan = planned(name)
    random = np.random.default_rng(1)
    inputs = list(random.integers(-99, 99, (plan.size, 1009)))
    for addressing in Addressing:
        program = lowered(plan, Collective.ALLREDUCE, addressing=addressing)
        got = reference.run(program, inputs, reference.Call(chunk_elements=32, seed=1))
        assert all(np.array_equal(each, sum(inputs)) for each in got)


def test_a_socket_is_reduced_in_one_fused_step_per_rank():
    _, plan = planned("one-socket")
    program = lowered(plan, Collective.ALLREDUCE)
    assert program.name == "stars"
    assert not program.pipelined
