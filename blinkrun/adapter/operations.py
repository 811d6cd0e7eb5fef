"""The reductions by the names that scripts use."""

from __future__ import annotations

import warnings
from enum import IntEnum
from typing import Any

from blinkrun.engine.request import ADASUM
from blinkrun.errors import UsageError
from blinkrun.types import Op


class EngineOp(IntEnum):
    """Operations beside those of `Op`."""

    ADASUM = ADASUM


Average = Op.AVERAGE
Sum = Op.SUM
Min = Op.MIN
Max = Op.MAX
Product = Op.PRODUCT
Adasum = EngineOp.ADASUM

_OPS = frozenset((Average, Sum, Min, Max, Product, Adasum))


def checked_op(op: Any) -> Any:
    """Return `op`, or raise if it is no operation."""
    if op not in _OPS or isinstance(op, bool):
        raise UsageError(f"op is {op!r}; choose Average, Sum, Min, Max, Product or Adasum")
    return op


def checked_compressor(compression: Any) -> Any:
    """Return `compression`, or raise if it is none."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise UsageError(
            f"compression is {compression!r}; give Compression.none, .fp16, .bf16 or a "
            "class with compress and decompress"
        )
    return compression


def op_of(op: int | None, average: bool | None, *, stacklevel: int = 4) -> int:
    """Return the operation that the arguments `op` and `average` mean together.

    `stacklevel` is where the user's code is, as `warnings.warn` counts.
    """
    if isinstance(average, Op | EngineOp):
        raise UsageError(f"average is {average!r}; operations are given as op=...")
    if average is None:
        return Average if op is None else checked_op(op)
    if op is not None:
        raise UsageError("op and average are both given; average is deprecated, give op alone")
    warnings.warn(
        "average= is deprecated; give op=Average or op=Sum",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    return Average if average else Sum
