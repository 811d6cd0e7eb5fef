"""Reductions of the backend blink; what each rank gives is known, so each checks all results.

A case returns what it found wrong, so that one job can try all types and sizes.
"""

import functools
import itertools

import torch
import torch.distributed as dist
from torch_distributed_values import (
    BITS,
    FLOATS,
    FOLDS,
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
    "reductions",
    "special_reductions",
    "complex_reductions",
    "reduce_to_a_root",
    "reduce_scatters",
    "sparse_sums",
)


def reductions():
    bad = []
    for dtype, shape in itertools.product((*FLOATS, *INTS), SHAPES):
        for name, fold in FOLDS.items():
            mine = given(dtype, shape, rank())
            dist.all_reduce(mine, op=getattr(dist.ReduceOp, name))
            wanted = folded(fold, everyone(dtype, shape))
            bad += differs(f"{name} {dtype} {shape}", mine, wanted)
    return bad


def special_reductions():
    bad = []
    for dtype in FLOATS:
        mine = given(dtype, (9,), rank())
        dist.all_reduce(mine, op=dist.ReduceOp.AVG)
        wanted = (sum(each.double() for each in everyone(dtype, (9,))) / size()).to(dtype)
        if not torch.allclose(
            mine.double(), wanted.double(), rtol=1e-2 if dtype.itemsize == 2 else 1e-6
        ):
            bad.append(f"AVG {dtype}: {mine} instead of {wanted}")
    negative = torch.tensor([-7, 7, -1], dtype=torch.int32) * (rank() + 1)
    total = [-7 * size() * (size() + 1) // 2, 7 * size() * (size() + 1) // 2]
    dist.all_reduce(negative, op=dist.ReduceOp.AVG)
    if [int(total[0] / size()), int(total[1] / size())] != negative[:2].tolist():
        bad.append(f"AVG of integers is not cut toward zero: {negative}")
    for dtype, (name, fold) in itertools.product((*INTS[:5], torch.bool), BITS.items()):
        mine = given(dtype, (11,), rank())
        dist.all_reduce(mine, op=getattr(dist.ReduceOp, name))
        bad += differs(f"{name} {dtype}", mine, functools.reduce(fold, everyone(dtype, (11,))))
    for name, fold in (("SUM", torch.logical_or), ("MIN", torch.logical_and)):
        mine = given(torch.bool, (5,), rank())
        dist.all_reduce(mine, op=getattr(dist.ReduceOp, name))
        bad += differs(f"{name} bool", mine, functools.reduce(fold, everyone(torch.bool, (5,))))
    big = torch.tensor([1, 2**63 + rank()], dtype=torch.uint64)
    dist.all_reduce(big, op=dist.ReduceOp.MAX)
    bad += differs("MAX uint64", big, torch.tensor([1, 2**63 + size() - 1], dtype=torch.uint64))
    small = torch.full((3,), 0.5).to(torch.float8_e4m3fn)
    dist.all_reduce(small)
    bad += differs("SUM float8", small, torch.full((3,), 0.5 * size()).to(torch.float8_e4m3fn))
    from torch._C._distributed_c10d import _make_nccl_premul_sum

    mine = torch.full((4,), float(rank()))
    dist.all_reduce(mine, op=_make_nccl_premul_sum(0.5))
    bad += differs("PREMUL_SUM", mine, torch.full((4,), 0.25 * size() * (size() - 1)))
    return bad


def complex_reductions():
    mine = torch.full((3,), complex(rank(), 1.0))
    dist.all_reduce(mine)
    return differs("SUM", mine, torch.full((3,), complex(sum(range(size())), size())))


def reduce_to_a_root():
    bad = []
    for dtype, shape in itertools.product((torch.float32, torch.int16, torch.bfloat16), SHAPES):
        mine = given(dtype, shape, rank())
        dist.reduce(mine, dst=ROOT)
        wanted = given(dtype, shape, rank())
        if rank() == ROOT:
            wanted = folded(torch.add, everyone(dtype, shape))
        bad += differs(f"{dtype} {shape}", mine, wanted)
    return bad


def reduce_scatters():
    bad = []
    for dtype, rows in itertools.product((torch.float32, torch.int64, torch.int16), (0, 1, 6)):
        source = given(dtype, (rows * size(), 3), rank())
        wanted = folded(torch.add, everyone(dtype, (rows * size(), 3)))
        wanted = wanted[rows * rank() : rows * (rank() + 1)]
        found = torch.empty_like(wanted)
        dist.reduce_scatter_tensor(found, source)
        bad += differs(f"tensor {dtype} {rows}", found, wanted)
        found = torch.empty_like(wanted)
        dist.reduce_scatter(
            found,
            [each.clone() for each in source.chunk(size())]
            if rows
            else [source.clone() for _ in range(size())],
        )
        bad += differs(f"list {dtype} {rows}", found, wanted)
    parts = [torch.full((at + 1,), float(rank())) for at in range(size())]
    found = torch.empty(rank() + 1)
    dist.reduce_scatter(found, parts)
    wanted = torch.full((rank() + 1,), float(sum(range(size()))))
    return bad + differs("of different sizes", found, wanted)


def sparse_sums():
    values = [[1.0, 2.0], [3.0, 4.0]]
    entries = torch.sparse_coo_tensor([[rank(), 5]], values, (8, 2), check_invariants=True)
    dist.all_reduce(entries)
    wanted = torch.zeros(8, 2)
    wanted[: size()] = torch.tensor([1.0, 2.0])
    wanted[5] += torch.tensor([3.0, 4.0]) * size()
    return differs("sum", entries.to_dense(), wanted)
