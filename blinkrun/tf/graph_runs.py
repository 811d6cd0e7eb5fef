"""The op behind `graph.call`: what it stands for, and its runs.

TensorFlow starts a run in one of its threads; whoever finds that the call of the engine is through
finishes it. Where one run of a graph has several calls and one fails, the others end with it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf

import blinkrun
from blinkrun.engine import engine
from blinkrun.errors import (
    BlinkrunError,
    CollectiveError,
    InternalError,
    InvalidBufferError,
    UsageError,
)
from blinkrun.tf import capi
from blinkrun.tf.graph_waiter import waiter

OP = "BlinkrunCall"

Array = np.ndarray[Any, Any]


class Started(Protocol):
    """A call of the engine under way.

    It may have ``add_done_callback(call)``, which has ``call()`` called once, in any thread, when
    `wait` no longer blocks (now, if so already); or a ``handle`` of the engine that is done then.
    One with neither costs a thread that waits. If another call of the same run of the graph fails,
    its ``abandon(reason)`` is called, or its ``handle`` is abandoned.
    """

    def wait(self) -> list[Array]:
        """Return the results, waiting for them if need be; raises what went wrong. Called once."""
        ...


Start = Callable[[Sequence[Array]], Started]


# ---- what an op stands for ---------------------------------------------------------------------

_lock = threading.Lock()
_numbers = itertools.count(1)
_sites: WeakValueDictionary[int, Site] = WeakValueDictionary()
_PROCESS = f"{os.getpid():x}-{secrets.token_hex(6)}"


class Site:
    """A call as it stands in a graph.

    Attributes
    ----------
    token : str
        What the op knows it by; good in this process only.
    dtypes : list of numpy.dtype
        Of the inputs.
    types : list of int
        TensorFlow's numbers of the dtypes of the results.
    """

    def __init__(
        self, start: Start, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec], name: str
    ) -> None:
        self.start = start
        self.name = name
        self.dtypes = [_numpy_dtype(each.dtype, name) for each in inputs]
        self.types = [spec.dtype.as_datatype_enum for spec in outputs]
        self._outputs = [
            (_numpy_dtype(spec.dtype, name), spec.shape, _whole(spec.shape)) for spec in outputs
        ]
        with _lock:
            number = next(_numbers)
            _sites[number] = self
        self.token = f"{_PROCESS}/{number}"

    def checked(self, results: Sequence[Array]) -> list[Array]:
        """Return the results, if they are what was promised."""
        arrays = [np.asarray(each, order="C") for each in results]
        if len(arrays) != len(self._outputs):
            raise InternalError(
                f"{self.name} gives {len(arrays)} results instead of {len(self._outputs)}"
            )
        for array, (dtype, shape, whole) in zip(arrays, self._outputs, strict=True):
            fits = array.shape == whole or shape.is_compatible_with(array.shape)
            if not fits or array.dtype != dtype:
                raise InternalError(
                    f"{self.name} gives {array.dtype} {array.shape} instead of {dtype} {shape}"
                )
        return arrays


def _whole(shape: tf.TensorShape) -> tuple[int, ...] | None:
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def _numpy_dtype(dtype: tf.DType, name: str) -> np.dtype[Any]:
    """Return the numpy type of a TensorFlow type whose values are plain numbers."""
    try:
        found = np.dtype(dtype.as_numpy_dtype)
    except (KeyError, TypeError):
        found = np.dtype(object)
    if found.hasobject or found.names is not None:
        raise InvalidBufferError(f"{name}: dtype {dtype.name} is not supported in a graph")
    return found


# ---- runs --------------------------------------------------------------------------------------

_steps: dict[int, set[_Run]] = {}  # what is under way in each run of a graph
_failed: deque[int] = deque(maxlen=64)  # the runs of graphs that have failed lately


class _Run:
    """One run of an op."""

    def __init__(self, context: int, done: int) -> None:
        self._context = context
        self._done = done
        self._step = capi.step_of(context)
        self._is_over = False
        self._cancelled = ""  # why, if it is over for another call has failed
        self._started: Any = None
        self._site: Any = None

    def begin(self, number: int) -> None:
        """Begin the call, and have it finished when it is through."""
        self._site = site = _sites.get(number)
        if site is None:
            raise UsageError("a collective is run whose graph is gone; keep the tf.function")
        with _lock:
            if self._step in _failed:
                raise tf.errors.CancelledError(None, None, f"{site.name}: this run has failed")
            _steps.setdefault(self._step, set()).add(self)
        capi.reclaim()  # `start` may want the memory of the results before
        started = self._started = site.start(capi.inputs_of(self._context, site.dtypes))
        if self._is_over:  # another call has failed meanwhile
            _abandon(started, self._cancelled)
            return
        add = getattr(started, "add_done_callback", None)
        handle = getattr(started, "handle", None)
        if add is not None:
            waiter.begun()
            add(self._through)
        elif handle is None:
            threading.Thread(target=self._finish, name="blinkrun-tf-wait", daemon=True).start()
        elif handle.done():
            self._finish()
        else:
            waiter.begun()
            handle.add_done_callback(self._through)

    def _through(self, _: Any = None) -> None:
        waiter.ended()
        self._finish()

    def _finish(self) -> None:
        """Give the results, or the error; nothing if another call of the run has failed."""
        started, self._started = self._started, None
        try:
            results = self._site.checked(started.wait())
        except BaseException as err:
            self.fail(err)
            return
        if self._claim():
            try:
                capi.set_outputs(self._context, results, self._site.types)
            except BaseException as err:
                self._fail(err)
            else:
                capi.finish(self._done)

    def fail(self, error: BaseException) -> None:
        """Fail, unless it is over; what is under way in the same run of the graph fails too."""
        if self._claim():
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        capi.fail(self._context, *_code_and_text(error))
        with _lock:
            _failed.append(self._step)
            others = list(_steps.get(self._step, ()))
        capi.finish(self._done)  # first: the first failure is the one that is told
        for other in others:
            other._cancel(self._site.name if self._site else "a call", error)

    def _cancel(self, name: str, error: BaseException) -> None:
        """End this run, unless it is over: another call of the run of the graph has failed.

        Ranks that have not made this call yet will not, so the engine must not wait for them.
        """
        reason = self._cancelled = (
            f"rank {blinkrun.world().rank} has given up {self._site.name}, for {name} in the same"
            f" run of a function has failed: {error}"
        )
        if self._claim():
            capi.fail(self._context, tf.errors.CANCELLED, reason)
            capi.finish(self._done)
            _abandon(self._started, reason)

    def _claim(self) -> bool:
        """Return whether it falls to the caller to end it."""
        with _lock:
            if self._is_over:
                return False
            self._is_over = True
            runs = _steps.get(self._step)
            if runs is not None:
                runs.discard(self)
                if not runs:
                    del _steps[self._step]
        return True


def _abandon(started: Any, reason: str) -> None:
    """Let the engine give up what other ranks may never begin."""
    with contextlib.suppress(BlinkrunError):  # the engine has ended: so has the call
        if hasattr(started, "abandon"):
            started.abandon(reason)
        elif hasattr(started, "handle"):
            engine.current().abandon(started.handle, reason)


_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (CollectiveError, tf.errors.FAILED_PRECONDITION),
    (NotImplementedError, tf.errors.UNIMPLEMENTED),
    (ValueError, tf.errors.INVALID_ARGUMENT),
    (TypeError, tf.errors.INVALID_ARGUMENT),
    (MemoryError, tf.errors.RESOURCE_EXHAUSTED),
    (InternalError, tf.errors.INTERNAL),
)


def _code_and_text(error: BaseException) -> tuple[int, str]:
    """Return the kind of error for TensorFlow, and what it says."""
    if isinstance(error, tf.errors.OpError):
        return error.error_code, error.message
    code = next((code for kind, code in _CODES if isinstance(error, kind)), tf.errors.UNKNOWN)
    said = isinstance(error, BlinkrunError)
    return code, str(error) if said else f"{type(error).__name__}: {error}"


def _make(token: str) -> int:
    """Return the number of the call that a new kernel is for."""
    process, _, number = token.partition("/")
    if process != _PROCESS:
        raise UsageError(
            "a collective of a function that another process has saved; trace the function anew"
        )
    return int(number)


def _compute(number: int, context: int, done: int) -> None:
    run = _Run(context, done)
    try:
        run.begin(number)
    except BaseException as err:
        run.fail(err)


capi.register(OP, _make, _compute)
