"""Gradients through collectives, against their rules written out by hand."""

import torch
from torch_ops_cases import differs, problems, refused

import blinkrun.torch as blink

CASES = (
    "allreduce_gradients",
    "least_and_greatest_have_true_gradients",
    "products_have_true_gradients",
    "allgather_gradients",
    "broadcast_gradients",
    "alltoall_gradients",
    "reducescatter_gradients",
    "grouped_gradients_one_after_another",
    "gradients_in_a_process_set",
    "second_derivatives",
    "results_leave_the_graph_where_nothing_is_asked",
    "gradients_in_another_order_on_every_rank",
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def of_rank(rank, *shape, dtype=torch.float32):
    """Whole numbers that differ from rank to rank."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 3 + rank * 5) % 7 - 2.0).view(shape).to(dtype)


def ranks():
    return range(blink.size())


def gradient(function, tensor, weight):
    """The gradient that `tensor` gets if `weight` is that of the result."""
    tensor = tensor.clone().requires_grad_()
    result = function(tensor)
    assert result.requires_grad
    result.backward(weight.to(result.dtype))
    return tensor.grad


def average_of(make):
    return sum(make(rank) for rank in ranks()) / blink.size()


def allreduce_gradients():
    found = []
    weights = [of_rank(rank, 2, 3) for rank in ranks()]
    total = sum(weights)
    for dtype in FLOATS:
        for op, want in ((blink.Sum, total), (blink.Average, total / blink.size())):
            got = gradient(
                lambda x, op=op: blink.allreduce(x, op=op),
                of_rank(blink.rank(), 2, 3, dtype=dtype),
                weights[blink.rank()],
            )
            close = torch.finfo(dtype).eps * 4
            if got.dtype != dtype or not torch.allclose(got.float(), want, rtol=close, atol=close):
                found.append(f"{op!r} of {dtype}: {got} instead of {want}")
    got = gradient(
        lambda x: blink.allreduce(x, op=blink.Sum, prescale_factor=2.0, postscale_factor=3.0),
        of_rank(blink.rank(), 2, 3),
        weights[blink.rank()],
    )
    halved = gradient(
        lambda x: blink.allreduce(x, compression=blink.Compression.bf16),
        of_rank(blink.rank(), 2, 3),
        weights[blink.rank()],
    )
    average = (total / blink.size()).bfloat16().float()
    adasum = blink.allreduce(weights[blink.rank()], op=blink.Adasum)
    by_adasum = gradient(
        lambda x: blink.allreduce(x, op=blink.Adasum),
        of_rank(blink.rank(), 2, 3),
        weights[blink.rank()],
    )
    return found + problems(
        factors=differs(got, 6 * total),
        adasum=differs(by_adasum, adasum),
        compressed=None if torch.allclose(halved, average, rtol=1e-2) else str(halved),
    )


def numerically(loss, everyone, mine, step=1e-4):
    """The derivatives of `loss`, a function of what all ranks have, by this rank's numbers."""
    result = torch.zeros_like(everyone[mine])
    for i in range(result.numel()):
        sides = []
        for sign in (1, -1):
            moved = [each.clone() for each in everyone]
            moved[mine].view(-1)[i] += sign * step
            sides.append(loss(torch.stack(moved)))
        result.view(-1)[i] = (sides[0] - sides[1]) / (2 * step)
    return result


def close(got, want):
    return None if torch.allclose(got, want, rtol=1e-6, atol=1e-6) else f"{got} instead of {want}"


def least_and_greatest_have_true_gradients():
    """Of the sum of all ranks' losses; ranks that share the extreme share the gradient."""
    torch.manual_seed(3)
    everyone = torch.rand(blink.size(), 4, dtype=torch.float64)
    weight = torch.rand(blink.size(), 4, dtype=torch.float64).sum(0)
    mine = weight / blink.size()
    answers = {}
    for name, pick in (("Min", torch.amin), ("Max", torch.amax)):
        got = gradient(
            lambda x, name=name: blink.allreduce(x, op=getattr(blink, name), prescale_factor=-2.0),
            everyone[blink.rank()],
            mine,
        )
        want = numerically(
            lambda stacked, pick=pick: (pick(stacked * -2.0, 0) * weight).sum(),
            list(everyone),
            blink.rank(),
        )
        answers[name] = close(got, want)
    tied = gradient(
        lambda x: blink.allreduce(x, op=blink.Max), torch.ones(3), torch.full((3,), 2.0)
    )
    return problems(**answers, tied=differs(tied, torch.full((3,), 2.0)))


def products_have_true_gradients():
    """Also where a factor is zero: then only that rank's number matters, or none."""
    torch.manual_seed(4)
    everyone = torch.rand(blink.size(), 4, dtype=torch.float64) + 0.5
    everyone[0, 1] = 0
    everyone[:, 2] = 0
    weight = torch.arange(1.0, 5.0, dtype=torch.float64)
    got = gradient(
        lambda x: blink.allreduce(x, op=blink.Product, postscale_factor=3.0),
        everyone[blink.rank()],
        weight / blink.size(),
    )
    want = numerically(
        lambda stacked: (stacked.prod(0) * 3 * weight).sum(), list(everyone), blink.rank()
    )
    return problems(product=close(got, want))


def allgather_gradients():
    """Rank r gives r rows: rank 0 has none."""
    rank = blink.rank()
    start = sum(range(rank))
    rows = sum(ranks())
    average = average_of(lambda r: of_rank(r, rows, 2))
    got = gradient(blink.allgather, of_rank(rank, rank, 2), of_rank(rank, rows, 2))
    scalar = gradient(blink.allgather, torch.tensor(1.0), of_rank(rank, blink.size()))
    return problems(
        rows=differs(got, average[start : start + rank]),
        scalar=differs(scalar, average_of(lambda r: of_rank(r, blink.size()))[rank]),
    )


def broadcast_gradients():
    found = []
    average = average_of(lambda r: of_rank(r, 3))
    for root in ranks():
        got = gradient(
            lambda x, root=root: blink.broadcast(x, root),
            of_rank(blink.rank(), 3),
            of_rank(blink.rank(), 3),
        )
        want = average if blink.rank() == root else torch.zeros(3)
        found += problems(**{f"root{root}": differs(got, want)})
    return found


def alltoall_gradients():
    """Rank r sends r + s rows to rank s; the gradient of a row is where it went."""
    rank, size = blink.rank(), blink.size()
    splits = [rank + other for other in ranks()]
    received = [other + rank for other in ranks()]
    weight = torch.full((sum(received), 2), rank + 1.0)
    got = gradient(
        lambda x: blink.alltoall(x, torch.tensor(splits))[0], of_rank(rank, sum(splits), 2), weight
    )
    even = gradient(blink.alltoall, of_rank(rank, size, 1), torch.full((size, 1), rank + 1.0))
    want = torch.cat([torch.full((rows, 2), other + 1.0) for other, rows in enumerate(splits)])
    return problems(
        uneven=differs(got, want),
        even=differs(even, torch.arange(1.0, size + 1).view(-1, 1)),
    )


def reducescatter_gradients():
    """Times the size for Sum, and the factors, as Horovod has it; rows that cannot be divided."""
    rank, size = blink.rank(), blink.size()
    rows = 2 * size + 1
    own = 3 if rank == 0 else 2
    want = torch.cat([torch.full((3 if r == 0 else 2, 2), r + 1.0) for r in ranks()])
    weight = torch.full((own, 2), rank + 1.0)
    answers = {}
    for name, factor in (("Sum", size), ("Average", 1)):
        got = gradient(
            lambda x, name=name: blink.reducescatter(x, op=getattr(blink, name)),
            of_rank(rank, rows, 2),
            weight,
        )
        answers[name] = differs(got, want * factor)
    got = gradient(
        lambda x: blink.reducescatter(x, prescale_factor=2.0, postscale_factor=0.25),
        of_rank(rank, rows, 2),
        weight,
    )
    answers["factors"] = differs(got, want * 0.5)
    tensor = torch.ones(rows, requires_grad=True)
    line = refused(lambda: blink.reducescatter(tensor, op=blink.Max))
    answers["max"] = None if "gradient is there for Sum and Average only" in line else line
    return problems(**answers)


def grouped_gradients_one_after_another():
    """Results of one grouped call, each with a backward pass of its own."""
    rank = blink.rank()
    calls = {
        "allreduce": lambda given: blink.grouped_allreduce(given, op=blink.Sum),
        "allgather": blink.grouped_allgather,
        "reducescatter": lambda given: blink.grouped_reducescatter(given, op=blink.Average),
    }
    found = []
    for name, call in calls.items():
        given = [of_rank(rank, blink.size(), n + 1).requires_grad_() for n in range(3)]
        for result in call(given):
            result.backward(torch.ones_like(result))
        wants = {"allreduce": blink.size(), "allgather": 1, "reducescatter": 1}
        found += [
            f"{name}: {tensor.grad}"
            for tensor in given
            if not torch.equal(tensor.grad, torch.full_like(tensor, wants[name]))
        ]
    return found


def gradients_in_a_process_set():
    """Half of the ranks, the last ones; their numbers in the set are not those in the job."""
    members = list(ranks())[blink.size() // 2 :]
    some = blink.add_process_set(members[:-1] or [0]) if len(members) > 1 else None
    if some is None:
        return []
    chosen = members[:-1]
    answers = {}
    if some.included():
        rank = blink.rank()
        weight = of_rank(rank, 2)
        total = sum(of_rank(r, 2) for r in chosen)
        answers["sum"] = differs(
            gradient(lambda x: blink.allreduce(x, op=blink.Sum, process_set=some), weight, weight),
            total,
        )
        answers["root"] = differs(
            gradient(lambda x: blink.broadcast(x, chosen[0], process_set=some), weight, weight),
            total / len(chosen) if rank == chosen[0] else torch.zeros(2),
        )
        answers["rows"] = differs(
            gradient(
                lambda x: blink.allgather(x, process_set=some),
                weight,
                torch.arange(2.0 * len(chosen)),
            ),
            torch.arange(2.0 * len(chosen))[2 * some.rank() : 2 * some.rank() + 2],
        )
    blink.remove_process_set(some)
    return problems(**answers)


def second_derivatives():
    """Of the cube of the sum over ranks."""
    tensor = torch.tensor([1.0 + blink.rank()], requires_grad=True)
    total = sum(1.0 + r for r in ranks())
    loss = blink.allreduce(tensor, op=blink.Sum, name="cubed").pow(3).sum()
    (first,) = torch.autograd.grad(loss, tensor, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), tensor)
    return problems(
        first=differs(first.detach(), torch.tensor([3 * total**2 * blink.size()])),
        second=differs(second, torch.tensor([6 * total * blink.size() ** 2])),
    )


def results_leave_the_graph_where_nothing_is_asked():
    plain, weight = torch.ones(2), torch.ones(2, requires_grad=True)
    with torch.no_grad():
        quiet = blink.allreduce(weight)
    asked = blink.allreduce(weight)
    mixed = blink.grouped_allreduce([plain, weight])
    return [
        blink.allreduce(plain).requires_grad,
        quiet.requires_grad,
        asked.requires_grad,
        mixed[0].requires_grad,
        mixed[1].requires_grad,
        blink.synchronize(blink.allreduce_async(weight)).requires_grad,
    ]


def gradients_in_another_order_on_every_rank():
    """Two losses, whose backward passes every other rank runs the other way round."""
    first = torch.ones(2, requires_grad=True)
    second = torch.ones(3, requires_grad=True)
    results = [blink.allreduce(first, op=blink.Sum), blink.allreduce(second, op=blink.Sum)]
    order = results if blink.rank() % 2 else results[::-1]
    handles = []
    for result in order:
        handles.append(result.sum())
    torch.autograd.backward(handles)
    return problems(
        first=differs(first.grad, torch.full((2,), float(blink.size()))),
        second=differs(second.grad, torch.full((3,), float(blink.size()))),
    )
