"""Named calls: any order, any thread, groups, rows, handles, mistakes."""

import gc
import threading
import warnings
import weakref

import torch
from torch_ops_cases import differs, problems, refused

import blinkrun.torch as blink

CASES = (
    "any_order",
    "several_threads",
    "repeated_calls",
    "repeated_calls_that_differ_in_one_thing",
    "repeated_calls_keep_no_memory",
    "groups_in_one_call",
    "alltoall_in_equal_parts",
    "alltoall_in_unequal_parts",
    "alltoall_refused",
    "reducescatter_rows",
    "adaptive_sums",
    "sparse_sums",
    "sparse_refused",
    "handles",
    "dropped_handles_keep_their_tensors",
    "mismatches",
    "names_under_way",
    "names_and_groups_refused",
    "the_old_way_to_ask_for_averages",
    "the_caller_is_named",
)


def ranks():
    return range(blink.size())


def of_rank(rank, *shape):
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 3 + rank * 5) % 7 + 1.0).view(shape)


def total(*shape):
    return sum(of_rank(rank, *shape) for rank in ranks())


def any_order():
    """Every rank begins elsewhere in the list; sizes about those that are fused or not."""
    sizes = [1, 0, 7, 40_000, 3, 500_001, 64, 2]
    order = [(i + blink.rank() * 3) % len(sizes) for i in range(len(sizes))]
    handles = {}
    for i in order:
        handles[i] = blink.allreduce_async(
            of_rank(blink.rank(), sizes[i]), name=f"n{i}", op=blink.Sum
        )
        handles[-i - 1] = blink.broadcast_async(of_rank(blink.rank(), 2), 0, name=f"b{i}")
    found = []
    for i in reversed(order):
        found += problems(**{f"n{i}": differs(handles[i].wait(), total(sizes[i]))})
        found += problems(**{f"b{i}": differs(handles[-i - 1].wait(), of_rank(0, 2))})
    return found


def again(tensor, *, in_place, **how):
    """One line of the script, so that a second call can be taken for a repetition of the first."""
    begin = blink.allreduce_async_ if in_place else blink.allreduce_async
    return begin(tensor, name="again", **how)


def repeated_calls():
    """The same name from the same line with other values, in the same memory and in new one."""
    found = []
    kept = torch.empty(7)
    for step in range(6):
        for in_place in (True, False):
            tensor = kept if step % 2 else torch.empty(7)
            tensor.copy_(of_rank(blink.rank(), 7) + step)
            got = again(tensor, in_place=in_place, op=blink.Sum).wait()
            found += problems(
                sums=differs(got, total(7) + step * blink.size()),
                place=(got is tensor) is not in_place,
                given=not in_place and differs(tensor, of_rank(blink.rank(), 7) + step),
            )
    return found


def repeated_calls_that_differ_in_one_thing():
    """What fits the last call of the name but for one thing is not taken for it."""
    plain = torch.arange(6.0).view(2, 3) + 1
    size = blink.size()
    changes = (
        (plain, {"op": blink.Sum}, plain * size),
        (plain, {"op": blink.Max}, plain),
        (plain.double(), {"op": blink.Max}, plain.double()),
        (plain.view(3, 2), {"op": blink.Max}, plain.view(3, 2)),
        (plain.t(), {"op": blink.Max}, plain.t()),
        (plain, {"op": blink.Sum, "prescale_factor": 2.0}, plain * 2 * size),
        (plain, {"op": blink.Sum, "postscale_factor": 3.0}, plain * 3 * size),
        (plain, {}, plain),
        (plain.int(), {}, plain.int()),
        (plain.short(), {}, plain.short()),
        (torch.imag(torch.complex(plain, plain).conj()), {"op": blink.Sum}, -plain * size),
        (plain, {"op": blink.Sum, "process_set": blink.global_process_set}, plain * size),
        (plain.requires_grad_(False), {"op": blink.Adasum}, plain),
    )
    found = []
    for number, (tensor, how, wanted) in enumerate(changes):
        for in_place in (True, False, True):
            work = tensor.clone(memory_format=torch.preserve_format)
            work = torch.imag(torch.complex(plain, plain).conj()) if tensor.is_neg() else work
            got = again(work, in_place=in_place, **how).wait()
            found += problems(**{f"change{number}": differs(got, wanted)})
    for wrong in (plain.to_sparse(), [1.0], None, torch.empty(2, 3, device="meta")):
        text = refused(lambda wrong=wrong: again(wrong, in_place=True, op=blink.Sum))
        found += problems(wrong="InvalidBufferError" not in text and text)
    return found


