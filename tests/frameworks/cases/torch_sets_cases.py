"""Process sets, ranks that have no more data, objects, and what this build has."""

import importlib.util
import threading

import torch
from torch_calls_cases import of_rank, ranks
from torch_ops_cases import differs, problems, refused

import blinkrun.torch as blink

CASES = (
    "sets_of_ranks",
    "sets_at_the_same_time",
    "sets_refused",
    "ranks_without_data",
    "nothing_but_sums_while_a_rank_has_joined",
    "objects_of_some_ranks",
    "what_this_build_has",
)


def sets_of_ranks():
    """Even and odd ranks at the same time, sets of one rank among them, then all but the first."""
    rank, size = blink.rank(), blink.size()
    if size == 1:
        return []
    chosen = [list(range(0, size, 2)), list(range(1, size, 2))]
    sets = [
        blink.add_process_set(chosen[0]),
        blink.add_process_set(blink.ProcessSet(chosen[1][::-1])),
    ]
    mine, other = sets if rank % 2 == 0 else sets[::-1]
    members = mine.ranks
    place, count = mine.rank(), mine.size()
    answers = {
        "ranks": None if [s.ranks for s in sets] == chosen else str(sets),
        "included": None if mine.included() and not other.included() else "wrong",
        "place": None if members[place] == rank and count == len(members) else "wrong",
        "numbers": None if 0 < sets[0].process_set_id < sets[1].process_set_id else str(sets),
    }
    want = sum(of_rank(r, 5) for r in members)
    answers["sum"] = differs(
        blink.allreduce(of_rank(rank, 5), name="x", op=blink.Sum, process_set=mine), want
    )
    answers["average"] = differs(
        blink.allreduce(of_rank(rank, 5), name="x", process_set=mine), want / count
    )
    gathered = blink.allgather(of_rank(rank, rank, 1), process_set=mine)
    answers["rows"] = differs(gathered, torch.cat([of_rank(r, r, 1) for r in members]))
    root = members[-1]
    place_of = of_rank(rank, 3)
    blink.broadcast_(place_of, root, process_set=mine)
    answers["root"] = differs(place_of, of_rank(root, 3))
    sent, counts = blink.alltoall(
        torch.full((count,), rank), [1] * count, process_set=mine, name="to all"
    )
    answers["sent"] = differs(sent, torch.tensor(members))
    answers["counts"] = differs(counts, torch.ones(count, dtype=torch.int32))
    answers["scattered"] = differs(
        blink.reducescatter(of_rank(rank, count), op=blink.Sum, process_set=mine),
        sum(of_rank(r, count) for r in members)[place : place + 1],
    )
    blink.barrier(mine)
    answers["objects"] = None
    if blink.allgather_object(rank, process_set=mine) != members:
        answers["objects"] = "wrong"
    if blink.broadcast_object(rank, root, process_set=mine) != root:
        answers["objects"] = "wrong root"
    line = refused(lambda: blink.allreduce(torch.ones(1), process_set=other))
    answers["foreign"] = None if line.startswith("ProcessSetError") else line
    line = refused(lambda: blink.broadcast(torch.ones(1), other.ranks[0], process_set=mine))
    answers["foreign root"] = None if "roots are ranks of the job" in line else line
    answers["foreign place"] = None if "does not belong" in refused(other.rank) else "a rank"
    removed = [blink.remove_process_set(each) for each in sets]
    answers["removed"] = None if removed == [True, True] else str(removed)
    answers["gone"] = None if (mine.process_set_id, mine.size()) == (None, None) else str(mine)
    line = refused(lambda: blink.allreduce(torch.ones(1), process_set=mine))
    answers["used later"] = None if "is not registered" in line else line
    return problems(**answers)


def sets_at_the_same_time():
    """Overlapping sets used by two threads of every rank, in another order on each."""
    size, rank = blink.size(), blink.rank()
    if size < 3:
        return []
    sets = [
        blink.add_process_set(chosen)
        for chosen in ([0, 1], [1, 2], list(range(size))[1:])[: 2 if size == 3 else 3]
    ]
    sets.append(blink.global_process_set)
    mine = [each for each in sets if each.included()]
    found = []

    def work(turn):
        for step in range(10):
            order = mine if (turn + rank + step) % 2 else mine[::-1]
            handles = [
                blink.allreduce_async(
                    of_rank(rank, 3), name=f"o{turn}.{step}", op=blink.Sum, process_set=each
                )
                for each in order
            ]
            for each, handle in zip(order, handles, strict=True):
                want = sum(of_rank(r, 3) for r in each.ranks)
                found.extend(
                    problems(**{f"set {each.process_set_id}": differs(handle.wait(), want)})
                )

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found += ["a thread hangs" for thread in threads if thread.is_alive()]
    for each in sets[:-1]:
        blink.remove_process_set(each)
    return found


