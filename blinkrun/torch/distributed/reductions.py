"""How torch's reductions and dtypes are done with those that the core has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ReduceOp

from blinkrun.errors import InvalidBufferError
from blinkrun.types import DType, Op

Kind = ReduceOp.RedOpType

# What the core adds, multiplies and compares itself.
NATIVE: dict[torch.dtype, DType] = {
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
# Types that are reduced as a wider one and rounded, or wrapped, when they come back.
WIDER: dict[torch.dtype, torch.dtype] = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}
_OPS = {
    Kind.SUM: Op.SUM,
    Kind.AVG: Op.AVERAGE,
    Kind.PRODUCT: Op.PRODUCT,
    Kind.MIN: Op.MIN,
    Kind.MAX: Op.MAX,
    Kind.PREMUL_SUM: Op.SUM,
}
_BITWISE: dict[Kind, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Kind.BAND: torch.bitwise_and,
    Kind.BOR: torch.bitwise_or,
    Kind.BXOR: torch.bitwise_xor,
}
_ADDING = (Kind.SUM, Kind.AVG, Kind.PREMUL_SUM)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction of torch in the core's terms.

    Attributes
    ----------
    kind : ReduceOp.RedOpType
        What torch calls it.
    op : Op
        What the core does.
    factor : float
        Of every contribution (PREMUL_SUM).
    bitwise : callable, optional
        For what the core lacks: folds two tensors into one, for BAND, BOR and BXOR.
    """

    kind: Kind
    op: Op = Op.SUM
    factor: float = 1.0
    bitwise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    @property
    def name(self) -> str:
        """Name as scripts write it, such as ``ReduceOp.SUM``."""
        return f"ReduceOp.{self.kind.name}"


_PLAIN = {kind: Reduction(kind, op) for kind, op in _OPS.items()}
_FOLDING = {kind: Reduction(kind, bitwise=fold) for kind, fold in _BITWISE.items()}
SUM = _PLAIN[Kind.SUM]


def reduction(op: Any) -> Reduction:
    """Return what a `torch.distributed.ReduceOp` asks for."""
    kind = getattr(op, "op", op)
    if kind == Kind.PREMUL_SUM:
        return Reduction(kind, Op.SUM, float(op.factor))
    found = _PLAIN.get(kind) or _FOLDING.get(kind)
    if found is None:
        raise InvalidBufferError(f"{kind} is no reduction of the blink backend")
    return found


def is_native(dtype: torch.dtype, how: Reduction) -> bool:
    """Whether the core can do the reduction on the tensor as it lies."""
    if dtype not in NATIVE or how.bitwise is not None:
        return False
    if how.kind == Kind.AVG or how.factor != 1.0:
        return dtype.is_floating_point
    return True


def to_wire(tensor: torch.Tensor, how: Reduction) -> tuple[torch.Tensor, Reduction]:
    """Return a tensor of a type that the core reduces, and the reduction to do on it.

    Raises
    ------
    InvalidBufferError
        If the reduction means nothing on this type.
    """
    dtype = tensor.dtype
    if how.factor != 1.0 and not (dtype.is_floating_point or dtype.is_complex):
        raise InvalidBufferError(f"{how.name} needs floats, the tensor is {_label(dtype)}")
    if dtype.is_complex:
        if how.kind not in _ADDING:
            raise InvalidBufferError(f"{how.name} is not defined on {_label(dtype)}")
        if dtype is torch.complex32:
            raise InvalidBufferError("complex32 cannot be reduced; convert to complex64")
        tensor = torch.view_as_real(tensor.resolve_conj())
    elif dtype is torch.uint64:
        tensor = _from_uint64(tensor, how)
    elif dtype in WIDER:
        tensor = tensor.to(WIDER[dtype])
    elif dtype not in NATIVE:
        raise InvalidBufferError(f"{_label(dtype)} cannot be reduced; convert it")
    if how.kind == Kind.AVG and not tensor.dtype.is_floating_point:
        if dtype is torch.bool or dtype is torch.uint64:
            raise InvalidBufferError(f"{how.name} is not defined on {_label(dtype)}")
        how = SUM  # divided in `from_wire`: toward zero, as NCCL does
    return tensor.contiguous(), how


def from_wire(reduced: torch.Tensor, target: torch.Tensor, how: Reduction, size: int) -> None:
    """Write what was reduced in the form of `to_wire` into `target`."""
    if target.dtype.is_complex:
        reduced = torch.view_as_complex(reduced)
    elif target.dtype is torch.uint64:
        reduced = _to_uint64(reduced, how)
    elif how.kind == Kind.AVG and not reduced.dtype.is_floating_point:
        if target.dtype in NATIVE:
            reduced = torch.div(reduced, size, rounding_mode="trunc")
        else:  # the wide sum has not wrapped where a narrow one would have
            reduced = torch.div(reduced, size, rounding_mode="trunc").to(target.dtype)
    elif how.bitwise is None and target.dtype in WIDER:
        reduced = reduced.to(target.dtype)
    target.copy_(reduced.view(target.shape))


def _from_uint64(tensor: torch.Tensor, how: Reduction) -> torch.Tensor:
    """Return int64 with the same order (MIN, MAX) or the same arithmetic modulo 2**64."""
    signed = tensor.view(torch.int64)
    return signed ^ torch.iinfo(torch.int64).min if how.kind in (Kind.MIN, Kind.MAX) else signed


def _to_uint64(signed: torch.Tensor, how: Reduction) -> torch.Tensor:
    if how.kind in (Kind.MIN, Kind.MAX):
        signed = signed ^ torch.iinfo(torch.int64).min
    return signed.view(torch.uint64)


def moved_as(dtype: torch.dtype) -> tuple[int, int]:
    """Return the core's type for tensors that are only moved, and its elements in one of theirs.

    Types that the core lacks move as bytes.
    """
    native = NATIVE.get(dtype)
    return (int(DType.UINT8), dtype.itemsize) if native is None else (int(native), 1)


def _label(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
