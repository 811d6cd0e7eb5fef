"""The models of the training benchmark for Keras: layer for layer those of `models` for torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

IMAGE = (32, 32, 3)
NUM_CLASSES = 10
LEARNING_RATE = 0.001
MOMENTUM = 0.9


def make_model(keras: Any, name: str) -> Any:
    """Return model `name` of the package `keras`, Keras 3 or tf_keras, with seeded weights.

    ``mlp25m`` is linear 3072-1536-1024-10, 25 MB; ``cnn`` is convolutions 3-32-64-128 of 3x3, each
    with 2x2 max-pool, and linear 2048-64-10, 1 MB; both with ReLU.
    """
    keras.utils.set_random_seed(0)
    layers = keras.layers
    hidden: list[Any] = [layers.Input(IMAGE)]
    if name == "cnn":
        for channels in (32, 64, 128):
            hidden += [
                layers.Conv2D(channels, 3, padding="same", activation="relu"),
                layers.MaxPool2D(2),
            ]
    sizes = {"mlp25m": (1536, 1024), "cnn": (64,)}[name]
    hidden += [layers.Flatten(), *(layers.Dense(size, activation="relu") for size in sizes)]
    return keras.Sequential([*hidden, layers.Dense(NUM_CLASSES)])


def make_optimizer(keras: Any) -> Any:
    """Return SGD with momentum of the package `keras`."""
    return keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)


def make_loss(keras: Any) -> Any:
    """Return the cross entropy of logits of the package `keras`."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def random_batch(size: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return `size` images and their classes."""
    generator = np.random.default_rng(seed)
    images = generator.standard_normal((size, *IMAGE), dtype=np.float32)
    return images, generator.integers(NUM_CLASSES, size=size)
