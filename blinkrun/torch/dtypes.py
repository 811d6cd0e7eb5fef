"""How tensors of each torch dtype travel: as elements of a type that the native core knows.

What is only moved may have any dtype: one that the core does not know travels as one of its size.
Reductions need arithmetic: complex numbers are summed as pairs of reals, the other types in a wider
one and converted back, integers with the wrap-around of their own width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from blinkrun.adapter.wires import OF_SIZE, Wire
from blinkrun.engine.request import ADASUM, CPU, CUDA
from blinkrun.errors import InvalidBufferError
from blinkrun.types import DType, Op

DTYPES: dict[torch.dtype, DType] = {
    torch.uint8: DType.UINT8,
    torch.int8: DType.INT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.bool: DType.BOOL,
}

_PARTS = {
    torch.complex32: DType.FLOAT16,
    torch.complex64: DType.FLOAT32,
    torch.complex128: DType.FLOAT64,
}
_WIDER = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}


_LOW_BITS = torch.iinfo(torch.int64).max
NATIVE = {dtype: Wire(wire) for dtype, wire in DTYPES.items()}


@cache
def moved(dtype: torch.dtype) -> Wire:
    """Return how tensors of `dtype` are moved."""
    if dtype in NATIVE:
        return NATIVE[dtype]
    unit = OF_SIZE[min(dtype.itemsize, 8)]
    return Wire(unit, dtype.itemsize // unit.itemsize, device=f"{CPU} ({label(dtype)})")


@cache
def reduced(dtype: torch.dtype, op: int) -> Wire:
    """Return how tensors of `dtype` are reduced by `op`.

    Raises
    ------
    InvalidBufferError
        If the operation means nothing for the dtype.
    """
    if op == ADASUM:
        return _adasum(dtype)
    device = f"{CPU} ({label(dtype)})"
    if dtype is torch.bool and op == Op.AVERAGE:
        raise InvalidBufferError("bool has no average; use op=Sum (or), Min (and), or convert it")
    if dtype in NATIVE:
        return NATIVE[dtype]
    if dtype in _PARTS:
        if op not in (Op.SUM, Op.AVERAGE):
            raise InvalidBufferError(
                f"{label(dtype)} has Sum and Average only; reduce abs() or the parts of "
                "torch.view_as_real()"
            )
        return Wire(_PARTS[dtype], 2, device=device)
    if dtype is torch.uint64 and op == Op.AVERAGE:  # int64 would divide as if it were signed
        return Wire(DType.INT64, wide=torch.int64, op=Op.SUM, device=f"{CPU} (uint64 averaged)")
    if dtype in _WIDER:
        return Wire(DTYPES[_WIDER[dtype]], wide=_WIDER[dtype], device=device)
    if dtype.is_floating_point and "x2" not in label(dtype):  # float8; float4 lies in pairs
        return Wire(DType.FLOAT32, wide=torch.float32, device=device)
    raise InvalidBufferError(f"{label(dtype)} cannot be reduced; convert it to a number type")


def _adasum(dtype: torch.dtype) -> Wire:
    if not dtype.is_floating_point:
        raise InvalidBufferError(f"Adasum needs floating-point numbers, got {label(dtype)}")
    if dtype in (torch.float32, torch.float64):
        return NATIVE[dtype]
    return Wire(DType.FLOAT32, wide=torch.float32, device=f"{CPU} ({label(dtype)})")


@cache
def on_device(wire: Wire) -> Wire:
    """Return how tensors on a device travel where those on the CPU do by `wire`."""
    return replace(wire, device=wire.device.replace(CPU, CUDA, 1))


@cache
def whole_on_device(dtype: torch.dtype, op: int, scales: tuple[float, float]) -> Wire:
    """Return how whole numbers on a device are averaged and scaled: summed, the rest by torch."""
    wide = torch.int64 if op == Op.AVERAGE else _WIDER.get(dtype, dtype)
    how = f"{CUDA} ({label(dtype)} {Op(op).name.lower()} times {scales[0]:g}, {scales[1]:g})"
    own = Op.SUM if op == Op.AVERAGE else None
    return Wire(DTYPES[wide], wide=wide, device=how, op=own, scales=(1.0, 1.0))


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Return whole numbers times `factor`, in float64, truncated toward zero.

    >>> scaled(torch.tensor([-3, 3]), 0.5).tolist()
    [-1, 1]
    """
    if factor == 1.0:
        return tensor
    return (tensor.double() * factor).trunc().to(tensor.dtype)


def to_wide(tensor: torch.Tensor, wire: Wire, op: int) -> torch.Tensor:
    """Return a new contiguous tensor of `wire.wide` with the values of `tensor`."""
    if tensor.dtype is torch.uint64:
        return _ordered(tensor.contiguous().view(torch.int64), op).clone()
    return tensor.to(wire.wide, copy=True, memory_format=torch.contiguous_format)


def from_wide(tensor: torch.Tensor, dtype: torch.dtype, op: int, size: int) -> torch.Tensor:
    """Return the values of a `tensor` reduced over `size` ranks in their own `dtype`."""
    if dtype is not torch.uint64:
        return tensor.to(dtype)
    if op != Op.AVERAGE:
        return _ordered(tensor, op).view(torch.uint64)
    half = (tensor >> 1).bitwise_and(_LOW_BITS)  # torch divides no uint64, and this is none
    part = torch.div(half, size, rounding_mode="floor") * 2
    return (part + (tensor - part * size >= size)).view(torch.uint64)


def _ordered(tensor: torch.Tensor, op: int) -> torch.Tensor:
    """Return uint64 as int64, for Min and Max with the top bit flipped: so order is kept."""
    if op not in (Op.MIN, Op.MAX):
        return tensor
    return tensor.bitwise_xor(torch.iinfo(torch.int64).min)


def label(dtype: torch.dtype) -> str:
    """Return the name of `dtype` without its module.

    >>> label(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")
