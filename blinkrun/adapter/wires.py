"""How tensors travel: as elements of a type that the native core knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blinkrun.engine.request import CPU
from blinkrun.types import DType

OF_SIZE = {1: DType.UINT8, 2: DType.FLOAT16, 4: DType.INT32, 8: DType.INT64}  # bits are kept


@dataclass(frozen=True, slots=True, eq=False)  # one object for each way: a quick key
class Wire:
    """How tensors of one dtype travel in one kind of call.

    Attributes
    ----------
    dtype : DType
        What the core takes them for.
    per : int
        Its elements for each element of the tensor; more than one makes a last dimension.
    wide : dtype of the framework, or None
        What they are converted to before, and from after.
    device : str
        The request's device, with the dtype where `dtype` alone does not tell it: ranks that give
        tensors of different dtypes get an error even if both travel alike.
    op : int or None
        The operation on the way, where it is not the one asked for.
    scales : (float, float) or None
        The factors on the way, where they are not those asked for.
    """

    dtype: DType
    per: int = 1
    wide: Any = None
    device: str = CPU
    op: int | None = None
    scales: tuple[float, float] | None = None
