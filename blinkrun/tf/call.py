"""From tensors to requests of the engine, eagerly and from inside a ``tf.function``.

Tensors are read where they are, as numpy views; results lie in memory that TensorFlow takes over
without a copy. Requests are values and much the same from step to step, so those with a name are
kept and found again by what they are made of: building one costs more than a small allreduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from blinkrun.adapter.process_sets import ProcessSet, number_of
from blinkrun.adapter.where import calling_frame, place
from blinkrun.buffers import View
from blinkrun.engine import engine
from blinkrun.engine.handle import Handle, Part
from blinkrun.engine.request import Kind, Member, Request
from blinkrun.errors import InvalidBufferError, UsageError
from blinkrun.tf import devices, graph
from blinkrun.tf.arrays import Array, aligned_empty, array_of, tensor_of
from blinkrun.tf.dtypes import NATIVE, Wire, from_wide, moved, of_tensor, reduced, to_wide
from blinkrun.tf.errors import translated
from blinkrun.tf.ops_names import in_graph, place_of_op
from blinkrun.tf.ops_turns import in_turn
from blinkrun.types import Op

NO_SCALES = (1.0, 1.0)
_KEPT_REQUESTS = 8192
_kept: dict[tuple[Any, ...], Request] = {}
_FLOAT32 = np.dtype(np.float32)
_REDUCTIONS = (Kind.ALLREDUCE, Kind.REDUCESCATTER)


class Call(NamedTuple):
    """What is asked of tensors, whichever they are.

    Attributes
    ----------
    kind, name, process_set, op, root, scales, splits
        The fields of `Request`. After `settled` the name is final. Splits that are None are the
        last of the tensors of a call in a graph.
    counts : np.dtype or None
        If given, the rows that came from each rank are a further result of this dtype.
    where : str
        ``file:line`` of the caller; empty: to be looked up when the call is made.
    repeats : bool
        Whether the name comes again, so that the request is worth keeping.
    """

    kind: Kind
    name: str | None
    process_set: ProcessSet
    op: int = Op.SUM
    root: int = -1
    scales: tuple[float, float] = NO_SCALES
    splits: tuple[int, ...] | None = ()
    counts: np.dtype[Any] | None = None
    where: str = ""
    repeats: bool = False

    @property
    def called(self) -> str:
        """The call as messages name it."""
        return f"{self.kind.label} of '{self.name}'" if self.name else self.kind.label

    def settled(self, *, ignore_name_scope: bool = False) -> Call:
        """Return the call with its final name.

        Eagerly that is its own or the next of its kind. In a graph it is made of the names of the
        graph, of the scope and of the call, and unique in the graph.
        """
        if self.name and not isinstance(self.name, str):
            raise UsageError(f"{self.kind.label}: name is {self.name!r}, need a text")
        if tf.executing_eagerly():
            return self._replace(repeats=True) if self.name else next_of(self)
        name = in_graph(self.name, self.kind.label, ignore_name_scope=ignore_name_scope)
        return self._replace(name=name, repeats=True)

    def derived(self, suffix: str, **changes: Any) -> Call:
        """Return a call of a name that is made from this one's final name."""
        name = f"{self.name}.{suffix}"
        if not tf.executing_eagerly():
            name = in_graph(name, "", is_whole=True)
        return self._replace(name=name, where="", **changes)


def next_of(call: Call) -> Call:
    """Return a call without a name with the next name of its kind and process set."""
    name = engine.current().next_name(call.kind.label, number_of(call.process_set))
    return call._replace(name=name, repeats=False)


class Piece(NamedTuple):
    """One array of a call: its memory, how it travels, and what to make of the result."""

    part: Part
    wire: Wire
    finish: Callable[[Array], Array] | None = None


class Started:
    """A call of the engine under way.

    Attributes
    ----------
    handle : engine.Handle
        What the engine knows it by.
    """

    __slots__ = ("_counts", "_finishes", "handle")

    def __init__(self, handle: Handle, pieces: list[Piece], counts: np.dtype[Any] | None) -> None:
        self.handle = handle
        self._finishes = [piece.finish for piece in pieces]
        self._counts = counts

    def wait(self) -> list[Array]:
        """Return the results, waiting for them if need be; raises what went wrong."""
        handle = self.handle
        handle.wait()
        results = [
            view.owner if finish is None else finish(view.owner)
            for view, finish in zip(handle.targets, self._finishes, strict=True)
        ]
        if self._counts is not None:
            results.append(np.array(handle.received_splits, self._counts))
        return results


