"""What users hand to collectives, as addresses: numpy arrays, torch tensors, buffers, DLPack.

Memory of a device comes as torch CUDA tensors, cupy arrays, and whatever has
``__cuda_array_interface__`` or DLPack. `device_of`, `device_at`, `stream_of`, `record_stream` and
`new_like` are all that is asked of the libraries for it; they are looked up here at each call.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from blinkrun import dlpack
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
# To look up a member of an enumeration takes longer than all else that is done with it.
_UINT8, _BFLOAT16 = DType.UINT8, DType.BFLOAT16
_ITEMSIZES = tuple(dtype.itemsize for dtype in DType)
_seen_dtypes: dict[Any, DType] = {}  # torch's own, once seen: their names take a microsecond
_seen_typestrs: dict[str, DType] = {}  # those of array interfaces
SUPPORTED = ", ".join(dtype.label for dtype in DType)


@dataclass(slots=True)  # not frozen, which takes a microsecond of every call
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
    device : int or None
        Number of the device in this process; None: memory of the host.
    stream : int
        Address of the stream in whose order the memory is used.
    """

    pointer: int
    count: int
    shape: tuple[int, ...]
    dtype: DType
    writable: bool
    owner: Any
    device: int | None = None
    stream: int = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * _ITEMSIZES[self.dtype]


def is_torch(item: Any) -> bool:
    """Whether `item` is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def is_cupy(item: Any) -> bool:
    """Whether `item` is a cupy array; never imports cupy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(item, cupy.ndarray)


# ---- devices -------------------------------------------------------------------------------------


def device_of(item: Any) -> int | None:
    """Return the number of the CUDA device that holds `item`; None for memory of the host."""
    if is_torch(item):
        return item.device.index if item.is_cuda else None
    if isinstance(item, np.ndarray):
        return None
    if is_cupy(item):
        return int(item.device.id)
    interface = getattr(item, "__cuda_array_interface__", None)
    return dlpack.device_of(item) if interface is None else _device_in(item, interface)


def device_at(pointer: int) -> int | None:
    """Return the number of the CUDA device whose memory `pointer` is in; None if it is in none."""
    torch = sys.modules.get("torch")
    is_used = any(name in sys.modules for name in ("cupy", "numba.cuda", "tensorflow"))
    if not (is_used or (torch is not None and torch.cuda.is_initialized())):
        return None  # nobody here has used a device
    from blinkrun.executors import cuda  # noqa: PLC0415 - needs what only devices need

    found: int | None = cuda.device_at(pointer)
    return found


def stream_of(item: Any) -> int:
    """Return the address of the stream in whose order `item`, on a device, is used now.

    That is the current stream of its library; of others what the array itself says.
    """
    if is_torch(item):
        torch = sys.modules["torch"]
        raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
        if raw is not None:  # the same without making a Stream of it; torch's compiler asks so
            return int(raw(item.device.index))
        return int(torch.cuda.current_stream(item.device).cuda_stream)
    if is_cupy(item):
        return int(sys.modules["cupy"].cuda.get_current_stream(item.device.id).ptr)
    return _stream_in(getattr(item, "__cuda_array_interface__", {}))


def is_in_no_stream(item: Any) -> bool:
    """Whether `item`, on a device, may be used in any stream: nothing is under way in it."""
    if is_torch(item) or is_cupy(item):
        return False
    return getattr(item, "__cuda_array_interface__", {}).get("stream") is None


def record_stream(item: Any, stream: int) -> None:
    """Tell the allocator of `item`'s library that `stream` uses it too, where it wants to know."""
    if is_torch(item) and item.is_cuda:
        cuda = sys.modules["torch"].cuda
        if stream:
            user = cuda.ExternalStream(stream, device=item.device)
        else:  # an ExternalStream of 0 would be a new stream
            user = cuda.default_stream(item.device)
        item.record_stream(user)


def new_like(item: Any, shape: tuple[int, ...]) -> Any:
    """Return new memory of the kind, type and device of `item`; None if its library is unknown."""
    if is_torch(item):
        return item.new_empty(shape)
    if is_cupy(item):
        with item.device:
            return sys.modules["cupy"].empty(shape, item.dtype)
    return None


