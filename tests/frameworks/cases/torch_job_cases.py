"""Joining and leaving: whole jobs, parts of them, with process sets from the start, again."""

import json
import tempfile
from pathlib import Path

import torch
from torch_ops_cases import refused

import blinkrun.torch as blink


def run():
    """One after another, on three ranks; each returns what it saw."""
    return {
        case.__name__: case()
        for case in (
            sets_from_the_start,
            sets_that_are_refused,
            sets_of_communicators,
            sets_that_some_ranks_give_twice,
            parts_of_the_job,
            communicators_as_jobs,
            timelines,
            again_and_again,
        )
    }


def total(process_set=blink.global_process_set):
    """The sum of rank + 1 over a set."""
    mine = torch.tensor([blink.rank() + 1])
    return blink.allreduce(mine, op=blink.Sum, name="total", process_set=process_set).item()


def sets_from_the_start():
    outer, inner = blink.ProcessSet([2, 0]), blink.ProcessSet([1])
    before = [outer.process_set_id, outer.size(), outer.ranks]
    blink.init(process_sets=[outer, inner])
    mine = inner if blink.rank() == 1 else outer
    seen = [before, outer.process_set_id, inner.process_set_id, outer.size(), total(mine), total()]
    blink.init()  # does nothing
    seen.append(blink.add_process_set([0, 1]).process_set_id)
    blink.shutdown()
    return [*seen, outer.process_set_id, outer.ranks, blink.is_initialized(), refused(blink.size)]


def sets_that_are_refused():
    """What is right afterwards works, be the job left or not."""
    tries = {
        "twice": [[0, 1], [1, 0]],
        "everyone": [[1], [0, 1, 2]],
        "foreign": [[0, 3]],
        "nobody": [[]],
        "word": "static",
    }
    lines = {}
    for name, sets in tries.items():
        lines[name] = [refused(lambda sets=sets: blink.init(process_sets=sets))]
        lines[name].append(blink.is_initialized())
        blink.shutdown()
    blink.init(process_sets="dynamic")
    two = blink.add_process_set([0, 1])
    lines["afterwards"] = [total(two)] if two.included() else []
    blink.shutdown()
    return lines


def sets_of_communicators():
    """Two communicators that divide the job are two sets."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    part = world.Split(world.Get_rank() % 2, world.Get_rank())
    mine = blink.ProcessSet(part)
    blink.init(comm=world, process_sets=[mine])
    seen = [mine.process_set_id, mine.ranks, total(mine), mine.rank()]
    later = blink.add_process_set(blink.ProcessSet([0, 1]))
    seen.append(later.process_set_id)
    blink.shutdown()
    return seen


def sets_that_some_ranks_give_twice():
    """A duplicate is one to the ranks that gave it; the others go on, and all know the sets."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    part = world.Split(world.Get_rank() % 2, world.Get_rank())
    mine, even = blink.ProcessSet(part), blink.ProcessSet([0, 2])
    if world.Get_rank() == 1:
        blink.init(comm=world, process_sets=[mine, even])
        line = ""
    else:
        line = refused(lambda: blink.init(comm=world, process_sets=[mine, even]))
    again = blink.ProcessSet([2, 0])
    blink.init(process_sets=[again])
    seen = [line, mine.process_set_id, even.process_set_id, again.process_set_id]
    seen += [blink.global_process_set.mpi_comm is world, total(mine)]
    blink.shutdown()
    return [*seen, blink.global_process_set.mpi_comm is None]


def parts_of_the_job():
    """Ranks 0 and 2 make a job, in that order; rank 1 has one of its own."""
    from mpi4py import MPI

    me = MPI.COMM_WORLD.Get_rank()
    members = [1] if me == 1 else [0, 2]
    seen = [refused(lambda: blink.init(comm=[me + 1, me + 2]))]
    blink.init(comm=members)
    seen += [blink.rank(), blink.size(), total()]
    blink.shutdown()
    return seen


def communicators_as_jobs():
    """The ranks the other way round."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    turned = world.Split(0, -world.Get_rank())
    blink.init(comm=turned)
    seen = [blink.rank(), blink.size(), blink.broadcast(torch.tensor(world.Get_rank()), 0).item()]
    blink.shutdown()
    return seen


def timelines():
    blink.init()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        blink.start_timeline(path, mark_cycles=True)
        total()
        running = json.loads(path.read_text()) if path.exists() else []
        total()
        blink.stop_timeline()
        ended = json.loads(path.read_text()) if path.exists() else []
    total()
    blink.shutdown()
    return [len(running) <= len(ended), "allreduce.total" in str(ended)]


def again_and_again():
    sums = []
    for _ in range(3):
        blink.init()
        sums.append(total())
        blink.shutdown()
    blink.init()  # and the process ends without shutdown
    return [*sums, total()]