# ---- calls -------------------------------------------------------------------------------------


def run(
    call: Call, tensors: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec] | None = None
) -> list[tf.Tensor]:
    """Return the results of a call on tensors, eagerly or, in a graph, at every run of it.

    Parameters
    ----------
    call : Call
        Settled.
    tensors : sequence of tf.Tensor
        All of them eager, or in a graph.
    outputs : sequence of tf.TensorSpec, optional
        For a graph: dtypes and what is known of the shapes of the results, counts included.
        Default: those of `tensors`.

    Raises
    ------
    blinkrun.errors.BlinkrunError
        As its translation into an error that is TensorFlow's as well.
    """
    if tf.executing_eagerly():
        with translated():
            if devices.takes(call, tensors):
                return devices.run(call, tensors, number_of(call.process_set))
            dtypes = [tensor.dtype for tensor in tensors]
            started = submit_arrays(call, [array_of(tensor) for tensor in tensors], sync=True)
            results = started.wait()
            if call.counts is not None:
                dtypes.append(tf.as_dtype(call.counts))
            return [tensor_of(*each) for each in zip(results, dtypes, strict=True)]
    with translated():
        return _run_in_graph(call, tensors, outputs)


def _run_in_graph(
    call: Call, tensors: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec] | None
) -> list[tf.Tensor]:
    for tensor in tensors:
        check_dtype(call, tensor.dtype)
    engine.current().ranks(number_of(call.process_set))  # says so if there is no such set
    if outputs is None:
        outputs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    calls = [call]  # the place is known when the ops are there

    def start(arrays: Sequence[Array]) -> Any:
        this = calls[0]
        if this.splits is None:
            *arrays, splits = arrays
            this = this._replace(splits=tuple(splits.tolist()))
        is_alone = engine.current().world.size == 1  # then nobody else works for it
        begin = partial(submit_arrays, this, arrays, sync=not is_alone)
        return in_turn((this.process_set.process_set_id, this.name), begin)

    results = graph.call(start, tensors, outputs, call.kind.label)
    calls[0] = call._replace(where=place_of_op(results[0].op))
    return results


def submit_arrays(call: Call, arrays: Sequence[Array], *, sync: bool = False) -> Started:
    """Submit a settled call on arrays and return at once.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray
        Not to change until the call is through.
    sync : bool
        The caller, or another thread, does the engine's work at once until the call is through.

    Raises
    ------
    InvalidBufferError, UsageError, ProcessSetError, DuplicateNameError
        If the engine cannot take the call.
    CollectiveError, NotInitializedError
        If the job has ended for this rank.
    """
    make = _MAKERS[call.kind]
    pieces = [make(_packed(array), call) for array in arrays]
    request = _request(call, pieces)
    handle = engine.current().submit(request, [piece.part for piece in pieces], sync=sync)
    return Started(handle, pieces, call.counts)


def _request(call: Call, pieces: list[Piece]) -> Request:
    if not call.repeats:
        return _new_request(call, pieces, call.where or place(calling_frame()))
    frame = None if call.where else calling_frame()
    key = (
        call,
        frame and (frame.f_code.co_filename, frame.f_lineno),
        *[(piece.part.source.shape, piece.wire) for piece in pieces],
    )
    request = _kept.get(key)
    if request is None or request.process_set != call.process_set.process_set_id:
        request = _new_request(call, pieces, call.where or place(calling_frame()))
        if len(_kept) >= _KEPT_REQUESTS:
            _kept.clear()
        _kept[key] = request
    return request


def _new_request(call: Call, pieces: list[Piece], where: str) -> Request:
    ops = {piece.wire.op for piece in pieces}
    if len(ops) > 1:
        raise UsageError(f"{call.called}: uint64 is averaged in a group of its own only")
    (op,) = ops or {None}
    devices = [piece.wire.device for piece in pieces]
    return Request(
        call.name or "",
        call.kind,
        tuple(Member(piece.part.source.dtype, piece.part.source.shape) for piece in pieces),
        number_of(call.process_set),
        call.op if op is None else op,
        call.root,
        call.scales,
        call.splits or (),
        devices[0] if len(set(devices)) == 1 else ", ".join(devices),
        where=where,
    )


# ---- arrays ------------------------------------------------------------------------------------


