"""TensorFlow's C interface for kernels: how an op of ours gets its inputs and gives its results.

The functions of ``tensorflow/c/kernels.h`` and ``tensorflow/c/ops.h`` are there for plugins, so
they stay the same from version to version: nothing is compiled and no C++ is relied on.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from blinkrun.errors import InternalError
from blinkrun.executors import native
from blinkrun.tf.lending import GIVE_BACK, lend

Array = np.ndarray[Any, Any]
Compute = Callable[[int, int, int], None]

_TOKEN_BYTES = 64  # most of the attribute `token`


def _library_path() -> str:
    flags = tf.sysconfig.get_link_flags()
    names = [flag.removeprefix("-l:") for flag in flags if flag.startswith("-l:")]
    return os.path.join(tf.sysconfig.get_lib(), names[0] if names else "libtensorflow_framework.so")


_library = ctypes.PyDLL(_library_path())  # what returns at once keeps the interpreter's lock


def _function(name: str, result: Any, *arguments: Any) -> Any:
    try:
        function = getattr(_library, name)
    except AttributeError:
        raise InternalError(f"TensorFlow {tf.__version__} has no {name}") from None
    function.restype = result
    function.argtypes = arguments
    return function


_new_status = _function("TF_NewStatus", c_void_p)
_delete_status = _function("TF_DeleteStatus", None, c_void_p)
_set_status = _function("TF_SetStatus", None, c_void_p, c_int, c_char_p)
_status_code = _function("TF_GetCode", c_int, c_void_p)
_status_text = _function("TF_Message", c_char_p, c_void_p)

_new_op = _function("TF_NewOpDefinitionBuilder", c_void_p, c_char_p)
_op_attribute = _function("TF_OpDefinitionBuilderAddAttr", None, c_void_p, c_char_p)
_op_input = _function("TF_OpDefinitionBuilderAddInput", None, c_void_p, c_char_p)
_op_output = _function("TF_OpDefinitionBuilderAddOutput", None, c_void_p, c_char_p)
_op_is_stateful = _function("TF_OpDefinitionBuilderSetIsStateful", None, c_void_p, c_bool)
_register_op = _function("TF_RegisterOpDefinition", None, c_void_p, c_void_p)
_new_kernel = _function(
    "TF_NewAsyncKernelBuilder", c_void_p, c_char_p, c_char_p, c_void_p, c_void_p, c_void_p
)
_register_kernel = _function("TF_RegisterKernelBuilder", None, c_char_p, c_void_p, c_void_p)
_string_attribute = _function(
    "TF_OpKernelConstruction_GetAttrString", None, c_void_p, c_char_p, c_char_p, c_size_t, c_void_p
)
_fail_making = _function("TF_OpKernelConstruction_Failure", None, c_void_p, c_void_p)

_step = _function("TF_StepId", c_int64, c_void_p)
_get_input = _function("TF_GetInput", None, c_void_p, c_int, POINTER(c_void_p), c_void_p)
_set_output = _function("TF_SetOutput", None, c_void_p, c_int, c_void_p, c_void_p)
_fail = _function("TF_OpKernelContext_Failure", None, c_void_p, c_void_p)

_new_tensor = _function(
    "TF_NewTensor", c_void_p, c_int, c_void_p, c_int, c_void_p, c_size_t, c_void_p, c_void_p
)
_delete_tensor = _function("TF_DeleteTensor", None, c_void_p)
_tensor_data = _function("TF_TensorData", c_void_p, c_void_p)
_num_dims = _function("TF_NumDims", c_int, c_void_p)
_dim = _function("TF_Dim", c_int64, c_void_p, c_int)

_MAKE = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_COMPUTE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
_for_ever: list[Any] = []  # what C code has the addresses of


class _Status:
    """A TF_Status for a few calls."""

    __slots__ = ("pointer",)

    def __init__(self, code: int = 0, text: str = "") -> None:
        self.pointer = _new_status()
        if code:
            _set_status(self.pointer, code, text.encode(errors="replace"))

    def check(self) -> None:
        """Raise if a call failed."""
        if _status_code(self.pointer):
            text = (_status_text(self.pointer) or b"").decode(errors="replace")
            raise InternalError(f"TensorFlow says: {text}")

    def __del__(self) -> None:
        _delete_status(self.pointer)


def register(op: str, make: Callable[[str], int], compute: Compute) -> None:
    """Register an op with any inputs and outputs, and its asynchronous kernel for CPUs.

    TensorFlow ends the process if the op is there already.

    Parameters
    ----------
    op : str
        Its type. It has the attributes Tin and Tout, lists of types, and ``token``, a string.
    make : callable
        Called for each kernel with the token; returns a number above 0. What it raises is the
        error of the function that the op is in.
    compute : callable
        Called with that number, the context and what `finish` takes, in a thread of TensorFlow. It
        returns soon and raises nothing.
    """

    def make_kernel(construction: int) -> int:
        status = _Status()
        try:
            text = ctypes.create_string_buffer(_TOKEN_BYTES)
            _string_attribute(construction, b"token", text, _TOKEN_BYTES, status.pointer)
            status.check()
            return make(text.value.decode())
        except Exception as err:
            status = _Status(tf.errors.FAILED_PRECONDITION, str(err))
            _fail_making(construction, status.pointer)
            return 0

    status = _Status()
    builder = _new_op(op.encode())
    for attribute in ("Tin: list(type) >= 0", "Tout: list(type) >= 0", "token: string"):
        _op_attribute(builder, attribute.encode())
    _op_input(builder, b"input: Tin")
    _op_output(builder, b"output: Tout")
    _op_is_stateful(builder, True)
    _register_op(builder, status.pointer)
    status.check()

    def compute_later(number: int, context: int, done: int) -> None:
        compute(number or 0, context, native.take_callback(done))

    callbacks = (_MAKE(make_kernel), _COMPUTE(compute_later))
    _for_ever.extend(callbacks)
    addresses = [ctypes.cast(callback, c_void_p) for callback in callbacks]
    kernel = _new_kernel(op.encode(), b"CPU", *addresses, None)
    _register_kernel(op.encode(), kernel, status.pointer)
    status.check()


# ---- inside of a kernel ------------------------------------------------------------------------


def step_of(context: int) -> int:
    """Return the number of the run of the graph; functions called in it have the same."""
    return int(_step(context))


class _Input:
    """Memory of a tensor, as numpy takes it up; kept while it is referred to."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: int, typestr: str) -> None:
        self._tensor = tensor
        shape = tuple([_dim(tensor, each) for each in range(_num_dims(tensor))])
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (_tensor_data(tensor), True),
        }

    def __del__(self) -> None:
        _delete_tensor(self._tensor)


