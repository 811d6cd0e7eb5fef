"""NCCL's numbers for element types and operations, and what they are here."""

from __future__ import annotations

from dataclasses import dataclass

from blinkrun.nccl.status import Status, refused
from blinkrun.types import DType, Op

NCCL_VERSION_CODE = 22700
NCCL_UNIQUE_ID_BYTES = 128
NCCL_SPLIT_NOCOLOR = -1

NCCL_INT8 = NCCL_CHAR = 0
NCCL_UINT8 = 1
NCCL_INT32 = NCCL_INT = 2
NCCL_UINT32 = 3
NCCL_INT64 = 4
NCCL_UINT64 = 5
NCCL_FLOAT16 = NCCL_HALF = 6
NCCL_FLOAT32 = NCCL_FLOAT = 7
NCCL_FLOAT64 = NCCL_DOUBLE = 8
NCCL_BFLOAT16 = 9

NCCL_SUM = 0
NCCL_PROD = 1
NCCL_MAX = 2
NCCL_MIN = 3
NCCL_AVG = 4


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type of NCCL.

    Attributes
    ----------
    name : str
        As numpy spells it.
    dtype : DType
        What the core computes with: of the same size, and with the same sums and products.
    """

    name: str
    dtype: DType

    @property
    def is_wide_unsigned(self) -> bool:
        """Whether the core takes it for a signed type, which orders and divides differently."""
        return self.name in ("uint32", "uint64")


_TYPES = {
    NCCL_INT8: ElementType("int8", DType.INT8),
    NCCL_UINT8: ElementType("uint8", DType.UINT8),
    NCCL_INT32: ElementType("int32", DType.INT32),
    NCCL_UINT32: ElementType("uint32", DType.INT32),
    NCCL_INT64: ElementType("int64", DType.INT64),
    NCCL_UINT64: ElementType("uint64", DType.INT64),
    NCCL_FLOAT16: ElementType("float16", DType.FLOAT16),
    NCCL_FLOAT32: ElementType("float32", DType.FLOAT32),
    NCCL_FLOAT64: ElementType("float64", DType.FLOAT64),
    NCCL_BFLOAT16: ElementType("bfloat16", DType.BFLOAT16),
}
_OPS = {
    NCCL_SUM: Op.SUM,
    NCCL_PROD: Op.PRODUCT,
    NCCL_MAX: Op.MAX,
    NCCL_MIN: Op.MIN,
    NCCL_AVG: Op.AVERAGE,
}


def element_type(datatype: int) -> ElementType:
    """Return the type with NCCL's number `datatype`; raises NcclError (invalid argument)."""
    found = _TYPES.get(datatype)
    if found is None:
        known = ", ".join(f"{number} ({each.name})" for number, each in _TYPES.items())
        raise refused(Status.INVALID_ARGUMENT, f"datatype {datatype} is none of {known}")
    return found


def operation(op: int) -> Op:
    """Return the operation with NCCL's number `op`; raises NcclError (invalid argument)."""
    found = _OPS.get(op)
    if found is None:
        known = ", ".join(f"{number} ({each.name.lower()})" for number, each in _OPS.items())
        raise refused(Status.INVALID_ARGUMENT, f"op {op} is none of {known}")
    return found
