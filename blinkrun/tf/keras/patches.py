"""What is changed in Keras itself, once, when the first optimizer is wrapped.

Two methods, which do what they did for all who have no wrapped optimizer:

- ``LossScaleOptimizer.apply`` looks whether all gradients are finite, and leaves out the inner
  optimizer's `apply` if not. Around a wrapped optimizer the gradients are reduced before it looks:
  otherwise a rank whose gradients overflow would not come to the reduction that others wait in.
- ``Trainer._resolve_auto_jit_compile`` chooses for ``jit_compile="auto"``. XLA cannot call what
  reduces, so it is not chosen for a model with a wrapped optimizer on more than one rank.
"""

from __future__ import annotations

import functools
from typing import Any

from blinkrun.errors import UsageError
from blinkrun.tf.keras.wrapped import DistributedMixin, is_distributed

_is_done = False


def install() -> None:
    """Make the changes, if that has not been done."""
    global _is_done  # noqa: PLW0603
    if _is_done:
        return
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer  # noqa: PLC0415
    from keras.src.trainers.trainer import Trainer  # noqa: PLC0415

    LossScaleOptimizer.apply = _reducing_first(LossScaleOptimizer.apply)
    Trainer._resolve_auto_jit_compile = _without_xla(Trainer._resolve_auto_jit_compile)
    _is_done = True


def _reducing_first(own: Any) -> Any:
    @functools.wraps(own)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        inner = self.inner_optimizer
        if isinstance(self, DistributedMixin):
            return own(self, grads, trainable_variables)
        if not isinstance(inner, DistributedMixin):
            if hasattr(inner, "optimizers") and not inner.built and trainable_variables:
                inner.build(list(trainable_variables))  # before that it may not know its parts
            _refuse_parts(inner)
            return own(self, grads, trainable_variables)
        own_apply = functools.partial(own, self)
        return inner._blink.apply(self, own_apply, grads, trainable_variables)

    return apply


def _refuse_parts(optimizer: Any) -> None:
    """Raise if parts of a MultiOptimizer reduce, which would come after the check of all."""
    if any(isinstance(each, DistributedMixin) for each in getattr(optimizer, "optimizers", ())):
        raise UsageError(
            "a LossScaleOptimizer is around a MultiOptimizer whose parts are wrapped by "
            "DistributedOptimizer; wrap the MultiOptimizer instead"
        )


def _without_xla(own: Any) -> Any:
    @functools.wraps(own)
    def resolve(self: Any) -> bool:
        optimizer = getattr(self, "optimizer", None)
        if is_distributed(optimizer) and not _settings_of(optimizer).is_alone:
            return False
        return bool(own(self))

    return resolve


def _settings_of(optimizer: Any) -> Any:
    while not isinstance(optimizer, DistributedMixin):
        optimizer = optimizer.inner_optimizer
    return optimizer._blink_settings