def repeated_calls_keep_no_memory():
    tensors = [torch.ones(5) for _ in range(3)]
    for tensor in tensors:
        for in_place in (True, False):
            again(tensor, in_place=in_place, op=blink.Sum).wait()
    gone = [weakref.ref(tensor) for tensor in tensors]
    del tensors, tensor
    gc.collect()
    return problems(kept=any(ref() is not None for ref in gone))


def several_threads():
    found = []

    def work(thread):
        for step in range(20):
            name = f"t{thread}.{step}"
            got = blink.allreduce(of_rank(blink.rank(), thread + 1), name=name, op=blink.Sum)
            found.extend(problems(**{name: differs(got, total(thread + 1))}))
            if step % 5 == thread:
                rows = blink.allgather(torch.tensor([blink.rank()]), name=f"{name}.rows")
                found.extend(problems(rows=differs(rows, torch.arange(blink.size()))))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found + [f"{thread.name} hangs" for thread in threads if thread.is_alive()]


def groups_in_one_call():
    rank, size = blink.rank(), blink.size()
    shapes = [(3,), (), (0, 2), (2, size)]
    given = [of_rank(rank, *shape) for shape in shapes]
    found = []
    for results in (
        blink.grouped_allreduce(given, op=blink.Sum, name="g"),
        blink.synchronize(blink.grouped_allreduce_async(given, op=blink.Sum)),
    ):
        found += [problems(sum=differs(r, total(*s))) for r, s in zip(results, shapes, strict=True)]
    places = [of_rank(rank, *shape) for shape in shapes] + [of_rank(rank, 2, 2)[:, 0]]
    same = blink.grouped_allreduce_(places, op=blink.Sum)
    again = blink.synchronize(blink.grouped_allreduce_async_(places, op=blink.Max))
    found += [
        problems(place=differs(place, total(*shape)), same=None if a is b is place else "moved")
        for place, shape, a, b in zip(places, [*shapes, None][:4], same, again, strict=False)
    ]
    found.append(problems(column=differs(places[4], total(2, 2)[:, 0])))
    rows = [of_rank(rank, rank + 1, 2), of_rank(rank, 2)]
    for gathered in (
        blink.grouped_allgather(rows),
        blink.synchronize(blink.grouped_allgather_async(rows, name="rows")),
    ):
        want = [torch.cat([of_rank(r, r + 1, 2) for r in ranks()])]
        want.append(torch.cat([of_rank(r, 2) for r in ranks()]))
        found += [problems(rows=differs(g, w)) for g, w in zip(gathered, want, strict=True)]
    wide = [of_rank(rank, 2 * size, 3), of_rank(rank, size)]
    for parts in (
        blink.grouped_reducescatter(wide, op=blink.Sum),
        blink.synchronize(blink.grouped_reducescatter_async(wide, name="parts", op=blink.Sum)),
    ):
        want = [total(2 * size, 3)[2 * rank : 2 * rank + 2], total(size)[rank : rank + 1]]
        found += [problems(part=differs(p, w)) for p, w in zip(parts, want, strict=True)]
    return [line for lines in found for line in lines]


def alltoall_in_equal_parts():
    rank, size = blink.rank(), blink.size()
    mine = torch.arange(2 * size * 3).view(2 * size, 3) + 1000 * rank
    want = torch.cat(
        [(torch.arange(6 * size).view(-1, 3) + 1000 * r)[2 * rank : 2 * rank + 2] for r in ranks()]
    )
    got, counts = blink.synchronize(blink.alltoall_async(mine, name="equal"))
    return problems(
        alone=differs(blink.alltoall(mine), want),
        later=differs(got, want),
        counts=differs(counts, torch.full((size,), 2, dtype=torch.int32)),
        turned=differs(blink.alltoall(mine.t().contiguous().t()), want),
    )


