"""Moves and forms of calls of the backend blink; what each rank gives is known to all.

A case returns what it found wrong, so that one job can try all types and sizes.
"""

import itertools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch_distributed_values import (
    EXOTIC,
    FLOATS,
    INTS,
    ROOT,
    SHAPES,
    differs,
    everyone,
    folded,
    given,
    rank,
    size,
)

CASES = (
    "moves",
    "uneven_moves",
    "layouts",
    "large_pieces",
    "asynchronous",
    "coalesced",
    "sub_groups",
    "objects",
    "functional_collectives",
    "gradients_through_collectives",
)


def moves():
    bad = []
    for dtype, shape in itertools.product((*FLOATS, *INTS, *EXOTIC, torch.bool), SHAPES):
        what = f"{dtype} {shape}"
        all_given = everyone(dtype, shape)
        mine = given(dtype, shape, rank())
        dist.broadcast(mine, src=ROOT)
        bad += differs(f"broadcast {what}", mine, all_given[ROOT])
        found = [torch.zeros_like(mine) for _ in range(size())]
        dist.all_gather(found, all_given[rank()])
        for got, wanted in zip(found, all_given, strict=True):
            bad += differs(f"all_gather {what}", got, wanted)
        if shape:
            joined = torch.zeros((size() * shape[0], *shape[1:]), dtype=torch.uint8).to(dtype)
            dist.all_gather_into_tensor(joined, all_given[rank()])
            bad += differs(f"all_gather_into_tensor {what}", joined, torch.cat(all_given))
        targets = [torch.zeros_like(mine) for _ in range(size())] if rank() == ROOT else None
        dist.gather(all_given[rank()], targets, dst=ROOT)
        for got, wanted in zip(targets or [], all_given, strict=False):
            bad += differs(f"gather {what}", got, wanted)
        found = torch.zeros_like(mine)
        dist.scatter(found, all_given if rank() == ROOT else None, src=ROOT)
        bad += differs(f"scatter {what}", found, all_given[rank()])
        found = [torch.zeros_like(mine) for _ in range(size())]
        dist.all_to_all(found, [all_given[rank()]] * size())
        for got, wanted in zip(found, all_given, strict=True):
            bad += differs(f"all_to_all {what}", got, wanted)
    return bad


def uneven_moves():
    bad = []
    found = [torch.zeros(owner, 2) for owner in range(size())]
    dist.all_gather(found, torch.full((rank(), 2), float(rank())))
    for owner, got in enumerate(found):
        bad += differs("all_gather", got, torch.full((owner, 2), float(owner)))
    # Rank s sends s + 2 t rows to rank t.
    sends = [rank() + 2 * peer for peer in range(size())]
    comes = [peer + 2 * rank() for peer in range(size())]
    source = torch.cat([torch.full((n, 3), rank() * 10 + t) for t, n in enumerate(sends)])
    wanted = torch.cat([torch.full((n, 3), s * 10 + rank()) for s, n in enumerate(comes)])
    for dtype in (torch.float32, torch.int64, torch.complex64):
        found = torch.zeros_like(wanted).to(dtype)
        dist.all_to_all_single(found, source.to(dtype), comes, sends)
        bad += differs(f"all_to_all_single {dtype}", found, wanted.to(dtype))
    found = [torch.zeros(n, 3) for n in comes]
    dist.all_to_all(found, list(source.float().split(sends)))
    bad += differs("all_to_all", torch.cat(found), wanted.float())
    even = torch.arange(size() * 2.0) + 100 * rank()
    found = torch.zeros(size() * 2)
    dist.all_to_all_single(found, even)
    wanted = torch.cat([torch.arange(2.0) + 2 * rank() + 100 * s for s in range(size())])
    return bad + differs("even", found, wanted)


