"""The timeline, as Perfetto reads it."""

import json
from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
from support.simulated import MB, chain_program, line, machine_of, pair, pulls

from blinkrun.errors import UsageError
from blinkrun.planner.make import in_shares
from blinkrun.planner.packing import Flow
from blinkrun.planner.solve import pack
from blinkrun.schedule.lower import lower_packing
from blinkrun.simulator.cost import FREE, OURS
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.trace import RANKS, RESOURCES, chrome_trace
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import LinkKind, induce
from blinkrun.types import Collective


@cache
def four_gpus():
    topology = induce(machine("dgx-1v", "all"), [0, 1, 4, 7])
    packing = in_shares(topology, *pack(topology, Flow.BOTH))
    program = lower_packing(packing, Collective.ALLREDUCE, channels_per_tree=2)
    run = simulate(program, topology, size_bytes=10 * MB, chunk_bytes=MB // 4, trace=True)
    return topology, run


def slices(trace, process):
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == process:
            found[event["tid"]].append(event)
    return found


def names(trace, process):
    return {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == process
    }


def test_it_is_json_and_the_same_every_time():
    topology, run = four_gpus()
    trace = chrome_trace(run, topology)
    assert json.loads(json.dumps(trace)) == trace == chrome_trace(run, topology)
    assert trace["otherData"]["time_ns"] == run.time_ns


@pytest.mark.parametrize("process", [RESOURCES, RANKS])
def test_slices_of_a_track_do_not_overlap_and_every_track_has_a_name(process):
    topology, run = four_gpus()
    trace = chrome_trace(run, topology)
    tracks = slices(trace, process)
    assert set(tracks) == set(names(trace, process))
    for events in tracks.values():
        until = 0.0
        for event in sorted(events, key=lambda each: each["ts"]):
            assert event["ts"] >= until - 1e-9
            until = event["ts"] + event["dur"]
        assert until <= run.time_ns / 1000 + 1e-9


def test_every_transfer_is_on_a_track_of_each_of_its_resources():
    topology, run = four_gpus()
    trace = chrome_trace(run, topology)
    track_names = names(trace, RESOURCES)
    shown = defaultdict(int)
    for track, events in slices(trace, RESOURCES).items():
        shown[track_names[track].partition(" (")[0]] += sum(e["args"]["bytes"] for e in events)
    assert shown == {usage.name: usage.size_bytes for usage in run.usage if usage.size_bytes}


def test_times_are_microseconds_to_the_nanosecond():
    run = simulate(pulls(2, [(1, 0, "")]), pair(), size_bytes=1004, cost=FREE, trace=True)
    (events,) = slices(chrome_trace(run, pair()), RESOURCES).values()
    assert [(event["ts"], event["dur"], event["name"]) for event in events] == [(0, 1.004, "0->1")]


def test_transfers_that_overlap_a_little_have_tracks_of_their_own():
    """The second starts at 900 ns, when the first has 100 of 1024 bytes left to share."""
    kinds = (LinkKind.NVLINK, LinkKind.PCIE)
    topology = machine_of({"bus": 1000}, [(0, 1, ("bus",), kind) for kind in kinds])
    program = pulls(2, [(1, 0, kind.value) for kind in kinds])
    cost = replace(FREE, peer_switch_ns=900)
    trace = chrome_trace(
        simulate(program, topology, size_bytes=2048, cost=cost, trace=True), topology
    )
    assert sorted(names(trace, RESOURCES).values()) == ["bus", "bus (2)"]
    first, second = (events[0] for _, events in sorted(slices(trace, RESOURCES).items()))
    assert first["ts"] + first["dur"] == 1.148
    assert second["ts"] == 0.9


def test_steps_and_waits_fill_a_channel():
    """Rank 2 pulls chunk 1 when rank 1 has it; it waits for that chunk, as long as it takes."""
    topology = machine_of(
        {"slow": 100, "quick": 1000}, [(0, 1, ("slow",)), (1, 2, ("quick",)), (2, 1, ("quick",))]
    )
    run = simulate(
        chain_program(3), topology, size_bytes=2000, chunk_bytes=1000, cost=FREE, trace=True
    )
    trace = chrome_trace(run, topology)
    track = next(t for t, name in names(trace, RANKS).items() if name.startswith("rank 2"))
    shown = [(e["name"], e["ts"], e["dur"]) for e in slices(trace, RANKS)[track]]
    assert shown == [("step 1", 10.0, 1.0), ("wait", 11.0, 9.0), ("step 1", 20.0, 1.0)]


def test_a_run_without_transfers_has_no_timeline():
    run = simulate(chain_program(2), line(2), size_bytes=400)
    with pytest.raises(UsageError, match="trace=True"):
        chrome_trace(run, line(2))
    empty = simulate(chain_program(2), line(2), size_bytes=0, cost=FREE)
    assert len(chrome_trace(empty, line(2))["traceEvents"]) == 2  # two processes, no tracks
    assert chrome_trace(
        simulate(chain_program(2), line(2), size_bytes=4, cost=OURS, trace=True), line(2)
    )
