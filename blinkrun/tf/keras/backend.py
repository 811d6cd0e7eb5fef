"""Keras variables as numpy arrays, whichever Keras and backend they are of, and small collectives.

Callbacks stand on this: it knows Keras 3 on TensorFlow and on torch, tf_keras and plain
``tf.Variable``. Nothing here imports a framework; what is loaded is looked up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from blinkrun.adapter.operations import Average
from blinkrun.adapter.process_sets import (
    ProcessSet,
    checked_root,
    global_process_set,
    number_of,
)
from blinkrun.adapter.where import caller
from blinkrun.buffers import View, numpy_dtype, raw_view, view
from blinkrun.engine import engine
from blinkrun.engine.handle import Part
from blinkrun.engine.request import Kind, Member, Request
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.tf import versions

Array = np.ndarray[Any, Any]

BACKENDS = ("tensorflow", "torch")


def name() -> str:
    """Return the backend of the Keras in use, ``tensorflow`` or ``torch``.

    Raises
    ------
    UsageError
        If it is another one.
    """
    backend = "tensorflow" if versions.is_legacy() else versions.keras_backend()
    if backend not in BACKENDS:
        raise UsageError(
            f"Keras' backend is {backend}; blinkrun.tf.keras works with {' and '.join(BACKENDS)}, "
            "set KERAS_BACKEND to one of them before keras is imported"
        )
    return backend


# ---- variables ---------------------------------------------------------------------------------


def native(variable: Any) -> Any:
    """Return the tensor or variable of the backend that a variable of Keras 3 holds, or itself."""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(variable, keras.Variable):
        return variable.value
    return variable


def host_values(variables: Sequence[Any]) -> list[Array]:
    """Return copies of the values of variables as numpy arrays; bfloat16 is that of ml_dtypes."""
    return [_host_value(native(each)) for each in variables]


def assign(variables: Sequence[Any], arrays: Sequence[Array]) -> None:
    """Give variables the values of arrays of their shapes and dtypes."""
    for variable, array in zip(variables, arrays, strict=True):
        inner = native(variable)
        if _is_torch(inner):
            with sys.modules["torch"].no_grad():
                inner.copy_(_to_torch(array))
        else:
            inner.assign(array)


def _host_value(inner: Any) -> Array:
    if not _is_torch(inner):
        return np.array(inner.numpy())
    torch = sys.modules["torch"]
    tensor = inner.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        bits = tensor.view(torch.int16).numpy()
        return np.array(bits).view(numpy_dtype("bfloat16"))
    return np.array(tensor.numpy())


def _to_torch(array: Array) -> Any:
    torch = sys.modules["torch"]
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _is_torch(inner: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(inner, torch.Tensor)


# ---- collectives -------------------------------------------------------------------------------


def reduce(
    values: Sequence[Array | float],
    names: Sequence[str],
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Return each value reduced over the ranks; every rank of the set calls it, and it blocks.

    Parameters
    ----------
    values : sequence of numpy.ndarray or float
        Small ones, such as metrics: they are copied. Numbers are taken as float64.
    names : sequence of str
        One for each value, the same on all ranks; their order may differ.
    op : default Average
        An operation of `blinkrun.adapter.operations`.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Raises
    ------
    MismatchError
        If ranks give other dtypes, shapes or operations under a name.
    """
    number = number_of(process_set)
    arrays = [np.array(each, order="C") for each in values]
    calls = []
    for array, label in zip(arrays, names, strict=True):
        there = view(array, f"allreduce of '{label}'")
        request = _request(Kind.ALLREDUCE, f"keras.reduce.{label}", there, number, op=op)
        calls.append((request, [Part(there, there)]))
    _run(calls)
    return arrays


def broadcast_arrays(
    arrays: Sequence[Array],
    names: Sequence[str],
    root: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Return the arrays of `root` on every rank of the set; all of them call it, and it blocks.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray
        Of any dtype but objects. Those of other ranks only say shape and dtype.
    names : sequence of str
        One for each, the same on all ranks.
    root : int
        Whose values all get, as a rank of the job.
    process_set : ProcessSet
        The ranks that take part; this one must be among them.

    Raises
    ------
    MismatchError
        If ranks give other dtypes or shapes under a name, or name different roots.
    """
    root, number = checked_root(root, process_set), number_of(process_set)
    results, calls = [], []
    for array, label in zip(arrays, names, strict=True):
        given = np.ascontiguousarray(array).reshape(np.shape(array))  # a scalar stays one
        taken = given if engine.current().world.rank == root else np.empty_like(given)
        results.append(taken)
        if given.size:
            what = f"broadcast of '{label}'"
            there = _any_view(given, what)
            parts = [Part(there, there if taken is given else _any_view(taken, what))]
            request = _request(Kind.BROADCAST, f"keras.broadcast.{label}", there, number, root=root)
            calls.append((request, parts))
    _run(calls)
    return results


def _any_view(array: Array, what: str) -> View:
    try:
        return view(array, what)
    except InvalidBufferError:  # a dtype that only broadcasts know
        return raw_view(array, what)


def _request(  # noqa: PLR0913
    kind: Kind, label: str, there: View, process_set: int, *, op: int = 0, root: int = -1
) -> Request:
    member = Member(there.dtype, there.shape)
    return Request(
        label, kind, (member,), process_set=process_set, op=op, root=root, where=caller()
    )


def _run(calls: Sequence[tuple[Request, list[Part]]]) -> None:
    """Carry out calls that are sent as one message, and raise the first error when all are over."""
    first: BaseException | None = None
    for handle in engine.current().submit_all(calls, sync=True):
        try:
            handle.wait()
        except Exception as err:
            first = first or err
    if first is not None:
        raise first
