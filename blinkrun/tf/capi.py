"""TensorFlow's C interface for kernels: how an op of ours gets its inputs and gives its results.

The functions of ``tensorflow/c/kernels.h`` and ``tensorflow/c/ops.h`` are there for plugins, so
they stay the same from version to version: nothing is compiled and no C++ is relied on.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
import tensorflow as tf

from blinkrun.errors import InternalError
from blinkrun.executors import native

Array = np.ndarray[Any, Any]
Compute = Callable[[int, int, int], None]

_TOKEN_BYTES = 64  # most of the attribute `token`


def _library_path() -> str:
    flags = tf.sysconfig.get_link_flags()
    names = [flag.removeprefix("-l:") for flag in flags if flag.startswith("-l:")]
    return os.path.join(tf.sysconfig.get_lib(), names[0] if names else "libtensorflow_framework.so")


_library = ctypes.PyDLL(_library_path())  # what returns at once keeps the interpreter's lock


def _found(name: str) -> Any:
    try:
        return getattr(_library, name)
    except AttributeError:
        raise InternalError(f"TensorFlow {tf.__version__} has no {name}") from None


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = _found(name)
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
_fail = _function("TF_OpKernelContext_Failure", None, c_void_p, c_void_p)

native.set_kernel_functions(
    [ctypes.cast(_found(name), c_void_p).value or 0 for name in native.KERNEL_FUNCTIONS]
)


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

    def __del__(self, delete: Any = _delete_status) -> None:
        delete(self.pointer)


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
    atexit.register(native.close_kernels)  # no thread of TensorFlow may enter an interpreter's end
    kernel = _new_kernel(op.encode(), b"CPU", *native.kernel_callbacks(make_kernel, compute), None)
    _register_kernel(op.encode(), kernel, status.pointer)
    status.check()


# ---- inside of a kernel ------------------------------------------------------------------------


def step_of(context: int) -> int:
    """Return the number of the run of the graph; functions called in it have the same."""
    return int(_step(context))


def inputs_of(context: int, dtypes: list[np.dtype[Any]]) -> list[Array]:
    """Return the inputs as read-only views, which stay valid while they are referred to."""
    return native.kernel_inputs(context, dtypes)


def set_outputs(context: int, arrays: list[Array], types: list[int]) -> None:
    """Give the results. TensorFlow uses the arrays' memory where it starts at a multiple of 64.

    They must not be written to anymore, and are kept until it no longer does; see `reclaim`.
    """
    native.kernel_results(context, arrays, types)


def reclaim() -> int:
    """Let go of results that TensorFlow no longer uses; return how many it still does.

    Each `set_outputs` does so as well.
    """
    return native.reclaim()


def fail(context: int, code: int, text: str) -> None:
    """Let the op fail; the first failure of a run is the error that its caller gets."""
    status = _Status(code, text)
    _fail(context, status.pointer)


def finish(done: int) -> None:
    """Say that the outputs are set, or that it has failed; the context is gone afterwards."""
    native.run_callback(done)
