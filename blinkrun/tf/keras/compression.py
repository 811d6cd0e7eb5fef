"""`Compression` for the backend of the Keras in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blinkrun.tf.keras import backend

if TYPE_CHECKING:
    Compression: Any
elif backend.name() == "torch":
    from blinkrun.tf.keras.on_torch import Compression
else:
    from blinkrun.tf.compression import Compression

__all__ = ["Compression"]
