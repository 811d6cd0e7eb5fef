"""Variables that a script saves, restores and gives to all ranks; elastic jobs are a later part."""

from collections.abc import Sequence
from typing import Any

from blinkrun.adapter.job import rank
from blinkrun.adapter.objects import broadcast_object
from blinkrun.errors import NotSupportedError, UsageError
from horovod.common.elastic import ObjectState

__all__ = ["TensorFlowKerasState", "TensorFlowState"]


class _Variables(ObjectState):
    """State in variables of TensorFlow or Keras, and objects beside them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank, **kwargs)
        self._save_values()

    def _tracked(self) -> Sequence[Any]:
        raise NotImplementedError

    def save(self) -> None:
        """Keep the values of this moment in the memory of the host."""
        self._save_values()
        super().save()

    def restore(self) -> None:
        """Go back to the values that were saved last."""
        from blinkrun.tf.keras import backend  # noqa: PLC0415

        tracked = self._tracked()[: len(self._values)]  # an optimizer makes more as it steps
        backend.assign(tracked, self._values)
        super().restore()

    def sync(self) -> None:
        """Give all ranks the values of rank 0, and save them; every rank calls it."""
        from blinkrun.tf.keras import backend  # noqa: PLC0415

        tracked = self._tracked()
        names = [f"state.{index}" for index in range(len(tracked))]
        given = backend.broadcast_arrays(backend.host_values(tracked), names)
        backend.assign(tracked, given)
        self._save_values()
        super().sync()

    def _save_values(self) -> None:
        from blinkrun.tf.keras import backend  # noqa: PLC0415

        self._values = backend.host_values(self._tracked())


class TensorFlowState(_Variables):
    """State in a list of variables; eager execution only.

    Parameters
    ----------
    variables : list of tf.Variable
        As many, of the same shapes, on every rank.
    session : None
        Sessions of TensorFlow 1 are not supported.
    **kwargs
        Objects beside them, which become attributes.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415

        if session is not None or not tf.executing_eagerly():
            raise NotSupportedError("TensorFlowState keeps variables in eager execution only")
        self.variables = list(variables or ())
        super().__init__(**kwargs)

    def _tracked(self) -> Sequence[Any]:
        return self.variables


class TensorFlowKerasState(_Variables):
    """State of a model of Keras and of its optimizer.

    Parameters
    ----------
    model : keras.Model
        It must be built.
    optimizer : keras.optimizers.Optimizer, optional
        Default: that of the model.
    backend : any
        Accepted for Horovod scripts.
    **kwargs
        Objects beside them, which become attributes.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise UsageError("the model is not built; call model.build(input_shape) first")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        self.backend = backend
        super().__init__(**kwargs)

    def _tracked(self) -> Sequence[Any]:
        found = getattr(self.optimizer, "variables", ())
        return [*self.model.weights, *(found() if callable(found) else found)]


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from horovod import absent  # noqa: PLC0415

    raise ImportError(absent(f"{__name__}.{name}"))