def layouts():
    """Tensors that are no packed memory: transposed, strided, with a conjugate or negative bit."""
    bad = []
    base = given(torch.float32, (6, 4), rank())
    wanted = folded(torch.add, everyone(torch.float32, (6, 4)))
    turned = base.t()
    dist.all_reduce(turned)
    bad += differs("transposed", turned, wanted.t())
    base = given(torch.float32, (6, 4), rank())
    dist.all_reduce(base[:, ::2])
    bad += differs("strided", base[:, ::2], wanted[:, ::2])
    bad += differs("untouched", base[:, 1::2], given(torch.float32, (6, 4), rank())[:, 1::2])
    line = torch.zeros(2, 12)
    dist.broadcast(line[:, ::3] if rank() != ROOT else line[:, ::3].fill_(5.0), src=ROOT)
    bad += differs("broadcast", line[:, ::3], torch.full((2, 4), 5.0))
    room = torch.zeros(3, 2 * size()).t()
    dist.all_gather_into_tensor(room, torch.full((2, 3), float(rank())))
    wanted = torch.cat([torch.full((2, 3), float(each)) for each in range(size())])
    bad += differs("output of all_gather", room, wanted)
    found = [torch.zeros(4, dtype=torch.complex64) for _ in range(size())]
    turned = torch.full((4,), complex(1, rank())).to(torch.complex64).conj()
    dist.group.WORLD.allgather([found], [turned]).wait()  # torch's own function refuses it
    for each, got in enumerate(found):
        bad += differs("conjugate", got, torch.full((4,), complex(1, -each)).to(torch.complex64))
    found = [torch.zeros(4, dtype=torch.float64) for _ in range(size())]
    dist.all_gather(found, torch.full((4,), 2j + rank(), dtype=torch.complex128).conj().imag)
    bad += differs("negative", found[0], torch.full((4,), -2.0, dtype=torch.float64))
    parameter = torch.nn.Parameter(torch.full((3,), float(rank())))
    dist.all_reduce(parameter)
    return bad + differs("parameter", parameter.data, torch.full((3,), float(sum(range(size())))))


def large_pieces():
    """More than the scratch buffer holds, of a length that no piece divides."""
    bad = []
    count = 1_500_007
    mine = (torch.arange(count) % 1000 + rank()).to(torch.float32)
    targets = [torch.empty(count) for _ in range(size())] if rank() == ROOT else None
    dist.gather(mine, targets, dst=ROOT)
    for owner, got in enumerate(targets or []):
        bad += differs("gather", got, (torch.arange(count) % 1000 + owner).to(torch.float32))
    found = torch.empty(count)
    dist.scatter(found, [mine + t for t in range(size())] if rank() == ROOT else None, src=ROOT)
    wanted = (torch.arange(count) % 1000 + ROOT + rank()).to(torch.float32)
    bad += differs("scatter", found, wanted)
    counts = [count if peer == ROOT else 1 for peer in range(size())]  # the root takes it all
    comes = [count if rank() == ROOT else 1] * size()
    outs = [torch.empty(n) for n in comes]
    dist.all_to_all(outs, [mine[:n].clone() for n in counts])
    for owner, got in enumerate(outs):
        wanted = (torch.arange(comes[0]) % 1000 + owner).to(torch.float32)
        bad += differs("all_to_all", got, wanted)
    bits = torch.full((count,), 1 << rank(), dtype=torch.int32)
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    wanted = torch.full((count,), (1 << size()) - 1, dtype=torch.int32)
    return bad + differs("BOR", bits, wanted)


