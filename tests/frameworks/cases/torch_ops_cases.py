"""Collectives on torch tensors. Each case returns what went wrong, as text: nothing, if it works.

Every rank can make the tensor of any rank, so each computes the expected result for itself.
"""

import math
import warnings

import torch

import blinkrun.torch as blink
from blinkrun.errors import BlinkrunError

CASES = (
    "who_am_i",
    "allreduce_all_dtypes_and_ops",
    "allreduce_scales",
    "allreduce_layouts",
    "allreduce_in_place",
    "allreduce_async_many",
    "broadcast_from_every_root",
    "broadcast_in_place_and_async",
    "allgather_equal",
    "allgather_unequal",
    "allgather_mismatch",
    "refused_tensors",
    "refused_arguments",
)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OPS = ("Average", "Sum", "Min", "Max", "Product")


def of_rank(rank, dtype, shape=(3, 5)):
    """A tensor that differs from rank to rank, of numbers small enough for every dtype."""
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    if dtype == torch.bool:
        return (numbers + rank) % 3 == 0
    return ((numbers * 3 + rank * 5) % 7 + 1).to(dtype)


def everyone(dtype, shape=(3, 5)):
    return torch.stack([of_rank(rank, dtype, shape) for rank in range(blink.size())])


def expected(op, stacked):
    """What allreduce promises, in a wider type and back."""
    dtype = stacked.dtype
    if dtype == torch.bool:
        return stacked.all(0) if op in ("Min", "Product") else stacked.any(0)
    wide = stacked.double() if dtype.is_floating_point else stacked.long()
    rounding = None if dtype.is_floating_point else "trunc"
    reduced = {
        "Min": lambda: wide.amin(0),
        "Max": lambda: wide.amax(0),
        "Product": lambda: wide.prod(0),
        "Sum": lambda: wide.sum(0),
        "Average": lambda: torch.div(wide.sum(0), blink.size(), rounding_mode=rounding),
    }
    return reduced[op]().to(dtype)


def differs(got, want):
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"got {got.dtype} {tuple(got.shape)}, want {want.dtype} {tuple(want.shape)}"
    tolerance = 2 * torch.finfo(want.dtype).eps if want.dtype.is_floating_point else 0
    if torch.allclose(got.double(), want.double(), rtol=tolerance, atol=0):
        return None
    return f"got {got.tolist()}, want {want.tolist()}"


def problems(**checks):
    return [f"{name}: {problem}" for name, problem in checks.items() if problem]


def who_am_i():
    return [
        blink.is_initialized(),
        blink.rank(),
        blink.size(),
        blink.local_rank(),
        blink.local_size(),
        blink.cross_rank(),
        blink.cross_size(),
    ]


def allreduce_all_dtypes_and_ops():
    found = []
    for dtype in (*INTEGERS, *FLOATS, torch.bool):
        for op in OPS:
            if dtype == torch.bool and op == "Average":
                continue
            mine = of_rank(blink.rank(), dtype)
            before = mine.clone()
            got = blink.allreduce(mine, op=getattr(blink, op), name="x")
            problem = differs(got, expected(op, everyone(dtype)))
            if not torch.equal(mine, before):
                problem = "the input has changed"
            if problem:
                found.append(f"{op} of {dtype}: {problem}")
    return found


def allreduce_scales():
    ones = torch.ones(4)
    both = blink.allreduce(ones, op=blink.Sum, prescale_factor=0.5, postscale_factor=4.0)
    average = blink.allreduce(ones, prescale_factor=3.0)
    return problems(
        both=differs(both, torch.full((4,), 2.0 * blink.size())),
        average=differs(average, torch.full((4,), 3.0)),
    )


def allreduce_layouts():
    """Scalars, empty tensors, transposed and sliced ones, large ones."""
    rank = blink.rank()
    scalar = blink.allreduce(torch.tensor(float(rank)), op=blink.Max)
    empty = blink.allreduce(torch.empty(0, 3), op=blink.Sum)
    stacked = everyone(torch.float32)
    transposed = blink.allreduce(of_rank(rank, torch.float32).t(), op=blink.Sum)
    sliced = blink.allreduce(of_rank(rank, torch.float32)[:, ::2], op=blink.Sum)
    channels = of_rank(rank, torch.float32, (2, 3, 4, 5)).to(memory_format=torch.channels_last)
    large = blink.allreduce(torch.full((1_000_003,), float(rank)), op=blink.Sum)
    return problems(
        scalar=differs(scalar, torch.tensor(blink.size() - 1.0)),
        empty=differs(empty, torch.empty(0, 3)),
        transposed=differs(transposed, stacked.sum(0).t()),
        sliced=differs(sliced, stacked.sum(0)[:, ::2]),
        channels=differs(
            blink.allreduce(channels, op=blink.Sum),
            everyone(torch.float32, (2, 3, 4, 5)).sum(0),
        ),
        large=differs(large, torch.full((1_000_003,), float(sum(range(blink.size()))))),
    )


def allreduce_in_place():
    stacked = everyone(torch.float32)
    packed = of_rank(blink.rank(), torch.float32)
    same = blink.allreduce_(packed, op=blink.Sum)
    base = of_rank(blink.rank(), torch.float32)
    untouched = base[:, 1::2].clone()
    view = base[:, ::2]
    blink.allreduce_(view, op=blink.Sum)
    parameter = torch.nn.Parameter(of_rank(blink.rank(), torch.float32))
    blink.allreduce_(parameter, op=blink.Max)
    return problems(
        identity=None if same is packed else "another tensor came back",
        packed=differs(packed, stacked.sum(0)),
        view=differs(view, stacked.sum(0)[:, ::2]),
        beside=differs(base[:, 1::2], untouched),
        parameter=differs(parameter.detach(), stacked.amax(0)),
    )