def alltoall_in_unequal_parts():
    """Rank r sends r + s - 1 rows to rank s, none where that is not positive."""
    rank = blink.rank()
    splits = {r: [max(r + s - 1, 0) for s in ranks()] for r in ranks()}

    def rows_of(r):
        return torch.arange(sum(splits[r]) * 2).view(-1, 2).double() + 1000 * r

    want = torch.cat([rows_of(r).split(splits[r])[rank] for r in ranks()])
    counts = torch.tensor([splits[r][rank] for r in ranks()])
    found = []
    for kind in (list, tuple, torch.tensor, lambda s: torch.tensor(s, dtype=torch.int32)):
        given = kind(splits[rank])
        got, received = blink.alltoall(rows_of(rank), given, name="unequal")
        dtype = given.dtype if isinstance(given, torch.Tensor) else torch.int32
        found += problems(rows=differs(got, want), counts=differs(received, counts.to(dtype)))
    nothing, received = blink.alltoall(torch.zeros(0, 3), [0] * blink.size())
    return found + problems(
        nothing=differs(nothing, torch.zeros(0, 3)),
        none=differs(received, torch.zeros(blink.size(), dtype=torch.int32)),
    )


def alltoall_refused():
    size = blink.size()
    rows = torch.zeros(2 * size + 1, 2)

    def given(splits):
        return refused(lambda: blink.alltoall(rows, splits, name="a"))

    return {
        "sum": given([2] * size),
        "length": given([2] * size + [1]),
        "negative": given([-1] + [2] * (size - 2) + [2 * size + 1 - 2 * (size - 2) + 1]),
        "floats": given(torch.ones(size)),
        "words": given(["a"] * size),
        "divided": refused(lambda: blink.alltoall(rows)) if size > 1 else "cannot be divided",
        "scalar": refused(lambda: blink.alltoall(torch.tensor(1.0))),
    }


