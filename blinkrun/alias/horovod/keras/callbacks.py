"""Callbacks by Horovod's names."""

import functools
from typing import Any

from horovod.tensorflow.keras import callbacks as _callbacks

__all__ = list(_callbacks.__all__)


def __getattr__(name: str) -> Any:
    if name == "BestModelCheckpoint":
        return _best_model_checkpoint()
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(_callbacks, name)


@functools.cache
def _best_model_checkpoint() -> Any:
    """Make the class with the arguments that it has in `horovod.keras`."""

    class BestModelCheckpoint(_callbacks.BestModelCheckpoint):
        """Writes the best model: see `blinkrun.tf.keras.callbacks.BestModelCheckpoint`."""

        def __init__(
            self,
            monitor: str = "val_loss",
            verbose: int = 0,
            mode: str = "auto",
            save_freq: str = "epoch",
        ) -> None:
            super().__init__(monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq)

    return BestModelCheckpoint
