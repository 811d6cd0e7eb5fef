"""Train a small CNN on scikit-learn's handwritten digits with model.fit, on any number of ranks.

    blinkrun -np 2 python examples/keras_digits.py
    KERAS_BACKEND=torch blinkrun -np 2 python examples/keras_digits.py
    python examples/keras_digits.py                   # one process, nothing else changes

Each rank takes its share of every batch, the optimizer steps with the averaged gradients, and
callbacks see to it that all ranks begin alike, read the same metrics, and that one shows progress.
The learning rate grows with the number of ranks, since the joined batch does, and warms up.
"""

import argparse
import time

import keras
import numpy as np
from sklearn.datasets import load_digits

import blinkrun
import blinkrun.tf.keras as blink

NUM_TEST = 360  # of 1797 images


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="images a rank and step")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of one rank")
    parser.add_argument("--warmup", type=int, default=2, help="epochs until it is that of all")
    parser.add_argument("--save", metavar="FILE.keras", help="keep the best model")
    parser.add_argument("--seed", type=int, default=2)
    return parser.parse_args(argv)


def load_data(seed):
    """Return (training images, classes), (test images, classes), alike on every rank."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[..., np.newaxis]
    order = np.random.default_rng(seed).permutation(len(images))
    images, classes = images[order], digits.target[order]
    return (images[NUM_TEST:], classes[NUM_TEST:]), (images[:NUM_TEST], classes[:NUM_TEST])


class Shares(keras.utils.PyDataset):
    """This rank's share of every joined batch, which are drawn anew for each epoch."""

    def __init__(self, images, classes, *, batch, seed):
        super().__init__()
        self.images, self.classes = images, classes
        self.joined = batch * blink.size()
        self.random = np.random.default_rng(seed)  # the same on every rank
        self.on_epoch_end()

    def __len__(self):
        return len(self.images) // self.joined

    def __getitem__(self, index):
        joined = self.order[index * self.joined : (index + 1) * self.joined]
        mine = joined[blink.rank() :: blink.size()]
        return self.images[mine], self.classes[mine]

    def on_epoch_end(self):
        self.order = self.random.permutation(len(self.images))


def make_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train(args):
    """Train and return Keras' history and the images a second."""
    keras.utils.set_random_seed(args.seed + blink.rank())  # ranks start apart: one is broadcast
    train_data, test_data = load_data(args.seed)
    shares = Shares(*train_data, batch=args.batch, seed=args.seed)
    lr = args.lr * blink.size()
    model = make_model()
    model.compile(
        blink.DistributedOptimizer(keras.optimizers.SGD(lr, momentum=0.9)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        blink.callbacks.BroadcastGlobalVariablesCallback(0),
        blink.callbacks.MetricAverageCallback(),
        blink.callbacks.LearningRateWarmupCallback(lr, warmup_epochs=args.warmup),
    ]
    if args.save:
        callbacks.append(blink.callbacks.BestModelCheckpoint("val_accuracy", filepath=args.save))
    start = time.perf_counter()
    history = model.fit(
        shares,
        epochs=args.epochs,
        validation_data=tuple(part[blink.rank() :: blink.size()] for part in test_data),
        callbacks=callbacks,
        shuffle=False,  # the shares are drawn at random, the same batch on all ranks
        verbose=2,
    ).history
    images = args.epochs * len(shares) * shares.joined
    return history, images / (time.perf_counter() - start)


def say(line):
    if blink.rank() == 0:
        print(line, flush=True)


def main(argv=None):
    args = parse_args(argv)
    blink.init()
    say(blinkrun.world().describe())
    history, speed = train(args)
    say(f"{speed:.0f} images/s on {blink.size()} rank{'s'[: blink.size() > 1]}")
    say(f"test accuracy: {history['val_accuracy'][-1]:.2f}")
    blink.shutdown()


if __name__ == "__main__":
    main()
