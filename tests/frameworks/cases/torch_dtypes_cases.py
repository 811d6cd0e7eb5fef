"""Every dtype of torch in every kind of call, against what numpy and torch make of it alone."""

import torch
from torch_ops_cases import differs, problems, refused

import blinkrun.torch as blink

CASES = (
    "reductions_wrap_round_and_convert",
    "reductions_of_large_unsigned_numbers",
    "reductions_of_complex_numbers",
    "moves_keep_every_bit",
    "in_place_in_every_dtype",
    "factors_in_every_dtype",
    "groups_of_several_dtypes",
    "dtypes_that_travel_alike_do_not_match",
    "operations_without_a_meaning",
)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
SMALL_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (*SMALL_FLOATS, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
EVERY = (*INTEGERS, *UNSIGNED, *FLOATS, *COMPLEX, torch.bool)
OPS = ("Sum", "Average", "Min", "Max", "Product")
BITS = {torch.uint8: 8, torch.uint16: 16, torch.uint32: 32, torch.uint64: 64}
BITS |= {torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}


def whole(rank, index):
    """A whole number that is small, different on every rank."""
    return (index * 3 + rank * 5) % 7 + 1


def of_rank(rank, dtype, count=5):
    return torch.tensor([whole(rank, i) for i in range(count)]).to(dtype)


def wrapped(number, dtype):
    """What is left of a whole number in a type of so many bits."""
    bits = BITS[dtype]
    number %= 1 << bits
    signed = dtype in INTEGERS and dtype != torch.uint8
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def reduced(op, numbers, dtype):
    """What a reduction of whole numbers in `dtype` promises."""
    product = 1
    for number in numbers:
        product *= number
    total = wrapped(sum(numbers), dtype)
    exact = total if BITS[dtype] == 64 else sum(numbers)  # smaller ones do not wrap for averages
    average = abs(exact) // len(numbers) * (1 if exact >= 0 else -1)
    return {
        "Sum": total,
        "Average": average,
        "Min": min(numbers),
        "Max": max(numbers),
        "Product": wrapped(product, dtype),
    }[op]


def whole_numbers(dtype, rank):
    """The ends of the range and numbers about zero; they differ from rank to rank."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    numbers = [most - rank, least + rank, (rank % 3) + 1, most // 2 + rank]
    return numbers + ([-1 - rank, rank - 2] if least else [rank, 2 * rank])


def reductions_wrap_round_and_convert():
    found = []
    ranks = range(blink.size())
    for dtype in (*INTEGERS, *UNSIGNED):
        everyone = [whole_numbers(dtype, rank) for rank in ranks]
        mine = torch.tensor(everyone[blink.rank()], dtype=dtype)
        for op in OPS:
            got = blink.allreduce(mine, op=getattr(blink, op), name="whole")
            want = [reduced(op, numbers, dtype) for numbers in zip(*everyone, strict=True)]
            if got.dtype != dtype or got.tolist() != want:
                found.append(f"{op} of {dtype}: got {got.tolist()}, want {want}")
    for dtype in FLOATS:
        stacked = torch.stack([of_rank(rank, dtype) for rank in ranks]).double()
        for op in OPS:
            got = blink.allreduce(of_rank(blink.rank(), dtype), op=getattr(blink, op))
            want = {
                "Sum": stacked.sum(0),
                "Average": stacked.mean(0),
                "Min": stacked.amin(0),
                "Max": stacked.amax(0),
                "Product": stacked.prod(0),
            }[op]
            # float16 may round at every rank, float8 does at the end
            close = torch.finfo(dtype).eps * blink.size()
            if got.dtype != dtype or not torch.allclose(got.double(), want, rtol=close):
                found.append(f"{op} of {dtype}: got {got.tolist()}, want {want.tolist()}")
    return found


def reductions_of_large_unsigned_numbers():
    """Numbers that are negative if they are taken for signed ones."""
    most = 2**64 - 1
    mine = torch.tensor([most - blink.rank(), 2**63 + blink.rank()], dtype=torch.uint64)
    rows = mine.repeat(blink.size()).view(blink.size(), 2)
    last = blink.size() - 1
    least = blink.reducescatter(rows, op=blink.Min)
    scalar = blink.allreduce(mine[1], op=blink.Max)
    return problems(
        rows=differs(least.view(torch.int64), torch.tensor([[most - last - 2**64, -(2**63)]])),
        scalar=None if scalar.item() == 2**63 + last and scalar.dim() == 0 else scalar.tolist(),
    )


def reductions_of_complex_numbers():
    found = []
    ranks = range(blink.size())
    for dtype in COMPLEX:
        parts = [torch.complex(torch.full((3,), r + 1.0), torch.arange(3.0) - r) for r in ranks]
        stacked = torch.stack(parts).to(dtype)
        mine = stacked[blink.rank()].clone()
        total = blink.allreduce(mine, op=blink.Sum)
        average = blink.allreduce(mine.conj(), op=blink.Average)  # a view with a flag, not a copy
        in_place = mine.clone()
        blink.allreduce_(in_place, op=blink.Sum, prescale_factor=0.5)
        rows = blink.reducescatter(stacked[:, :1] * 0 + mine[0], op=blink.Sum)
        checks = {
            "sum": (total, stacked.sum(0)),
            "average": (average, stacked.mean(0).conj()),
            "in place": (in_place, stacked.sum(0) / 2),
            "rows": (rows, stacked.sum(0)[:1].view(1, 1)),
        }
        found += [
            f"{name} of {dtype}: {got} instead of {want}"
            for name, (got, want) in checks.items()
            if got.dtype != dtype or not torch.allclose(got, want)
        ]
    return found


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


def moves_keep_every_bit():
    found = []
    rank, ranks = blink.rank(), range(blink.size())
    root = blink.size() - 1
    for dtype in EVERY:
        mine = of_rank(rank, dtype, count=2 * blink.size()).view(-1, 2)
        everyone = [of_rank(r, dtype, count=2 * blink.size()).view(-1, 2) for r in ranks]
        moved = {
            "allgather": (
                blink.allgather(mine[: rank + 1]),
                [e[: r + 1] for r, e in enumerate(everyone)],
            ),
            "broadcast": (blink.broadcast(mine, root), [everyone[root]]),
            "alltoall": (blink.alltoall(mine), [each[rank : rank + 1] for each in everyone]),
            "scalars": (blink.allgather(mine[0, 0]), [each[0, :1] for each in everyone]),
            "nothing": (blink.allgather(mine[:0]), [mine[:0]]),
        }
        for name, (got, parts) in moved.items():
            want = [bit for part in parts for bit in bits(part)]
            if got.dtype != dtype or bits(got) != want or got.shape[1:] != parts[0].shape[1:]:
                found.append(f"{name} of {dtype}: {got}")
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(
        torch.uint16
    )  # NaNs of float16 among them
    for name, got in {
        "broadcast": blink.broadcast(patterns if rank == 0 else patterns * 0, 0),
        "allgather": blink.allgather(patterns)[-(1 << 16) :],
        "alltoall": blink.alltoall(patterns.repeat(blink.size()))[: 1 << 16],
    }.items():
        if bits(got) != bits(patterns):
            found.append(f"{name} of every pattern")
    return found


def in_place_in_every_dtype():
    """A column of a matrix: what lies beside it stays."""
    found = []
    ranks = range(blink.size())
    for dtype in EVERY:
        if dtype == torch.bool:
            continue
        base = torch.stack([of_rank(blink.rank(), dtype)] * 2, dim=1)
        column, beside = base[:, 0], bits(base[:, 1])
        same = blink.allreduce_(column, op=blink.Sum)
        total = sum(torch.tensor([whole(r, i) for i in range(5)]) for r in ranks)
        if (
            same is not column
            or bits(column) != bits(total.to(dtype))
            or bits(base[:, 1]) != beside
        ):
            found.append(f"{dtype}: {base.tolist()}")
        blink.synchronize(blink.broadcast_async_(column, 0))
        blink.synchronize(blink.allreduce_async_(base, op=blink.Sum))
    return found


def factors_in_every_dtype():
    found = []
    for dtype in (*INTEGERS, torch.uint16, torch.uint32, *FLOATS):
        got = blink.allreduce(
            torch.tensor([4, 6]).to(dtype), op=blink.Sum, prescale_factor=0.5, postscale_factor=2.5
        )
        want = torch.tensor([5 * blink.size(), int(7.5 * blink.size())]).double()
        if dtype.is_floating_point:
            want[1] = 7.5 * blink.size()
        if not torch.allclose(
            got.double(), want, rtol=torch.finfo(dtype).eps if dtype in FLOATS else 0
        ):
            found.append(f"{dtype}: {got.tolist()} instead of {want.tolist()}")
    return found


def groups_of_several_dtypes():
    mine = [of_rank(blink.rank(), dtype) for dtype in EVERY if dtype != torch.bool]
    sums = blink.grouped_allreduce(mine, op=blink.Sum, name="mixed")
    alone = [blink.allreduce(tensor, op=blink.Sum) for tensor in mine]
    gathered = blink.grouped_allgather(mine)
    rows = blink.grouped_reducescatter(mine, op=blink.Sum)
    found = []
    for i, tensor in enumerate(mine):
        offset = sum(-(-(5 - r) // blink.size()) for r in range(blink.rank()))
        parts = {
            "sum": bits(sums[i]) == bits(alone[i]),
            "gathered": bits(gathered[i][5 * blink.rank() : 5 * blink.rank() + 5]) == bits(tensor),
            "rows": bits(rows[i]) == bits(alone[i][offset : offset + len(rows[i])]),
        }
        found += [f"{name} of {tensor.dtype}" for name, right in parts.items() if not right]
    return found


def dtypes_that_travel_alike_do_not_match():
    """int16 is summed in int32 and moved as bytes; neither passes for the other."""
    is_first = blink.rank() == 0
    summed = torch.ones(2, dtype=torch.int16 if is_first else torch.int32)
    moved = torch.ones(2, dtype=torch.int16 if is_first else torch.uint16)
    return {
        "sum": refused(lambda: blink.allreduce(summed, op=blink.Sum, name="s")),
        "move": refused(lambda: blink.broadcast(moved, 0, name="m")),
    }


def operations_without_a_meaning():
    ones = torch.ones(2)
    return {
        "bool": refused(lambda: blink.allreduce(ones.bool())),
        "complex": refused(
            lambda: blink.allreduce(ones.to(torch.complex64), op=blink.Max, name="c")
        ),
        "adasum": refused(lambda: blink.allreduce(ones.int(), op=blink.Adasum)),
        "factors": refused(lambda: blink.allreduce(ones.bool(), op=blink.Sum, prescale_factor=2.0)),
    }
