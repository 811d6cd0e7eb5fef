"""A slow and obvious simulator to compare with: exact fractions, every transfer by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from blinkrun.schedule.chunking import Chunks, chunks_of
from blinkrun.schedule.ir import Channel, Program, Reduce, Signal, Wait
from blinkrun.schedule.routes import Routes
from blinkrun.simulator.cost import Cost
from blinkrun.topology.graph import Topology


@dataclass(eq=False)
class Lane:
    rank: int
    channel: Channel
    chunks: Chunks
    step: int = 0
    chunk: int = 0
    begin_ns: int | None = None  # when the bytes of the current reduce start to move
    flows: list[Flow] = field(default_factory=list)
    end_ns: int | None = None  # when the current reduce is through

    @property
    def is_over(self) -> bool:
        return self.chunk >= self.chunks.num_chunks


@dataclass(eq=False)
class Flow:
    resources: tuple[str, ...]
    left: Fraction  # bytes


def fluid_time(
    program: Program, topology: Topology, size_bytes: int, chunk_bytes: int, cost: Cost
) -> int:
    """Return the time of a program without prologues, in ns, from one event to the next."""
    count = size_bytes // max(program.input_blocks, program.output_blocks) // 4
    cut = max(1, chunk_bytes // 4) if program.pipelined and chunk_bytes else 0
    lanes = [
        Lane(rank, channel, chunks_of(channel.part, program.shares, count, 4, cut))
        for rank, own in enumerate(program.ranks)
        for channel in own.channels
    ]
    capacity = {
        r.name: Fraction(int(r.capacity * cost.efficiency), 1000) for r in topology.resources
    }
    capacity |= {
        f"memory {rank}": Fraction(cost.memory_mb_per_s, 1000) for rank in range(program.size)
    }
    routes = Routes(topology)
    flags: dict[tuple[int, int], int] = {}
    now = cost.launch_ns
    while any(not lane.is_over for lane in lanes):
        changed = True
        while changed:
            taken = [advance(lane, now, flags, cost) for lane in lanes]
            begun = [start(lane, now, routes, cost) for lane in lanes]
            changed = any(taken) or any(begun)
        flows = [flow for lane in lanes for flow in lane.flows]
        rates = rates_of(flows, capacity)
        times = [lane.begin_ns for lane in lanes if lane.begin_ns and lane.begin_ns > now]
        times += [lane.end_ns for lane in lanes if lane.end_ns and lane.end_ns > now]
        times += [now + ceil(flow.left / rates[flow]) for flow in flows]
        if all(lane.is_over for lane in lanes):
            break
        after = min(times)
        for flow in flows:
            flow.left -= rates[flow] * (after - now)
        now = after
        for lane in lanes:
            land(lane, now, routes, cost)
    return now


def advance(lane: Lane, now: int, flags: dict[tuple[int, int], int], cost: Cost) -> bool:
    """Take the lane's next step if it can be taken now."""
    if lane.is_over:
        return False
    step = lane.channel.steps[lane.step]
    if isinstance(step, Wait):
        if flags.get((step.rank, step.flag), 0) < lane.chunk + 1 - step.lag:
            return False
    elif isinstance(step, Signal):
        flags[lane.rank, step.flag] = lane.chunk + 1
    elif lane.end_ns == now:
        lane.begin_ns = lane.end_ns = None
    elif lane.begin_ns is None:
        lane.begin_ns = now + cost.step_ns
        return False
    else:
        return False
    lane.step += 1
    if lane.step == len(lane.channel.steps):
        lane.step, lane.chunk = 0, lane.chunk + 1
    return True


def start(lane: Lane, now: int, routes: Routes, cost: Cost) -> bool:
    """Start the transfers of the lane's reduce if it is time."""
    if lane.begin_ns != now or lane.flows or lane.end_ns is not None:
        return False
    step = lane.channel.steps[lane.step]
    assert isinstance(step, Reduce)
    low, high = lane.chunks.span(lane.chunk)
    size_bytes = Fraction(4 * (high - low))
    links = routes.of(step, lane.rank)
    lane.flows = [Flow(routes.topology.links[link].resources, size_bytes) for link in links]
    local = len(step.dsts) + len(step.srcs) - len(links)
    if cost.memory_mb_per_s and local:
        lane.flows.append(Flow((f"memory {lane.rank}",), local * size_bytes))
    if not lane.flows:
        lane.end_ns = now
    return True


def land(lane: Lane, now: int, routes: Routes, cost: Cost) -> None:
    if lane.flows:
        lane.flows = [flow for flow in lane.flows if flow.left > 0]
        if not lane.flows:
            step = lane.channel.steps[lane.step]
            assert isinstance(step, Reduce)
            kinds = [routes.topology.links[at].kind for at in routes.of(step, lane.rank)]
            lane.end_ns = now + max(map(cost.latency_ns, kinds), default=0)


def rates_of(flows: Sequence[Flow], capacity: dict[str, Fraction]) -> dict[Flow, Fraction]:
    """Max-min fair: raise all rates together, freeze the flows of whatever is full."""
    rates = dict.fromkeys(flows, Fraction(0))
    rising = set(flows)
    left = dict(capacity)
    while rising:
        load = {name: sum(name in flow.resources for flow in rising) for name in left}
        step = min(left[name] / load[name] for name in left if load[name])
        for flow in rising:
            rates[flow] += step
            for name in flow.resources:
                left[name] -= step
        rising = {flow for flow in rising if all(left[name] > 0 for name in flow.resources)}
    return rates