def allreduce_async_many():
    handles = [
        blink.allreduce_async(torch.full((1000 + i,), float(blink.rank() + i)), op=blink.Sum)
        for i in range(20)
    ]
    places = [torch.full((3,), float(blink.rank())) for _ in range(3)]
    base = torch.zeros(4, 2)
    base[:, 0] = blink.rank()
    handles_ = [
        blink.allreduce_async_(place, op=blink.Max, name=f"p{i}") for i, place in enumerate(places)
    ]
    strided = blink.allreduce_async_(base[:, 0], op=blink.Max)
    found = []
    ranks_sum = sum(range(blink.size()))
    for i, handle in enumerate(handles):
        want = torch.full((1000 + i,), float(ranks_sum + i * blink.size()))
        if problem := differs(blink.synchronize(handle), want):
            found.append(f"handle {i}: {problem}")
        if not blink.poll(handle):
            found.append(f"handle {i} is not done after synchronize")
    for place, handle in zip(places, handles_, strict=True):
        if blink.synchronize(handle) is not place or blink.synchronize(handle) is not place:
            found.append("in place: another tensor came back")
        found += problems(place=differs(place, torch.full((3,), blink.size() - 1.0)))
    blink.synchronize(strided)
    want = torch.tensor([[blink.size() - 1.0, 0.0]] * 4)
    return found + problems(strided=differs(base, want))


def broadcast_from_every_root():
    found = []
    for root in range(blink.size()):
        for dtype in (*INTEGERS, *FLOATS, torch.bool):
            mine = of_rank(blink.rank(), dtype)
            got = blink.broadcast(mine.t(), root, name="x")
            if problem := differs(got, of_rank(root, dtype).t()):
                found.append(f"{dtype} from {root}: {problem}")
            if not torch.equal(mine, of_rank(blink.rank(), dtype)):
                found.append(f"{dtype} from {root}: the input has changed")
    return found


def broadcast_in_place_and_async():
    root = blink.size() - 1
    mine = of_rank(blink.rank(), torch.float32)
    same = blink.broadcast_(mine, root_rank=root)
    base = of_rank(blink.rank(), torch.float32)
    blink.synchronize(blink.broadcast_async_(base[:, ::2], root))
    out = blink.synchronize(blink.broadcast_async(torch.tensor(float(blink.rank())), root))
    want = of_rank(blink.rank(), torch.float32)
    want[:, ::2] = of_rank(root, torch.float32)[:, ::2]
    return problems(
        identity=None if same is mine else "another tensor came back",
        in_place=differs(mine, of_rank(root, torch.float32)),
        strided=differs(base, want),
        scalar=differs(out, torch.tensor(float(root))),
    )


def allgather_equal():
    rank, size = blink.rank(), blink.size()
    rows = blink.allgather(torch.full((2, 3), rank))
    scalars = blink.allgather(torch.tensor(float(rank)))
    half = blink.synchronize(blink.allgather_async(torch.full((1, 2), rank).bfloat16()))
    return problems(
        rows=differs(rows, torch.arange(size).repeat_interleave(2)[:, None].expand(-1, 3)),
        scalars=differs(scalars, torch.arange(size).float()),
        half=differs(half, torch.arange(size).bfloat16()[:, None].expand(-1, 2)),
    )


def allgather_unequal():
    """Rank r gives r rows, so rank 0 gives none."""
    rank, size = blink.rank(), blink.size()
    mine = torch.full((rank, 2), float(rank))
    want = torch.arange(size).repeat_interleave(torch.arange(size)).float()[:, None].expand(-1, 2)
    return problems(
        waited=differs(blink.allgather(mine), want),
        later=differs(blink.synchronize(blink.allgather_async(mine)), want),
        nobody=differs(blink.allgather(torch.empty(0, 2)), torch.empty(0, 2)),
    )


def allgather_mismatch():
    mine = torch.zeros(2, 3 if blink.rank() == 0 else 4)
    return refused(lambda: blink.allgather(mine, name="scores"))


def refused(call):
    try:
        call()
    except BlinkrunError as err:
        return f"{type(err).__name__}: {err}"
    return "no error"


def quantized():
    """torch warns that this kind of tensor will go."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def nested():
    """torch warns that this kind of tensor may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def refused_tensors():
    return {
        "sparse": refused(lambda: blink.allreduce(torch.eye(2).to_sparse(), name="w")),
        "meta": refused(lambda: blink.allreduce(torch.empty(2, device="meta"))),
        "sparse rows": refused(lambda: blink.allgather(torch.eye(2).to_sparse())),
        "quantized": refused(lambda: blink.broadcast_(quantized())),
        "nested": refused(lambda: blink.allreduce(nested())),
        "list": refused(lambda: blink.allreduce([1.0])),
    }


def refused_arguments():
    return {
        "op": refused(lambda: blink.allreduce(torch.ones(2), op="sum")),
        "root": refused(lambda: blink.broadcast(torch.ones(2), root_rank=blink.size())),
        "negative": refused(lambda: blink.broadcast_parameters({"w": torch.ones(2)}, -1)),
        "text": refused(lambda: blink.broadcast(torch.ones(2), root_rank="0")),
        "compression": refused(lambda: blink.allreduce(torch.ones(2), compression="fp16")),
    }
