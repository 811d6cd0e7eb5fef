"""Errors that are blinkrun's and TensorFlow's at the same time.

Scripts written for Horovod catch what TensorFlow's own ops raise; those written for blinkrun catch
`blinkrun.errors`. What collectives on TensorFlow tensors raise is both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import tensorflow as tf

from blinkrun import errors

HorovodInternalError = errors.CollectiveError
"""Base of what goes wrong because of other ranks or of time, by the name that scripts catch."""

_TENSORFLOWS: tuple[tuple[type[errors.BlinkrunError], type[tf.errors.OpError]], ...] = (
    (errors.CollectiveError, tf.errors.FailedPreconditionError),
    (errors.NotInitializedError, tf.errors.FailedPreconditionError),
    (errors.NotSupportedError, tf.errors.UnimplementedError),
    (errors.DuplicateNameError, tf.errors.InvalidArgumentError),
    (errors.ProcessSetError, tf.errors.InvalidArgumentError),
    (errors.InvalidBufferError, tf.errors.InvalidArgumentError),
    (errors.UsageError, tf.errors.InvalidArgumentError),
)


class translated:  # noqa: N801 - used like a function
    """Raises blinkrun's errors as errors that are TensorFlow's as well.

    A context manager and a decorator. What means "the ranks disagree", "a rank is gone" or "this
    rank has no job" is a `tf.errors.FailedPreconditionError` too, what means "this argument cannot
    be used" a `tf.errors.InvalidArgumentError`, what is not there a `tf.errors.UnimplementedError`.
    Others pass as they are.
    """

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that raises so."""

        @functools.wraps(function)
        def safe(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return safe

    def __enter__(self) -> None:
        """Begin; nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Raise `error` as its translation, if it has one."""
        if not isinstance(error, errors.BlinkrunError):
            return False
        other = translation(error)
        if other is error:
            return False
        raise other.with_traceback(traceback) from error.__cause__


def translation(error: errors.BlinkrunError) -> errors.BlinkrunError:
    """Return an error with the text and fields of `error` that TensorFlow knows too."""
    kind = _class_of(type(error))
    return error if kind is None else _filled(kind, str(error), error.__dict__)


@functools.cache
def _class_of(ours: type[errors.BlinkrunError]) -> Any:
    """Return a class that is both `ours` and TensorFlow's, None if there is none or it is one."""
    if issubclass(ours, tf.errors.OpError):
        return None
    for base, theirs in _TENSORFLOWS:
        if issubclass(ours, base):
            return _joined(ours, theirs)
    return None


def _joined(ours: type[errors.BlinkrunError], theirs: type[tf.errors.OpError]) -> Any:
    def start(self: Any, node_def: Any, op: Any, message: str, *_: Any) -> None:
        theirs.__init__(self, node_def, op, message)  # AutoGraph makes a new one with its own text
        self.args = (message,)

    def text(self: Any) -> str:
        return str(self.args[0])

    def pickled(self: Any) -> Any:
        fields = {key: value for key, value in self.__dict__.items() if not key.startswith("_")}
        return _unpickled, (ours, text(self), fields)

    methods = {"__init__": start, "__str__": text, "__reduce__": pickled}
    about = {"__doc__": ours.__doc__, "__module__": __name__}
    return type(ours.__name__, (ours, theirs), methods | about)


def _filled(kind: Any, message: str, fields: Mapping[str, Any]) -> Any:
    error = kind(None, None, message)
    error.__dict__.update(fields)
    return error


def _unpickled(ours: type[errors.BlinkrunError], message: str, fields: Mapping[str, Any]) -> Any:
    return _filled(_class_of(ours), message, fields)
