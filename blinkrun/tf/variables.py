"""The values of many variables from one rank to all, in one request of the engine.

Values travel as bytes, so every dtype works; small ones are joined. The first member of the
request is empty, and its shape is a check sum of all dtypes and shapes: ranks that differ are told
so by the engine, and then look for the first difference together.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import blinkrun
from blinkrun.adapter import objects
from blinkrun.adapter.process_sets import ProcessSet, number_of
from blinkrun.adapter.where import caller
from blinkrun.buffers import View
from blinkrun.engine import engine
from blinkrun.engine.handle import Handle, Part
from blinkrun.engine.request import Kind, Member, Request
from blinkrun.errors import BlinkrunError, MismatchError, UsageError
from blinkrun.tf import graph
from blinkrun.tf.arrays import ALIGNMENT, Array, aligned_empty, array_of
from blinkrun.tf.ops_names import in_graph, place_of_op
from blinkrun.tf.ops_turns import in_turn
from blinkrun.types import DType

_JOINED_BYTES = 1 << 20  # values below this travel together
_BYTES = np.dtype(np.uint8)
_DONE = tf.TensorSpec((), tf.int32)
_NO_MEMORY = (tf.string, tf.resource, tf.variant)
# What quantized types are to numpy.
_PLAIN = {
    tf.qint8: tf.int8,
    tf.quint8: tf.uint8,
    tf.qint16: tf.int16,
    tf.quint16: tf.uint16,
    tf.qint32: tf.int32,
}


def checked(variables: Iterable[Any]) -> list[Any]:
    """Return `variables` as a list, or raise if one of them is none that can be broadcast."""
    if isinstance(variables, tf.Variable) or not isinstance(variables, Iterable):
        raise UsageError(
            f"broadcast_variables takes a list of variables, got {type(variables).__name__}"
        )
    given = list(variables)
    for position, each in enumerate(given):
        if not (hasattr(each, "assign") and hasattr(each, "dtype") and hasattr(each, "shape")):
            raise UsageError(
                f"broadcast_variables: item {position} is no variable but {type(each).__name__}"
            )
        if each.dtype in _NO_MEMORY:
            raise UsageError(
                f"broadcast_variables: variable '{each.name}' is of {each.dtype.name}; values of "
                "numbers and bool can be broadcast, broadcast_object takes others"
            )
    return given


def plain(variable: Any) -> Any:
    """Return the `tf.Variable` of a Keras 3 variable, others as they are."""
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(variable, getattr(keras, "Variable", ())):
        return variable
    inner = variable.value
    if not isinstance(inner, tf.Variable):
        raise UsageError(
            f"variable '{variable.path}' is held by a {type(inner).__name__}; blinkrun.tf takes "
            "those of Keras' TensorFlow backend, blinkrun.tf.keras others as well"
        )
    return inner


class Sending:
    """Variables whose values all ranks of a set take from one."""

    def __init__(self, variables: Sequence[Any], root: int, process_set: ProcessSet) -> None:
        self._variables = variables
        self._names = [str(each.name) for each in variables]
        self._root = root
        self._process_set = process_set
        self._number = number_of(process_set)
        self._is_alone = process_set.size() == 1 and bool(process_set.included())

    def run(self) -> None:
        """Do it now, in eager code."""
        if self._is_alone:
            return
        name = engine.current().next_name("broadcast_variables", self._number)
        arrays = [array_of(each.read_value()) for each in self._variables]
        _, *results = self._begin(name, arrays, caller(), sync=True).wait()
        if blinkrun.rank() != self._root:
            for variable, result in zip(self._variables, results, strict=True):
                variable.assign(result)

    def build(self) -> tf.Operation:
        """Return the operation that does it."""
        if self._is_alone:
            return tf.no_op()
        name = in_graph(None, "broadcast_variables")
        is_root = blinkrun.rank() == self._root
        values = [_unquantized(tf.convert_to_tensor(each)) for each in self._variables]
        # The root's variables are left alone: what comes back would be their own memory.
        taken = [] if is_root else values
        specs = [_DONE, *[tf.TensorSpec(each.shape, each.dtype) for each in taken]]
        where: list[str] = []  # known when the op is there

        def start(arrays: Sequence[Array]) -> Any:
            return in_turn((self._number, name), lambda: self._begin(name, arrays, where[0]))

        done, *results = graph.call(start, values, specs, "broadcast_variables")
        where.append(place_of_op(done.op))
        pairs = [] if is_root else zip(self._variables, results, strict=True)
        return tf.group(
            done, *[variable.assign(_as(variable.dtype, result)) for variable, result in pairs]
        )

    def _begin(
        self, name: str, arrays: Sequence[Array], where: str, *, sync: bool = False
    ) -> _Begun:
        kinds = [f"{array.dtype.name} {array.shape}" for array in arrays]
        pieces = _pieces(arrays)
        is_root = blinkrun.rank() == self._root
        lines = [piece.line(arrays, is_root=is_root) for piece in pieces]
        views = [_fingerprint(kinds), *map(_view, lines)]
        request = Request(
            name,
            Kind.BROADCAST,
            tuple(Member(each.dtype, each.shape) for each in views),
            process_set=self._number,
            root=self._root,
            where=where,
        )
        handle = engine.current().submit(request, [Part(each, each) for each in views], sync=sync)
        results: list[Any] = []
        if not is_root:
            results = [None] * len(arrays)
            for piece, line in zip(pieces, lines, strict=True):
                piece.spread(line, arrays, results)
        results.insert(0, np.zeros((), np.int32))
        described = list(zip(self._names, kinds, strict=True))
        return _Begun(handle, results, described, self._process_set)


class _Begun:
    """A broadcast under way.

    Attributes
    ----------
    handle : engine.Handle
        What the engine knows it by.
    """

    def __init__(
        self,
        handle: Handle,
        results: list[Array],
        described: list[tuple[str, str]],
        process_set: ProcessSet,
    ) -> None:
        self.handle = handle
        self._results = results
        self._described = described
        self._process_set = process_set
        self._error: BaseException | None = None

    def add_done_callback(self, call: Callable[[], None]) -> None:
        """Call `call` when `wait` has nothing to wait for anymore; in any thread."""

        def look() -> None:
            self._look()
            call()

        def through(handle: Handle) -> None:
            if isinstance(handle.error, MismatchError):  # to ask the others, one must wait
                threading.Thread(target=look, name="blinkrun-tf-look", daemon=True).start()
            else:
                call()

        self.handle.add_done_callback(through)

    def wait(self) -> list[Array]:
        """Return a zero, and on other ranks than the root its values."""
        try:
            self.handle.wait()
        except MismatchError:
            self._look()
            raise (self._error or self.handle.error) from None
        results, self._results = self._results, []
        return results

    def _look(self) -> None:
        """Find out, with all other ranks, in which variable they differ."""
        if self._error is not None:
            return
        name = f"{self.handle.name}.differs"
        try:
            everyone = objects.allgather_object(self._described, name, self._process_set)
            found = _difference(self._process_set.ranks, everyone)
            self._error = MismatchError(found, self.handle.error.calls) if found else None
        except BlinkrunError as err:
            self._error = err


@dataclass(frozen=True, slots=True)
class _Piece:
    """What travels as one member: a large value, or some small ones.

    Attributes
    ----------
    positions : tuple of int
        Which values.
    offsets : tuple of int
        Where each begins, in bytes.
    num_bytes : int
        Of all of them.
    """

    positions: tuple[int, ...]
    offsets: tuple[int, ...]
    num_bytes: int

    def line(self, arrays: Sequence[Array], *, is_root: bool) -> Array:
        """Return the bytes that are sent or received into; a large value is sent from its place."""
        if is_root and len(self.positions) == 1:
            return _as_bytes(arrays[self.positions[0]])
        line = aligned_empty((self.num_bytes,), _BYTES)
        if is_root:
            for position, offset in zip(self.positions, self.offsets, strict=True):
                given = _as_bytes(arrays[position])
                line[offset : offset + given.size] = given
        return line

    def spread(self, line: Array, arrays: Sequence[Array], results: list[Array]) -> None:
        """Put views of the values in `line`, of the types that `arrays` have, into `results`."""
        for position, offset in zip(self.positions, self.offsets, strict=True):
            like = arrays[position]
            part = line[offset : offset + like.nbytes]
            results[position] = part.view(like.dtype).reshape(like.shape)


def _pieces(arrays: Sequence[Array]) -> list[_Piece]:
    """Divide values into those that travel alone and those that travel together."""
    pieces = []
    joined: list[int] = []
    offsets: list[int] = []
    filled = 0
    for position, array in enumerate(arrays):
        if array.nbytes >= _JOINED_BYTES or len(arrays) == 1:
            pieces.append(_Piece((position,), (0,), array.nbytes))
            continue
        joined.append(position)
        offsets.append(filled)
        filled += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    if joined:
        pieces.append(_Piece(tuple(joined), tuple(offsets), filled))
    return pieces


def _fingerprint(kinds: Sequence[str]) -> View:
    """Return an empty view whose shape says what is sent."""
    text = "\n".join(kinds).encode()
    nothing = aligned_empty((0,), _BYTES)
    shape = (0, len(kinds), zlib.crc32(text))
    return View(nothing.ctypes.data, 0, shape, DType.UINT8, True, nothing)


def _difference(ranks: Sequence[int], everyone: list[list[tuple[str, str]]]) -> str | None:
    """Return a line on the first rank that has other variables than the first.

    >>> w, v = ("w", "float32 (2,)"), ("w", "float32 (3,)")
    >>> print(_difference([0, 1], [[w], [v]]))  # doctest: +NORMALIZE_WHITESPACE
    broadcast_variables: variable 0 'w' is float32 (3,) on rank 1, float32 (2,) on rank 0; every
    rank must give the same variables in the same order
    """
    must = "every rank must give the same variables in the same order"
    base = everyone[0]
    for rank, theirs in zip(ranks[1:], everyone[1:], strict=True):
        for position, (mine, other) in enumerate(zip(base, theirs, strict=False)):
            if mine[1] != other[1]:
                return (
                    f"broadcast_variables: variable {position} '{other[0]}' is {other[1]} on rank "
                    f"{rank}, {_also(mine, other)}{mine[1]} on rank {ranks[0]}; {must}"
                )
        if len(theirs) != len(base):
            return (
                f"broadcast_variables: rank {rank} gives {len(theirs)} variables, rank {ranks[0]} "
                f"{len(base)}; {must}"
            )
    return None


def _also(mine: tuple[str, str], other: tuple[str, str]) -> str:
    return "" if mine[0] == other[0] else f"'{mine[0]}' "


def _unquantized(value: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(value, _PLAIN[value.dtype]) if value.dtype in _PLAIN else value


def _as(dtype: tf.DType, value: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(value, dtype) if dtype in _PLAIN else value


def _view(line: Array) -> View:
    # Only a root's own value is read-only, and it is only read.
    return View(line.ctypes.data, line.size, line.shape, DType.UINT8, True, line)


def _as_bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