def asynchronous():
    bad = []
    tensors = [torch.full((100,), float(rank() + at)) for at in range(5)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    later = torch.full((3,), float(rank()))
    dist.all_reduce(later)  # after those before it
    if not all(work.is_completed() and work.is_success() for work in works):
        bad.append("a later call was through before an earlier one")
    works[0].wait()
    for at, tensor in enumerate(tensors):
        total = float(sum(range(size())) + at * size())
        bad += differs("async", tensor, torch.full((100,), total))
    if works[1].result()[0].data_ptr() != tensors[1].data_ptr():
        bad.append("result() is another tensor")
    mine = torch.full((2,), float(rank()))
    future = dist.all_reduce(mine, async_op=True).get_future().then(lambda f: f.value()[0] / size())
    bad += differs("future", future.wait(), torch.full((2,), sum(range(size())) / size()))
    work = dist.barrier(async_op=True)
    work.wait()
    if work.exception() is not None:
        bad.append("exception() of a work that went well")
    done = dist.group.WORLD.allreduce([torch.ones(1)])
    bad += differs(
        "future of a done work", done.get_future().wait()[0], torch.full((1,), 1.0 * size())
    )
    return bad


def coalesced():
    bad = []
    tensors = [torch.full((at + 1,), float(rank())) for at in range(4)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for at, tensor in enumerate(tensors):
        bad += differs("all_reduce", tensor, torch.full((at + 1,), float(sum(range(size())))))
    outs = [torch.empty(size() * 2) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for at, out in enumerate(outs):
            dist.all_gather_into_tensor(out, torch.full((2,), float(rank() + at)))
    manager.wait()
    for at, out in enumerate(outs):
        wanted = torch.arange(float(size())).repeat_interleave(2) + at
        bad += differs("all_gather_into_tensor", out, wanted)
    outs = [torch.empty(1) for _ in range(3)]
    with dist._coalescing_manager():
        for out in outs:
            dist.reduce_scatter_tensor(out, torch.arange(float(size())))
    for out in outs:
        bad += differs("reduce_scatter_tensor", out, torch.full((1,), 1.0 * rank() * size()))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        mine = torch.full((2,), float(rank()))
        dist.broadcast(mine, src=ROOT)
    manager.wait()
    return bad + differs("by device", mine, torch.full((2,), float(ROOT)))


def sub_groups():
    """Several groups at once, used in another order by each rank."""
    bad = []
    everyone_again = dist.new_group()
    pairs = [dist.new_group([first, first + 1]) for first in range(size() - 1)]
    left, right = torch.full((9,), float(rank())), torch.full((9,), float(rank()))
    calls = [(dist.group.WORLD, left), (everyone_again, right)]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for group, tensor in (calls if rank() % 2 else calls[::-1])
    ]
    for work in works:
        work.wait()
    for tensor in (left, right):
        bad += differs("both groups", tensor, torch.full((9,), float(sum(range(size())))))
    for first, pair in enumerate(pairs):
        if rank() in (first, first + 1):
            mine = torch.full((2,), float(rank()))
            dist.all_reduce(mine, group=pair)
            bad += differs("a pair", mine, torch.full((2,), 2.0 * first + 1))
            dist.broadcast(mine.fill_(rank()), src=first + 1, group=pair)  # a global rank
            bad += differs("its root", mine, torch.full((2,), first + 1.0))
            dist.destroy_process_group(pair)
    turned = dist.new_group(list(range(size()))[::-1])
    if dist.get_backend(turned) != "blink":
        bad.append("the backend of a sub-group is not that of the job")
    mine = [None] * size()
    dist.all_gather_object(mine, rank(), group=turned)
    if sorted(mine) != list(range(size())):
        bad.append(f"objects of a sub-group: {mine}")
    return bad


def objects():
    bad = []
    box = [{"from": rank()}, "text"] if rank() == ROOT else [None, None]
    dist.broadcast_object_list(box, src=ROOT)
    if box != [{"from": ROOT}, "text"]:
        bad.append(f"broadcast_object_list: {box}")
    mine = [None]
    dist.scatter_object_list(mine, [{"to": t} for t in range(size())], src=ROOT)
    if mine != [{"to": rank()}]:
        bad.append(f"scatter_object_list: {mine}")
    found = [None] * size()
    dist.all_gather_object(found, "x" * rank())
    if found != ["x" * each for each in range(size())]:
        bad.append(f"all_gather_object: {found}")
    found = [None] * size() if rank() == ROOT else None
    dist.gather_object(("of", rank()), found, dst=ROOT)
    if rank() == ROOT and found != [("of", each) for each in range(size())]:
        bad.append(f"gather_object: {found}")
    return bad


def functional_collectives():
    """Those that DTensor and FSDP2 use, which torch dispatches in C++."""
    group = dist.group.WORLD
    total = float(sum(range(size())))
    mine = torch.full((2,), float(rank()))
    bad = differs(
        "all_reduce", functional.all_reduce(mine, "sum", group) + 0, torch.full((2,), total)
    )
    bad += differs(
        "average", functional.all_reduce(mine, "avg", group) + 0, torch.full((2,), total / size())
    )
    bad += differs(
        "all_gather",
        functional.all_gather_tensor(mine, 0, group) + 0,
        torch.arange(float(size())).repeat_interleave(2),
    )
    bad += differs(
        "reduce_scatter",
        functional.reduce_scatter_tensor(torch.arange(float(size())), "sum", 0, group) + 0,
        torch.full((1,), 1.0 * rank() * size()),
    )
    bad += differs(
        "all_to_all",
        functional.all_to_all_single(torch.full((size(),), 1.0 * rank()), None, None, group) + 0,
        torch.arange(float(size())),
    )
    bad += differs(
        "broadcast", functional.broadcast(mine, ROOT, group) + 0, torch.full((2,), 1.0 * ROOT)
    )
    many = functional.all_reduce_coalesced([mine, mine * 2], "sum", group)
    return bad + differs("coalesced", many[1] + 0, torch.full((2,), 2 * total))


def gradients_through_collectives():
    leaf = torch.full((3,), rank() + 1.0, requires_grad=True)
    (differentiable.all_reduce(leaf) * (rank() + 1)).sum().backward()
    weights = float(sum(range(1, size() + 1)))
    bad = differs("all_reduce", leaf.grad, torch.full((3,), weights))
    leaf = torch.ones(2, requires_grad=True)
    sum(each.sum() for each in differentiable.all_gather(leaf * (rank() + 1))).backward()
    return bad + differs("all_gather", leaf.grad, torch.full((2,), float(size() * (rank() + 1))))
