"""The state of a model, saved and restored; elastic jobs are a later part."""

from typing import Any

from horovod.tensorflow.elastic import TensorFlowKerasState

__all__ = ["KerasState"]


class KerasState(TensorFlowKerasState):
    """State of a model and of its optimizer: see `TensorFlowKerasState`."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from horovod import absent  # noqa: PLC0415

    raise ImportError(absent(f"{__name__}.{name}"))