def sets_refused():
    size = blink.size()
    first = blink.add_process_set([0]) if size > 1 else None
    return {
        "twice": refused(lambda: blink.add_process_set([0])),
        "all": refused(lambda: blink.add_process_set(range(size))),
        "foreign": refused(lambda: blink.add_process_set([size])),
        "words": refused(lambda: blink.ProcessSet(["a"])),
        "number": refused(lambda: blink.ProcessSet(3)),
        "no set": refused(lambda: blink.allreduce(torch.ones(1), process_set=[0])),
        "new": refused(lambda: blink.barrier(blink.ProcessSet([0]))),
        "global": blink.remove_process_set(blink.global_process_set),
        "unknown": blink.remove_process_set(blink.ProcessSet([0])),
        "removed": True if first is None else blink.remove_process_set(first),
        "everyone": [blink.global_process_set.ranks, blink.global_process_set.process_set_id],
    }


def ranks_without_data():
    """Rank r has r + 1 batches; averages divide by all ranks, in floats and integers."""
    rank, size = blink.rank(), blink.size()
    found = []
    for turn in range(2):
        for step in range(rank + 1):
            givers = range(step, size)
            for op, want in (
                (blink.Average, sum(of_rank(r, 4) for r in givers) / size),
                (blink.Sum, sum(of_rank(r, 4) for r in givers)),
                (blink.Min, torch.stack([of_rank(r, 4) for r in givers]).amin(0)),
                (blink.Max, torch.stack([of_rank(r, 4) for r in givers]).amax(0)),
                (blink.Product, torch.stack([of_rank(r, 4) for r in givers]).prod(0)),
            ):
                got = blink.allreduce(of_rank(rank, 4), name=f"{op!r}{step}", op=op)
                whole = blink.allreduce(of_rank(rank, 4).int(), op=op)
                found += problems(
                    **{
                        f"turn {turn} step {step} {op!r}": differs(got, want),
                        f"turn {turn} step {step} integers {op!r}": differs(whole, want.int()),
                    }
                )
            both = blink.grouped_allreduce(
                [of_rank(rank, 2), of_rank(rank, 3).double()], op=blink.Sum
            )
            want = sum(of_rank(r, 2) for r in givers)
            found += problems(group=differs(both[0], want))
        last = blink.join(-1)
        everyone = blink.allgather_object(last)
        if set(everyone) != {last} or (size > 1 and last == 0):
            found.append(f"last: {everyone}")
    return found


def nothing_but_sums_while_a_rank_has_joined():
    """Unnamed calls fail on the ranks that make them; numbers agree again when all have joined."""
    rank, size = blink.rank(), blink.size()
    if size == 1:
        return []
    lines = []
    for first in ranks():
        if rank != first:
            calls = (
                lambda: blink.allgather(torch.ones(2)),
                lambda root=(first + 1) % size: blink.broadcast(torch.ones(2), root),
                lambda: blink.alltoall(torch.ones(size)),
                lambda: blink.reducescatter(torch.ones(size)),
            )
            lines += [refused(call) for call in calls]
        blink.join()
        lines.append(blink.allgather(torch.tensor([rank])).tolist() == list(ranks()) or "mixed up")
    return [
        line
        for line in lines
        if line is not True and not ("MismatchError" in line and "has joined" in line)
    ]


def objects_of_some_ranks():
    root = blink.size() - 1
    local = blink.rank()
    shout = blink.broadcast_object(lambda x: x * 2 + local, root, name="function")
    mixed = blink.allgather_object(None if blink.rank() else {"a": [1]}, name="mixed")
    return problems(
        function=None if shout(4) == 8 + root else str(shout(4)),
        mixed=None if mixed == [{"a": [1]}] + [None] * root else str(mixed),
        big=None if len(blink.broadcast_object(b"x" * 3_000_000, 0)) == 3_000_000 else "cut",
    )


def what_this_build_has():
    return {
        "mpi": [blink.mpi_built(), blink.mpi_enabled()],
        "threads": refused(blink.mpi_threads_supported) if blink.size() == 1 else "",
        "others": [
            blink.gloo_built(),
            blink.gloo_enabled(),
            blink.nccl_built(),
            blink.cuda_built() is (importlib.util.find_spec("cupy") is None),
            blink.rocm_built(),
            blink.ddl_built(),
            blink.ccl_built(),
        ],
        "homogeneous": blink.is_homogeneous(),
    }
