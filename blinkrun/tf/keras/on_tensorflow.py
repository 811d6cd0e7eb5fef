"""Gradients of Keras on TensorFlow, reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blinkrun.tf.keras.settings import Settings
from blinkrun.tf.reduce import How, divided, reduced


class Reducer:
    """Reduces the gradients of one optimizer.

    Parameters
    ----------
    settings : Settings
        How.
    owner : str
        What the names of its requests begin with; the same on all ranks.
    """

    def __init__(self, settings: Settings, owner: str) -> None:
        self._how = How(
            owner=owner,
            op=settings.op,
            compression=settings.compression,
            sparse_as_dense=settings.sparse_as_dense,
            gradient_predivide_factor=settings.gradient_predivide_factor,
            process_set=settings.process_set,
            bucket_bytes=settings.bucket_bytes,
            groups=settings.groups,
        )

    def reduce(
        self, grads: Sequence[Any], names: tuple[str, ...], variables: Sequence[Any]
    ) -> list[Any]:
        """Return gradients of variables reduced over the ranks; None stays None."""
        return reduced(grads, names, self._how, variables=variables)

    @staticmethod
    def divided(grad: Any, by: int) -> Any:
        """Return a gradient, dense or sparse, divided by a number; None stays None."""
        return divided(grad, by)
