"""Errors that are blinkrun's and TensorFlow's at the same time.

Scripts written for Horovod catch what TensorFlow's own ops raise; those written for blinkrun catch
`blinkrun.errors`. What collectives on TensorFlow tensors raise is both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

import tensorflow as tf

from blinkrun import errors

HorovodInternalError = errors.CollectiveError
"""Base of what goes wrong because of other ranks or of time, by the name that scripts catch."""

_TENSORFLOWS: tuple[tuple[type[errors.BlinkrunError], type[tf.errors.OpError]], ...] = (
    (errors.CollectiveError, tf.errors.FailedPreconditionError),
    (errors.DuplicateNameError, tf.errors.InvalidArgumentError),
    (errors.ProcessSetError, tf.errors.InvalidArgumentError),
    (errors.InvalidBufferError, tf.errors.InvalidArgumentError),
    (errors.UsageError, tf.errors.InvalidArgumentError),
)


class translated:  # noqa: N801 - used like a function
    """Raises blinkrun's errors as errors that are TensorFlow's as well.

    A context manager and a decorator. What means "the ranks disagree" or "a rank is gone" is a
    `tf.errors.FailedPreconditionError` too, what means "this argument cannot be used" a
    `tf.errors.InvalidArgumentError`. Others pass as they are.
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
    if kind is None:
        return error
    other = kind.__new__(kind)
    other.__dict__.update(error.__dict__)
    other.__dict__.update(_node_def=None, _op=None, _message=str(error))
    other.args = (str(error),)
    return other


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
    code = theirs(None, None, "").error_code

    def text(self: Any) -> str:
        return str(self.args[0])

    def reduce(self: Any) -> Any:
        fields = {key: self.__dict__[key] for key in self.__dict__ if not key.startswith("_")}
        return _again, (ours, self.args[0], fields)

    fields = {
        "__doc__": ours.__doc__,
        "__module__": __name__,
        "__reduce__": reduce,
        "__str__": text,
        "_error_code": code,
        "error_code": code,
        "message": property(text),
        "node_def": None,
        "op": None,
    }
    return type(ours.__name__, (ours, theirs), fields)


def _again(ours: type[errors.BlinkrunError], message: str, fields: dict[str, Any]) -> Any:
    """Return a pickled error."""
    kind = _class_of(ours)
    other = kind.__new__(kind)
    other.__dict__.update(fields, _node_def=None, _op=None, _message=message)
    other.args = (message,)
    return other
