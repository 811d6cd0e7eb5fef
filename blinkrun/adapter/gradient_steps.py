"""Reductions of gradients that have begun: what lies where, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from blinkrun.adapter.leases import Array, Loan, Pool
from blinkrun.buffers import View, numpy_dtype, view
from blinkrun.engine import engine
from blinkrun.engine.arithmetic import array_at
from blinkrun.engine.handle import Handle
from blinkrun.engine.request import Request

Value = View | Array


class Bucket(NamedTuple):
    """One request of a step: the gradients that lie in it, and where its memory comes from."""

    name: str
    members: tuple[int, ...]
    is_direct: bool
    request: Request
    pool: Pool


class Step(NamedTuple):
    """The reduction of a bucket under way; `values` are what it was given, for messages."""

    bucket: Bucket
    loan: Loan
    handle: Handle
    values: Sequence[Value]


Explain = Callable[[Bucket, Exception, Sequence[Value]], Exception]


class Started:
    """Reductions of gradients under way.

    Attributes
    ----------
    further : list of Handle
        Requests that belong to the same step and must be through as well.
    """

    def __init__(
        self,
        explain: Explain,
        steps: Sequence[Step],
        order: Sequence[int],
        given: list[Array],
    ) -> None:
        self.further: list[Handle] = []
        self._explain = explain
        self._steps = steps
        self._order = order
        self._given = given
        self._error: Exception | None = None

    def done(self) -> bool:
        """Whether all are through, with or without success; never blocks."""
        return all(handle.done() for handle in self._handles())

    def take_steps(self) -> list[Step]:
        """Return what is under way, for another to wait for; this one is empty then."""
        steps, self._steps = list(self._steps), ()
        return steps

    def add_done_callback(self, call: Callable[[], Any]) -> None:
        """Call `call` once, in any thread, when `wait` no longer blocks; now if that is so."""
        Watch(self, self._handles(), call)

    def abandon(self, reason: str) -> None:
        """Let what not all ranks have begun fail on those that have; see `Engine.abandon`."""
        for handle in self._handles():
            engine.current().abandon(handle, reason)

    def wait(self) -> list[Array]:
        """Return the results when all are through; once.

        Raises
        ------
        CollectiveError
            What went wrong first.
        """
        self.settle()
        steps, self._steps = self._steps, ()
        if self._error is not None:
            raise self._error
        results, self._given = self._given, []
        for step in steps:
            results += step.bucket.pool.arrays(step.loan)
        if isinstance(self._order, range):
            return results
        placed: list[Any] = [None] * len(results)
        for place, result in zip(self._order, results, strict=True):
            placed[place] = result
        return placed

    def settle(self) -> None:
        """Wait until all are through; what went wrong first is explained as soon as it is known."""
        for bucket, _, handle, values in self._steps:
            try:
                handle.wait()
            except Exception as err:
                if self._error is None:  # others may wait until it is explained
                    self._error = self._explain(bucket, err, values)
        for handle in self.further:
            try:
                handle.wait()
            except Exception as err:
                self._error = self._error or err

    def _handles(self) -> list[Handle]:
        return [*[step.handle for step in self._steps], *self.further]


class Watch:
    """Calls when handles are done; explains what went wrong before, in a thread of its own.

    To explain is to ask other ranks, which callbacks of the engine must not wait for.
    """

    def __init__(
        self, started: Started, handles: Sequence[Handle], call: Callable[[], Any]
    ) -> None:
        self._started = started
        self._call = call
        self._lock = threading.Lock()
        self._missing = len(handles)
        self._is_over = not handles
        if not handles:
            call()
        for handle in handles:
            handle.add_done_callback(self._done)

    def _done(self, handle: Handle) -> None:
        with self._lock:
            self._missing -= 1
            if self._is_over or (handle.error is None and self._missing):
                return
            self._is_over = True
        if handle.error is None:
            self._call()
        else:
            threading.Thread(target=self._explain, name="blinkrun-explain", daemon=True).start()

    def _explain(self) -> None:
        self._started.settle()
        self._call()


def as_array(value: Value) -> Array:
    """Return a value as an array that shares its memory."""
    if not isinstance(value, View):
        return value
    if value.count == 0:
        return np.empty(value.shape, numpy_dtype(value.dtype))
    return array_at(value.pointer, value.count, value.dtype, value).reshape(value.shape)


def is_finite(value: Value) -> bool:
    """Whether a value holds neither NaN nor infinity."""
    dtype = value.dtype if isinstance(value, View) else view(np.ascontiguousarray(value), "").dtype
    if not dtype.is_float:
        return True
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(as_array(value).astype(np.float64)).all())
