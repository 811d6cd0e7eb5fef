"""What DLPack says about memory: a capsule read without any library of its maker."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from blinkrun.errors import InvalidBufferError
from blinkrun.types import DType

CPU = 1
CUDA = 2
CUDA_MANAGED = 13
_DEVICES = (CUDA, CUDA_MANAGED)
_DTYPES = {  # (kind, bits) -> DType; kinds: 0 int, 1 uint, 2 float, 4 bfloat, 6 bool
    (0, 8): DType.INT8,
    (0, 32): DType.INT32,
    (0, 64): DType.INT64,
    (1, 8): DType.UINT8,
    (2, 16): DType.FLOAT16,
    (2, 32): DType.FLOAT32,
    (2, 64): DType.FLOAT64,
    (4, 16): DType.BFLOAT16,
    (6, 8): DType.BOOL,
}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


@dataclass(frozen=True, slots=True)
class Exported:
    """Memory that another library offers; it stays as long as `capsule` does.

    Attributes
    ----------
    pointer : int
        Address of the first element.
    device_type, device : int
        As DLPack numbers them.
    shape : tuple of int
        In elements.
    dtype : DType or None
        None if collectives have no such type.
    itemsize : int
        Bytes of an element.
    contiguous : bool
        Whether the elements lie one behind the other.
    capsule : object
        What owns the memory.
    """

    pointer: int
    device_type: int
    device: int
    shape: tuple[int, ...]
    dtype: DType | None
    itemsize: int
    contiguous: bool
    capsule: Any


def device_of(item: Any) -> int | None:
    """Return the CUDA device that holds `item`, None if it is none or has no DLPack."""
    ask = getattr(item, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        kind, number = ask()
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    return int(number) if int(kind) in _DEVICES else None


def exported(item: Any, what: str, stream: int | None = None) -> Exported:
    """Return the memory of `item`, or of a capsule that another call has made.

    Parameters
    ----------
    item : object
        With ``__dlpack__``, or a capsule called ``dltensor``.
    what : str
        What errors call it.
    stream : int, optional
        In whose order it will be used, as DLPack counts (1: the legacy default stream); the maker
        lets it wait for what it still computes.

    Raises
    ------
    InvalidBufferError
        If the maker does not offer it.
    """
    capsule = item
    if hasattr(item, "__dlpack__"):
        try:
            capsule = item.__dlpack__() if stream is None else item.__dlpack__(stream=stream)
        except (BufferError, RuntimeError, TypeError, ValueError) as err:
            raise InvalidBufferError(f"{what} offers no memory through DLPack: {err}") from err
    try:
        address = _pointer_of(capsule, b"dltensor")
    except (TypeError, ValueError) as err:
        raise InvalidBufferError(f"{what} is no DLPack capsule that can be read: {err}") from err
    tensor = _DLTensor.from_address(address)
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.ndim and tensor.strides else None
    whole = tensor.lanes == 1
    return Exported(
        (tensor.data or 0) + tensor.byte_offset,
        tensor.device_type,
        tensor.device_id,
        shape,
        _DTYPES.get((tensor.kind, tensor.bits)) if whole else None,
        (tensor.bits * tensor.lanes + 7) // 8,
        is_packed(shape, strides),
        capsule,
    )


def is_packed(shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int = 1) -> bool:
    """Whether elements of such strides lie one behind the other, the last axis fastest.

    >>> is_packed((2, 3), (3, 1)), is_packed((2, 3), (1, 2)), is_packed((2, 1), (1, 7))
    (True, False, True)
    """
    if strides is None or 0 in shape:
        return True
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
