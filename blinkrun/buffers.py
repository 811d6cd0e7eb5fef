"""What users hand to collectives, as addresses: numpy arrays, torch tensors, buffers, DLPack."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from blinkrun.errors import InvalidBufferError
from blinkrun.executors import native
from blinkrun.types import DType

_TORCH_DTYPES = {
    "torch.uint8": DType.UINT8,
    "torch.int8": DType.INT8,
    "torch.int32": DType.INT32,
    "torch.int64": DType.INT64,
    "torch.float16": DType.FLOAT16,
    "torch.bfloat16": DType.BFLOAT16,
    "torch.float32": DType.FLOAT32,
    "torch.float64": DType.FLOAT64,
    "torch.bool": DType.BOOL,
}
SUPPORTED = ", ".join(dtype.label for dtype in DType)


@dataclass(frozen=True, slots=True)
class View:
    """Memory of a caller's object; `owner` keeps it alive.

    Attributes
    ----------
    pointer : int
        Address of the first element.
    count : int
        Number of elements.
    shape : tuple of int
        As the caller sees it.
    dtype : DType
        Element type.
    writable : bool
        Whether results may be written there.
    owner : object
        The array or tensor to which the memory belongs.
    """

    pointer: int
    count: int
    shape: tuple[int, ...]
    dtype: DType
    writable: bool
    owner: Any

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * self.dtype.itemsize


def is_torch(item: Any) -> bool:
    """Whether `item` is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def numpy_dtype(name: Any) -> np.dtype[Any]:
    """Return the numpy type called `name`; bfloat16 is that of ml_dtypes.

    Raises
    ------
    InvalidBufferError
        If collectives do not know the type.
    """
    if str(name) == "bfloat16" or name is DType.BFLOAT16:
        return native.register_bfloat16()
    try:
        dtype = np.dtype(name.label if isinstance(name, DType) else name)
    except TypeError:
        dtype = None
    if dtype is None or _dtype_of_numpy(dtype) is None:
        raise InvalidBufferError(f"dtype {name} is not supported; use one of {SUPPORTED}")
    return dtype


def view(item: Any, what: str) -> View:
    """Return the memory of `item`; `what` names it in errors ("allreduce: array").

    Raises
    ------
    InvalidBufferError
        If it is no CPU buffer, not contiguous, or of a type that collectives do not know.
    """
    if is_torch(item):
        return _torch_view(item, what)
    return _numpy_view(_as_numpy(item, what), what)


def raw_view(item: Any, what: str) -> View:
    """Return the memory of `item` as bytes (DType.UINT8), whatever its element type.

    Raises
    ------
    InvalidBufferError
        If it is no CPU buffer or not contiguous.
    """
    if is_torch(item):
        _check_torch(item, what)
        num_bytes = item.numel() * item.element_size()
        return View(item.data_ptr(), num_bytes, tuple(item.shape), DType.UINT8, True, item)
    array = _as_numpy(item, what)
    if array.dtype.hasobject:
        raise InvalidBufferError(f"{what} holds Python objects, not bytes; pickle them")
    if not array.flags.c_contiguous:
        raise InvalidBufferError(f"{what} is not contiguous; pass numpy.ascontiguousarray(array)")
    pointer = array.__array_interface__["data"][0]
    return View(pointer, array.nbytes, array.shape, DType.UINT8, array.flags.writeable, array)


def _torch_view(tensor: Any, what: str) -> View:
    _check_torch(tensor, what)
    dtype = _TORCH_DTYPES.get(str(tensor.dtype))
    if dtype is None:
        raise InvalidBufferError(f"{what} has dtype {tensor.dtype}; supported are {SUPPORTED}")
    return View(tensor.data_ptr(), tensor.numel(), tuple(tensor.shape), dtype, True, tensor)


def _check_torch(tensor: Any, what: str) -> None:
    if tensor.device.type != "cpu":
        raise InvalidBufferError(
            f"{what} is on {tensor.device}; this version moves CPU tensors only"
        )
    if tensor.layout != sys.modules["torch"].strided or not tensor.is_contiguous():
        raise InvalidBufferError(f"{what} is not contiguous; pass tensor.contiguous()")


def _as_numpy(item: Any, what: str) -> np.ndarray[Any, Any]:
    if isinstance(item, np.ndarray):
        return item
    if hasattr(item, "__dlpack__") and not isinstance(item, np.generic):
        try:
            return np.from_dlpack(item)
        except (BufferError, RuntimeError, TypeError, ValueError) as err:
            raise InvalidBufferError(f"{what} offers no CPU memory through DLPack: {err}") from err
    try:
        return np.asarray(memoryview(item))
    except (TypeError, ValueError) as err:
        raise InvalidBufferError(
            f"{what} is a {type(item).__name__}, which has no memory to work on; pass a numpy"
            " array, a torch tensor, or an object with the buffer protocol or DLPack"
        ) from err


def _numpy_view(array: np.ndarray[Any, Any], what: str) -> View:
    dtype = _dtype_of_numpy(array.dtype)
    if dtype is None:
        raise InvalidBufferError(f"{what} has dtype {array.dtype}; supported are {SUPPORTED}")
    if not array.flags.c_contiguous:
        raise InvalidBufferError(f"{what} is not contiguous; pass numpy.ascontiguousarray(array)")
    if not array.flags.aligned:
        raise InvalidBufferError(f"{what} is not aligned to its element size; pass a copy")
    pointer = array.__array_interface__["data"][0]
    return View(pointer, array.size, array.shape, dtype, array.flags.writeable, array)


def _dtype_of_numpy(dtype: np.dtype[Any]) -> DType | None:
    if dtype.name == "bfloat16":
        native.register_bfloat16()
    return native.NUMPY_DTYPES.get(dtype)