def packed_copy(item: Any) -> Any:
    """Return a contiguous copy of `item`, on a device, in the order of its stream.

    Raises
    ------
    InvalidBufferError
        If its library is unknown.
    """
    if is_torch(item):
        return item.detach().clone(memory_format=sys.modules["torch"].contiguous_format)
    if is_cupy(item):
        with item.device:
            return item.copy(order="C")
    raise InvalidBufferError(
        f"a {type(item).__name__} cannot be copied here; pass a contiguous array that is apart"
        " from out"
    )


def is_packed(item: Any) -> bool:
    """Whether `item`, on a device, holds its elements one behind the other."""
    if is_torch(item):
        return bool(item.is_contiguous())
    interface = getattr(item, "__cuda_array_interface__", None)
    return interface is None or _is_packed(interface)  # DLPack says when it is exported


def _device_in(item: Any, interface: dict[str, Any]) -> int:
    device = getattr(item, "device", None)
    return device if isinstance(device, int) else device_at(interface["data"][0]) or 0


def _stream_in(interface: dict[str, Any]) -> int:
    stream = interface.get("stream")
    return 0 if stream in (None, 1) else int(stream)  # 1: the legacy default stream, called 0 too


def _is_packed(interface: dict[str, Any]) -> bool:
    strides = interface.get("strides")
    if strides is None:
        return True
    return dlpack.is_packed(tuple(interface["shape"]), strides, int(interface["typestr"][2:]))


# ---- views ---------------------------------------------------------------------------------------


def numpy_dtype(name: Any) -> np.dtype[Any]:
    """Return the numpy type called `name`; bfloat16 is that of ml_dtypes.

    Raises
    ------
    InvalidBufferError
        If collectives do not know the type.
    """
    if str(name) == "bfloat16" or name is _BFLOAT16:
        return native.register_bfloat16()
    try:
        dtype = np.dtype(name.label if isinstance(name, DType) else name)
    except TypeError:
        dtype = None
    if dtype is None or _dtype_of_numpy(dtype) is None:
        raise InvalidBufferError(f"dtype {name} is not supported; use one of {SUPPORTED}")
    return dtype


def view(item: Any, what: str, *, packed: bool = True) -> View:
    """Return the memory of `item`; `what` names it in errors ("allreduce: array").

    With ``packed=False`` an array on a device may be non-contiguous: the view tells its shape.

    Raises
    ------
    InvalidBufferError
        If it is no buffer, not contiguous, or of a type that collectives do not know.
    """
    if isinstance(item, np.ndarray):
        return _numpy_view(item, what)
    if is_torch(item):
        return _torch_view(item, what, packed=packed)
    found = _device_view(item, what, packed=packed)
    return _numpy_view(_as_numpy(item, what), what) if found is None else found


def raw_view(item: Any, what: str) -> View:
    """Return the memory of `item` as bytes (DType.UINT8), whatever its element type.

    Raises
    ------
    InvalidBufferError
        If it is no buffer or not contiguous.
    """
    if is_torch(item):
        device, stream = _check_torch(item, what)
        num_bytes = item.numel() * item.element_size()
        shape = tuple(item.shape)
        return View(item.data_ptr(), num_bytes, shape, _UINT8, True, item, device, stream)
    if not isinstance(item, np.ndarray):
        found = _device_view(item, what, as_bytes=True)
        if found is not None:
            return found
    array = _as_numpy(item, what)
    if array.dtype.hasobject:
        raise InvalidBufferError(f"{what} holds Python objects, not bytes; pickle them")
    if not array.flags.c_contiguous:
        raise _scattered(what, "numpy.ascontiguousarray(array)")
    pointer = array.__array_interface__["data"][0]
    return View(pointer, array.nbytes, array.shape, _UINT8, array.flags.writeable, array)


def _torch_view(tensor: Any, what: str, *, packed: bool) -> View:
    device, stream = _check_torch(tensor, what, packed=packed)
    dtype = _seen_dtypes.get(tensor.dtype)
    if dtype is None:
        dtype = _torch_dtype(tensor.dtype, what)
    pointer = tensor.data_ptr()
    if device is not None:
        _check_aligned(pointer, dtype, what)
    return View(pointer, tensor.numel(), tuple(tensor.shape), dtype, True, tensor, device, stream)


def _torch_dtype(dtype: Any, what: str) -> DType:
    found = _TORCH_DTYPES.get(str(dtype))
    if found is None:
        raise InvalidBufferError(f"{what} has dtype {dtype}; supported are {SUPPORTED}")
    _seen_dtypes[dtype] = found
    return found


