"""The state of a model, saved and restored; elastic jobs are a later part."""

from horovod.tensorflow.keras.elastic import KerasState

__all__ = ["KerasState"]


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from horovod import absent  # noqa: PLC0415

    raise ImportError(absent(f"{__name__}.{name}"))
