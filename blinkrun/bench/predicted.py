"""What the simulator says of an allreduce over several hosts, for the plan that a job has made."""

from __future__ import annotations

from dataclasses import replace

from blinkrun.executors.native import EAGER_AREA
from blinkrun.planner.hosts_plan import HostsPlan
from blinkrun.schedule.lower_hosts import lower_eager_hosts, lower_hosts
from blinkrun.simulator.cost import SHARED_MEMORY, Cost
from blinkrun.simulator.engine import simulate
from blinkrun.topology.graph import LinkKind
from blinkrun.types import Collective


def predicted_us(plan: HostsPlan, size_bytes: int) -> float | None:
    """Return how long an allreduce of `size_bytes` should take, in microseconds.

    By the network that the job has measured when it started, and cores that nobody else uses. None
    if the ranks of a host do not follow each other.
    """
    if plan.hosts_of != tuple(sorted(plan.hosts_of)):
        return None  # the simulator's ranks count host by host
    eager = lower_eager_hosts(plan.hosts_of)
    is_eager = size_bytes <= EAGER_AREA // eager.slots
    chunk_bytes = 0 if is_eager else _chunk_bytes(plan, size_bytes)
    packing = plan.packing(Collective.ALLREDUCE)
    program = eager if is_eager else lower_hosts(packing, Collective.ALLREDUCE, plan.hosts_of)
    run = simulate(
        program, plan.joined, size_bytes=size_bytes, chunk_bytes=chunk_bytes, cost=_cost(plan)
    )
    return run.time_ns / 1e3


def _chunk_bytes(plan: HostsPlan, size_bytes: int) -> int:
    for most_bytes, chunk_bytes in plan.chunks(Collective.ALLREDUCE):
        if most_bytes is None or size_bytes <= most_bytes:
            return chunk_bytes
    return 0


def _cost(plan: HostsPlan) -> Cost:
    latency_ns = 1000 * max(network.latency_us for network in plan.network)
    cost = replace(SHARED_MEMORY, name="blinkrun over hosts")
    return cost.with_latencies({LinkKind.NETWORK: latency_ns})