def _check_torch(tensor: Any, what: str, *, packed: bool = True) -> tuple[int | None, int]:
    """Return device and stream of a tensor that can be used as it lies."""
    device = device_of(tensor)
    if device is None and not tensor.is_cpu:
        raise InvalidBufferError(
            f"{what} is on {tensor.device}; collectives take tensors of the CPU and of CUDA devices"
        )
    is_fit = tensor.is_contiguous() or (device is not None and not packed)
    if not is_fit or tensor.layout is not sys.modules["torch"].strided:
        raise _scattered(what, "tensor.contiguous()")
    return (None, 0) if device is None else (device, stream_of(tensor))


def _device_view(
    item: Any, what: str, *, packed: bool = True, as_bytes: bool = False
) -> View | None:
    """Return the memory of an array that is no torch tensor; None if it is on no device."""
    interface = getattr(item, "__cuda_array_interface__", None)
    if interface is None:
        device = dlpack.device_of(item)
        return None if device is None else _dlpack_view(item, what, device, as_bytes=as_bytes)
    look_up = interface.get
    if look_up("mask") is not None:
        raise InvalidBufferError(f"{what} has a mask; pass its data")
    if packed and look_up("strides") is not None and not _is_packed(interface):
        raise _scattered(what, "a contiguous copy, such as cupy.ascontiguousarray()")
    shape = tuple(interface["shape"])
    count = math.prod(shape)
    if as_bytes:
        dtype = _UINT8
        count *= int(interface["typestr"][2:])
    else:
        seen = _seen_typestrs.get(interface["typestr"])
        dtype = _dtype_of_interface(item, interface, what) if seen is None else seen
    pointer, is_read_only = interface["data"]
    _check_aligned(pointer, dtype, what)
    device = getattr(item, "device", None)
    if isinstance(device, int):
        stream = _stream_in(interface)
    elif is_cupy(item):
        device, stream = int(item.device.id), stream_of(item)
    else:
        device, stream = device_at(pointer) or 0, _stream_in(interface)
    return View(pointer, count, shape, dtype, not is_read_only, item, device, stream)


def _dtype_of_interface(item: Any, interface: dict[str, Any], what: str) -> DType:
    name = interface["typestr"]
    own = getattr(item, "dtype", None)
    has_no_letter = name[1] == "V"  # as bfloat16
    if has_no_letter and own is not None:
        name = own
    try:
        dtype = _dtype_of_numpy(np.dtype(name))
    except TypeError:
        dtype = None
    if dtype is None:
        raise InvalidBufferError(f"{what} has dtype {name}; supported are {SUPPORTED}")
    if not has_no_letter:
        _seen_typestrs[name] = dtype
    return dtype


def _dlpack_view(item: Any, what: str, device: int, *, as_bytes: bool) -> View:
    found = dlpack.exported(item, what, stream=1)  # used in the order of the default stream
    if not found.contiguous:
        raise _scattered(what, "a contiguous copy")
    dtype = _UINT8 if as_bytes else found.dtype
    if dtype is None:
        raise InvalidBufferError(f"{what} has a dtype that is none of {SUPPORTED}")
    count = math.prod(found.shape) * (found.itemsize if as_bytes else 1)
    _check_aligned(found.pointer, dtype, what)
    owner = (item, found.capsule)
    return View(found.pointer, count, found.shape, dtype, True, owner, device, 0)


def _scattered(what: str, copy: str) -> InvalidBufferError:
    is_written = what.endswith("out") or what.startswith("recv")  # a copy would get the result
    remedy = "give one that is, and copy from it" if is_written else f"pass {copy}"
    return InvalidBufferError(f"{what} is not contiguous; {remedy}")


def _check_aligned(pointer: int, dtype: DType, what: str) -> None:
    if pointer % _ITEMSIZES[dtype]:
        raise InvalidBufferError(f"{what} is not aligned to its element size; pass a copy")


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
        raise _scattered(what, "numpy.ascontiguousarray(array)")
    if not array.flags.aligned:
        raise InvalidBufferError(f"{what} is not aligned to its element size; pass a copy")
    pointer = array.__array_interface__["data"][0]
    return View(pointer, array.size, array.shape, dtype, array.flags.writeable, array)


def _dtype_of_numpy(dtype: np.dtype[Any]) -> DType | None:
    found = native.NUMPY_DTYPES.get(dtype)
    if found is None and dtype.name == "bfloat16":
        native.register_bfloat16()
        return native.NUMPY_DTYPES.get(dtype)
    return found