def reducescatter_rows():
    rank, size = blink.rank(), blink.size()
    found = []
    for rows in (0, 1, size, size + 1, 3 * size - 1, 101):
        counts = [rows // size + (r < rows % size) for r in ranks()]
        start = sum(counts[:rank])
        for op, want in (
            (blink.Sum, total(rows, 3)),
            (blink.Average, total(rows, 3) / size),
            (blink.Max, torch.stack([of_rank(r, rows, 3) for r in ranks()]).amax(0)),
        ):
            mine = of_rank(rank, rows, 3)
            got = blink.reducescatter(mine, op=op, name="rs")
            later = blink.synchronize(blink.reducescatter_async(mine.int(), op=blink.Sum))
            sums = total(rows, 3).int()[start : start + counts[rank]]
            found += problems(
                rows=differs(got, want[start : start + counts[rank]]),
                later=differs(later, sums),
                input=differs(mine, of_rank(rank, rows, 3)),
            )
    scaled = blink.reducescatter(
        torch.ones(size), op=blink.Sum, prescale_factor=0.5, postscale_factor=3.0
    )
    scalar = refused(lambda: blink.reducescatter(torch.tensor(1.0)))
    try:
        blink.reducescatter(torch.ones(size), op=blink.Adasum)
        adasum = "no error"
    except NotImplementedError:
        adasum = None
    return found + problems(
        scaled=differs(scaled, torch.full((1,), 1.5 * size)),
        scalar=None if "a scalar has no rows" in scalar else scalar,
        adasum=adasum,
    )


def adaptive_sums():
    """The same vector on all ranks stays what it is; orthogonal ones add up."""
    rank, size = blink.rank(), blink.size()
    found = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        same = torch.arange(1.0, 6.0).to(dtype)
        apart = torch.zeros(size + 1, dtype=dtype)
        apart[rank] = rank + 1.0
        want = torch.arange(1.0, size + 2).to(dtype)
        want[size] = 0
        blink.allreduce_(apart, op=blink.Adasum)
        parallel = blink.allreduce(same, op=blink.Adasum, name="same")
        close = torch.finfo(dtype).eps * 8
        for got, wanted in ((parallel, same), (apart, want)):
            if got.dtype != dtype or not torch.allclose(got, wanted, rtol=close, atol=close):
                found.append(f"{dtype}: {got} instead of {wanted}")
    return found


def sparse_of(rank, rows=6):
    """Rank r has rows r and 0 of a matrix, row 0 twice."""
    indices = torch.tensor([[rank % rows, 0, 0]])
    return torch.sparse_coo_tensor(indices, of_rank(rank, 3, 2), (rows, 2), check_invariants=True)


def sparse_sums():
    dense = sum(sparse_of(rank).to_dense() for rank in ranks())
    total_handle = blink.sparse_allreduce_async(sparse_of(blink.rank()), name="s", op=blink.Sum)
    average = blink.sparse_allreduce_async(sparse_of(blink.rank()), op=blink.Average)
    indices = torch.zeros(1, 0, dtype=torch.int64)
    empty = torch.sparse_coo_tensor(indices, torch.zeros(0, 2), (6, 2), check_invariants=True)
    nothing = blink.sparse_allreduce_async(empty if blink.rank() else sparse_of(0), "e", blink.Sum)
    result = total_handle()
    both = torch.eye(3).to_sparse()
    diagonal = blink.synchronize(blink.sparse_allreduce_async(both, "d", blink.Sum))
    return problems(
        layout=None if result.layout == torch.sparse_coo else str(result.layout),
        sum=differs(result.to_dense(), dense),
        again=differs(blink.synchronize(total_handle).to_dense(), dense),
        average=differs(average().to_dense(), dense / blink.size()),
        nothing=differs(nothing().to_dense(), sparse_of(0).to_dense()),
        diagonal=differs(diagonal.to_dense(), torch.eye(3) * blink.size()),
        polled=None if blink.poll(total_handle) else "not done",
    )


def sparse_refused():
    handle = blink.sparse_allreduce_async(sparse_of(0, 6 if blink.rank() else 7), "size", blink.Sum)
    return {
        "dense": refused(lambda: blink.sparse_allreduce_async(torch.ones(2), "x", blink.Sum)),
        "op": refused(lambda: blink.sparse_allreduce_async(sparse_of(0), "x", blink.Max)),
        "size": refused(handle),
    }


def handles():
    mine = of_rank(blink.rank(), 4)
    handle = blink.allreduce_async(mine, name="polled", op=blink.Sum)
    while not blink.poll(handle):
        pass
    first, again = blink.synchronize(handle), blink.synchronize(handle)
    column = of_rank(blink.rank(), 4, 2)[:, 0]
    polled = blink.allreduce_async_(column, op=blink.Sum)
    while not polled.done():
        pass
    bad = blink.broadcast_async(torch.ones(1 + blink.rank()), 0, name="bad")
    lines = [refused(bad.wait), refused(lambda: blink.synchronize(bad))]
    if blink.size() == 1:
        lines = ["MismatchError", "MismatchError"]
    return problems(
        twice=None if first is again else "another tensor",
        sum=differs(first, total(4)),
        column=differs(column, total(4, 2)[:, 0]),
        done=None if blink.poll(bad) else "a failed call is not done",
        failed=None if all(line.startswith("MismatchError") for line in lines) else str(lines),
        number=None
        if "takes what an _async call" in refused(lambda: blink.synchronize(3))
        else "3",
        tensor=None
        if "takes what an _async call" in refused(lambda: blink.poll(mine))
        else "tensor",
        named=None if handle.name == "polled" else handle.name,
    )


def dropped_handles_keep_their_tensors():
    """Until the call is through, and no longer."""
    late = blink.rank() == blink.size() - 1 and blink.size() > 1
    mine = of_rank(blink.rank(), 100_000)
    alive = weakref.ref(mine)
    if not late:
        blink.allreduce_async_(mine, name="dropped", op=blink.Sum)
    kept = mine if late else None
    del mine
    gc.collect()
    held = alive() is not None
    blink.barrier()
    if late:
        got = blink.allreduce(kept, name="dropped", op=blink.Sum)
        wrong = differs(got, total(100_000))
        del kept, got
    else:
        wrong = None
    blink.barrier()
    blink.barrier()
    gc.collect()
    return problems(
        early=None if held or blink.size() == 1 else "the tensor is gone before its time",
        late=None if alive() is None else "the tensor is still there",
        sum=wrong,
    )


def mismatches():
    """Every rank is told; the last one is different."""
    size = blink.size()
    odd = blink.rank() == size - 1
    calls = {
        "shape": lambda: blink.allreduce(torch.ones(17, 3 + odd), name="m.shape"),
        "dimensions": lambda: blink.allreduce(
            torch.ones(*((2, 6) if odd else (12,))), name="m.dim"
        ),
        "dtype": lambda: blink.allreduce(torch.ones(3).to(torch.float64 if odd else torch.float32)),
        "op": lambda: blink.allreduce(
            torch.ones(3), op=blink.Max if odd else blink.Sum, name="m.op"
        ),
        "factor": lambda: blink.allreduce(torch.ones(3), prescale_factor=1.0 + odd, name="m.f"),
        "root": lambda: blink.broadcast(torch.ones(3), int(odd) * (size - 1), name="m.root"),
        "rows": lambda: blink.allgather(torch.ones(2, 2 + odd), name="m.rows"),
        "group": lambda: blink.grouped_allreduce([torch.ones(2)] * (2 + odd), name="m.group"),
        "kind": lambda: (blink.allgather if odd else blink.allreduce)(torch.ones(2), name="m.kind"),
        "scatter": lambda: blink.reducescatter(torch.ones(size, 2 + odd), name="m.rs"),
    }
    answers = {name: refused(call) for name, call in calls.items()}
    sound = blink.allreduce(torch.ones(2), op=blink.Sum, name="m.shape")
    answers["afterwards"] = differs(sound, torch.full((2,), float(size))) or "works"
    return answers


def names_under_way():
    """Rank 0 first; the others hear nothing of its second try."""
    is_first = blink.rank() == 0
    lines = []
    if is_first:
        handle = blink.allreduce_async(torch.ones(3), name="twice", op=blink.Sum)
        if blink.size() > 1:
            lines.append(refused(lambda: blink.allreduce_async(torch.ones(3), name="twice")))
            lines.append(refused(lambda: blink.broadcast_(torch.ones(3), 0, name="twice")))
    blink.barrier()
    if not is_first:
        handle = blink.allreduce_async(torch.ones(3), name="twice", op=blink.Sum)
    got = blink.synchronize(handle)
    return [line for line in lines if not line.startswith("DuplicateNameError")] + problems(
        sum=differs(got, torch.full((3,), float(blink.size())))
    )


def names_and_groups_refused():
    return {
        "name": refused(lambda: blink.allreduce(torch.ones(1), name=3)),
        "none": refused(lambda: blink.grouped_allreduce([])),
        "tensor": refused(lambda: blink.grouped_allgather(torch.ones(2))),
        "item": refused(lambda: blink.grouped_allreduce([torch.ones(1), 2.0])),
    }


def the_old_way_to_ask_for_averages():
    mine = of_rank(blink.rank(), 2)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        sums = blink.allreduce(mine, average=False)
        means = blink.allreduce(mine, True)
    both = refused(lambda: blink.allreduce(mine, average=True, op=blink.Sum))
    place = refused(lambda: blink.allreduce(mine, blink.Sum))
    return problems(
        sums=differs(sums, total(2)),
        means=differs(means, total(2) / blink.size()),
        warned=None if [w.category for w in heard] == [DeprecationWarning] * 2 else str(heard),
        here=None if all(w.filename == __file__ for w in heard) else heard[0].filename,
        both=None if "are both given" in both else both,
        place=None if "operations are given as op=" in place else place,
    )


def the_caller_is_named():
    """Also of a call in a backward pass, and of one that is made again from another line."""
    shapes = [torch.ones(1 + blink.rank()), torch.ones(1 + blink.rank())]
    lines = [refused(lambda: blink.allreduce(shapes[0], name="where"))]
    lines += [refused(lambda: blink.allreduce(shapes[1], name="where"))]
    return lines
