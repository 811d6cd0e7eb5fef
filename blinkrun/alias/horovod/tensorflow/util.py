"""The helpers of `horovod.tensorflow`; TensorFlow is imported when one is used."""

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["refs_to_vars", "vars_to_refs"]


def _executing_eagerly() -> bool:
    """Whether operations run as they are called."""
    import tensorflow as tf  # noqa: PLC0415

    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """Return a ``tf.function`` of `f`."""
    import tensorflow as tf  # noqa: PLC0415

    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what `f` returns for its arguments, in graphs and eagerly apart."""
    kept = functools.cache(lambda _eagerly, *args: f(*args))
    return functools.wraps(f)(lambda *args: kept(_executing_eagerly(), *args))


def vars_to_refs(vars: Any) -> Any:  # noqa: A002 - Horovod's name
    """Return what stands for a variable in sets, for each of a list in a tuple."""
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Return the variable that `vars_to_refs` was given."""
    return list(map(refs_to_vars, refs)) if isinstance(refs, tuple) else refs.deref()
