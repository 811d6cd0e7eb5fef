"""Names that all layers share: ranks, reduction operations, element types, collectives."""

from __future__ import annotations

from enum import IntEnum

Rank = int


class Op(IntEnum):
    """Reduction operation of allreduce, reduce and reducescatter.

    On ``bool``, SUM and MAX are logical or, PRODUCT and MIN logical and. Integer sums and products
    wrap as numpy's do; AVERAGE of integers is the floor of the (wrapped) sum over the size.
    """

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4


class DType(IntEnum):
    """Element type of a buffer; 16-bit floats are accumulated in float32."""

    UINT8 = 0
    INT8 = 1
    INT32 = 2
    INT64 = 3
    FLOAT16 = 4
    BFLOAT16 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    BOOL = 8

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def label(self) -> str:
        """Name as numpy and torch spell it, such as ``float32``."""
        return self.name.lower()

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)


_ITEMSIZE = (1, 1, 4, 8, 2, 2, 4, 8, 1)  # by number: to hash a member takes longer than a look-up


class Collective(IntEnum):
    """Operations that run as programs; `BARRIER` is the program with nothing in it."""

    ALLREDUCE = 0
    BROADCAST = 1
    REDUCE = 2
    ALLGATHER = 3
    REDUCESCATTER = 4
    BARRIER = 5
    ALLTOALL = 6

    @property
    def label(self) -> str:
        """Name in lower case, as commands and messages spell it."""
        return _COLLECTIVES[self]

    @property
    def is_rooted(self) -> bool:
        """Whether the call names a root rank."""
        return self in (Collective.BROADCAST, Collective.REDUCE)


_COLLECTIVES = tuple(each.name.lower() for each in Collective)  # a name takes half a microsecond
