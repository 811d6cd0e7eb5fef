"""Whether XLA compiles what is traced, and what is said then: collectives are no part of XLA."""

from __future__ import annotations

import tensorflow as tf

from blinkrun.errors import UsageError
from blinkrun.tf.errors import translated


@tf.autograph.experimental.do_not_convert
def is_compiled_here() -> bool:
    """Whether this is traced for a ``tf.function(jit_compile=True)``, or for one inside of it."""
    return not tf.executing_eagerly() and tf.__internal__.get_enclosing_xla_context() is not None


@tf.autograph.experimental.do_not_convert
@translated()
def refuse(what: str) -> None:
    """Raise UsageError if the code is traced for XLA; `what` says what cannot run there."""
    if is_compiled_here():
        raise UsageError(
            f"{what} cannot run in a function that XLA compiles; set jit_compile=False in"
            " tf.function() or model.compile()"
        )