def inputs_of(context: int, dtypes: Sequence[np.dtype[Any]]) -> list[Array]:
    """Return the inputs as read-only views, which stay valid while they are referred to."""
    status = _Status()
    pointer = c_void_p()
    arrays = []
    for number, dtype in enumerate(dtypes):
        _get_input(context, number, ctypes.byref(pointer), status.pointer)
        status.check()
        typestr = _typestr(dtype)
        tensor = _Input(pointer.value or 0, typestr)
        shape = tensor.__array_interface__["shape"]
        if not math.prod(shape):  # it may have no address
            arrays.append(np.empty(shape, dtype))
        elif typestr == dtype.str:
            arrays.append(np.asarray(tensor))
        else:
            arrays.append(np.asarray(tensor).view(dtype))
    return arrays


@cache
def _typestr(dtype: np.dtype[Any]) -> str:
    """Return the type as numpy exchanges it; bytes of that size where numpy knows it not."""
    return dtype.str if dtype.isbuiltin == 1 else f"<u{dtype.itemsize}"


def set_outputs(context: int, arrays: Sequence[Array], types: Sequence[int]) -> None:
    """Give the results. TensorFlow uses the arrays' memory where it starts at a multiple of 64.

    They must not be written to anymore.
    """
    status = _Status()
    for number, (array, kind) in enumerate(zip(arrays, types, strict=True)):
        whole = np.ascontiguousarray(array).reshape(array.shape)
        dims = (c_int64 * whole.ndim)(*whole.shape)
        address = whole.__array_interface__["data"][0]
        tensor = _new_tensor(kind, dims, whole.ndim, address, whole.nbytes, GIVE_BACK, lend(whole))
        try:
            _set_output(context, number, tensor, status.pointer)
            status.check()
        finally:
            _delete_tensor(tensor)


def fail(context: int, code: int, text: str) -> None:
    """Let the op fail; the first failure of a run is the error that its caller gets."""
    status = _Status(code, text)
    _fail(context, status.pointer)


def finish(done: int) -> None:
    """Say that the outputs are set, or that it has failed; the context is gone afterwards."""
    native.run_callback(done)
