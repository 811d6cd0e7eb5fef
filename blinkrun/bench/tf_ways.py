"""Ways to train a Keras model: `model.fit` and a loop of one's own, with or without a wrapper.

Each trains on one batch in memory, over and over, so that nothing but training is measured.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from blinkrun.bench.tf_models import make_loss, make_model, make_optimizer, random_batch

Wrap = Callable[[Any], Any]
Probe = Callable[[], int]


def as_it_is(what: Any) -> Any:
    """Return `what`: the wrapper that wraps nothing."""
    return what


def nothing() -> int:
    """Return 0: the probe of a way that is not looked into."""
    return 0


class Task(NamedTuple):
    """What to train: a model by its name, on so many images a step, those of this rank."""

    model: str
    batch: int
    rank: int


class Mark(NamedTuple):
    """A moment: seconds of the clock that times are taken by, microseconds since the epoch."""

    seconds: float
    epoch_us: float
    probed: int

    @staticmethod
    def now(probe: Probe) -> Mark:
        """Return this moment, with what `probe` says."""
        return Mark(time.perf_counter(), time.time_ns() / 1000, probe())


class Fit:
    """`model.fit` of Keras 3 or tf_keras.

    Parameters
    ----------
    keras : module
        The package ``keras`` or ``tf_keras``.
    task : Task
        What to train.
    wrap : callable
        What is made of the optimizer.
    strategy : tf.distribute.Strategy, optional
        Under which the model is made; every worker feeds its own images.
    probe : callable
        Is asked when the timed steps begin and when they are over.
    """

    def __init__(
        self,
        keras: Any,
        task: Task,
        *,
        wrap: Wrap = as_it_is,
        strategy: Any = None,
        probe: Probe = nothing,
    ) -> None:
        if strategy is None:
            self._model = self._compiled(keras, task.model, wrap)
            self._data = _endless(task)
        else:
            with strategy.scope():
                self._model = self._compiled(keras, task.model, wrap)
            self._data = strategy.distribute_datasets_from_function(lambda _context: _endless(task))
        self._watch = _make_stopwatch(keras, probe)

    @staticmethod
    def _compiled(keras: Any, name: str, wrap: Wrap) -> Any:
        model = make_model(keras, name)
        model.compile(optimizer=wrap(make_optimizer(keras)), loss=make_loss(keras))
        return model

    def run(self, steps: int) -> float:
        """Return the seconds of `steps` steps; one more goes before them, in which ranks meet."""
        self._model.fit(
            self._data,
            steps_per_epoch=steps + 1,
            epochs=1,
            shuffle=False,
            verbose=0,
            callbacks=[self._watch],
        )
        return _seconds(self.marks)

    @property
    def marks(self) -> tuple[Mark, Mark]:
        """Begin and end of the steps that were timed last."""
        start, stop = self._watch.marks
        return start, stop

    def digest(self) -> str:
        """Return a word that stands for the weights, bit for bit."""
        return _digest(self._model)

    def num_bytes(self) -> int:
        """Return the bytes of all trainable weights, which are those of all gradients."""
        return 4 * int(self._model.count_params())


class Loop:
    """A loop of one's own: a ``tf.function`` with a gradient tape; `wrap` is for the tape."""

    def __init__(
        self,
        keras: Any,
        task: Task,
        *,
        wrap: Wrap = as_it_is,
        probe: Probe = nothing,
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415  (heavy, and only here)

        net, optimizer, loss_of = (
            make_model(keras, task.model),
            make_optimizer(keras),
            make_loss(keras),
        )
        variables = net.trainable_variables
        optimizer.build(variables)

        @tf.function  # type: ignore[untyped-decorator, unused-ignore]
        def step(images: Any, classes: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(classes, net(images, training=True))
            optimizer.apply(wrap(tape).gradient(loss, variables), variables)
            return loss

        self._model = net
        self._step = step
        self._probe = probe
        self.marks = (Mark.now(probe),) * 2
        self._batch = [tf.constant(array) for array in random_batch(task.batch, seed=task.rank)]

    def run(self, steps: int) -> float:
        """Return the seconds of `steps` steps; one more goes before them, in which ranks meet."""
        self._step(*self._batch)
        start = Mark.now(self._probe)
        for _ in range(steps):
            loss = self._step(*self._batch)
        loss.numpy()
        self.marks = (start, Mark.now(self._probe))
        return _seconds(self.marks)

    def digest(self) -> str:
        """Return a word that stands for the weights, bit for bit."""
        return _digest(self._model)


def limit_threads(threads: int) -> None:
    """Let TensorFlow compute with `threads` threads; before it does anything else."""
    import tensorflow as tf  # noqa: PLC0415

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def _endless(task: Task) -> Any:
    """Return a `tf.data.Dataset` that gives one batch for ever."""
    import tensorflow as tf  # noqa: PLC0415

    return tf.data.Dataset.from_tensors(random_batch(task.batch, seed=task.rank)).repeat()


def _make_stopwatch(keras: Any, probe: Probe) -> Any:
    """Return a callback of the package `keras` that times all steps of an epoch but the first."""

    class Stopwatch(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
        marks = (Mark(0, 0, 0),) * 2

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                self.marks = (Mark.now(probe),) * 2

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.marks = (self.marks[0], Mark.now(probe))

    return Stopwatch()


def _seconds(marks: tuple[Mark, Mark]) -> float:
    return marks[1].seconds - marks[0].seconds


def _digest(model: Any) -> str:
    digest = hashlib.sha256()
    for array in model.get_weights():
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