def _packed(array: Any) -> Array:
    """Return `array` itself if its memory is its values in order, else a copy that is so."""
    if isinstance(array, np.ndarray) and array.flags.c_contiguous:
        return array
    return np.array(array, order="C")  # of numpy's scalars as well, which have no memory


def _to_reduce(array: Array, call: Call) -> Piece:
    """Return an array that is reduced into a new one of its shape."""
    wire = _wire_to_reduce(array.dtype, call)
    if wire.wide is None:
        return _piece_of_its_shape(array, wire)
    source = _view(to_wide(array, wire, call.op), wire)
    return Piece(Part(source, source), wire, _back(array, call))


def _to_reducescatter(array: Array, call: Call) -> Piece:
    """Return an array that is reduced, and of which this rank gets some rows."""
    wire = _wire_to_reduce(array.dtype, call)
    if array.ndim == 0:
        raise UsageError(f"{call.called}: a scalar has no rows to scatter; give it a dimension")
    if wire.wide is None:
        return Piece(Part(_view(array, wire), None, _maker(array.dtype, wire)), wire)
    work = to_wide(array, wire, call.op)
    return Piece(Part(_view(work, wire), None, _maker(work.dtype, wire)), wire, _back(array, call))


def _to_broadcast(array: Array, call: Call) -> Piece:
    """Return an array whose likeness in a new one takes the root's values."""
    return _piece_of_its_shape(array, _wire_to_move(array.dtype, call))


def _to_move(array: Array, call: Call) -> Piece:
    """Return an array whose rows go to other ranks; a scalar counts as one row."""
    wire = _wire_to_move(array.dtype, call)
    work = array.reshape(1) if array.ndim == 0 else array
    return Piece(Part(_view(work, wire), None, _maker(work.dtype, wire)), wire)


_MAKERS: dict[Kind, Callable[[Array, Call], Piece]] = {
    Kind.ALLREDUCE: _to_reduce,
    Kind.REDUCESCATTER: _to_reducescatter,
    Kind.BROADCAST: _to_broadcast,
    Kind.ALLGATHER: _to_move,
    Kind.ALLTOALL: _to_move,
}


def _piece_of_its_shape(array: Array, wire: Wire) -> Piece:
    target = aligned_empty(array.shape, array.dtype)
    return Piece(Part(_view(array, wire), _view(target, wire)), wire)


def check_dtype(call: Call, dtype: tf.DType) -> None:
    """Raise if the call cannot be made on tensors of `dtype`."""
    try:
        itself = of_tensor(dtype)
    except InvalidBufferError as err:
        raise InvalidBufferError(f"{call.called}: {err}") from None
    if call.kind in _REDUCTIONS:
        _wire_to_reduce(itself, call)
    else:
        _wire_to_move(itself, call)


def _wire_to_reduce(dtype: np.dtype[Any], call: Call) -> Wire:
    if dtype == _FLOAT32 and call.op <= Op.PRODUCT:
        return NATIVE[_FLOAT32]
    try:
        wire = reduced(dtype, call.op)
    except InvalidBufferError as err:
        raise InvalidBufferError(f"{call.called}: {err}") from None
    if call.scales != NO_SCALES and dtype.name in ("bool", "uint64"):
        raise InvalidBufferError(
            f"{call.called}: {dtype.name} takes no factors; convert it to float64"
        )
    return wire


def _wire_to_move(dtype: np.dtype[Any], call: Call) -> Wire:
    try:
        return moved(dtype)
    except InvalidBufferError as err:
        raise InvalidBufferError(f"{call.called}: {err}") from None


def _view(array: Array, wire: Wire) -> View:
    shape, count = array.shape, array.size
    if wire.per > 1:
        shape, count = (*shape, wire.per), count * wire.per
    return View(array.__array_interface__["data"][0], count, shape, wire.dtype, True, array)


@cache
def _maker(dtype: np.dtype[Any], wire: Wire) -> Callable[[tuple[int, ...]], View]:
    """Return what makes the memory for a result of a shape that the engine finds out."""

    def make(shape: tuple[int, ...]) -> View:
        return _view(aligned_empty(shape if wire.per == 1 else shape[:-1], dtype), wire)

    return make


def _back(array: Array, call: Call) -> Callable[[Array], Array]:
    """Return what converts a reduced array into the dtype of `array`."""
    return partial(from_wide, dtype=array.dtype, op=call.op, size=call.process_set.size())
