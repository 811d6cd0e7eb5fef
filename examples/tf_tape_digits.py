"""Train a small CNN on scikit-learn's handwritten digits, in a training loop of one's own.

    blinkrun -np 2 python examples/tf_tape_digits.py
    python examples/tf_tape_digits.py                 # one process, nothing else changes

Each rank takes its share of every batch, the tape gives gradients that are averaged over the ranks,
and the learning rate grows with the number of ranks, since the joined batch does.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow says less

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import blinkrun
import blinkrun.tf as blink

NUM_TEST = 357  # of 1797 images; the others make full batches on 1, 2, 3 and 4 ranks


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="images a rank and step")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=2)
    return parser.parse_args(argv)


def load_data(seed):
    """Return (training images, classes), (test images, classes), alike on every rank."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.images))
    images = (digits.images[order] / 16).astype(np.float32)[..., None]
    classes = digits.target[order]
    train, test = slice(NUM_TEST, None), slice(NUM_TEST)
    return (images[train], classes[train]), (images[test], classes[test])


def make_model():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def make_step(model, optimizer):
    """Return a function that trains on a batch and returns its mean loss."""
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def step(images, classes):
        with tf.GradientTape() as tape:
            loss = cross_entropy(classes, model(images, training=True))
        tape = blink.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def accuracy(model, data):
    """Return the share of right answers; each rank looks at its part of the images."""
    images, classes = blink.shard(data, even=None)
    right = np.argmax(model(images, training=False), axis=1) == classes
    counts = tf.constant([right.sum(), len(classes)], tf.float64)
    right, seen = blink.allreduce(counts, op=blink.Sum, name="accuracy").numpy()
    return float(right / seen)


def train(args):
    """Train and return the model, its loss in every epoch, its accuracy and the images a second."""
    keras.utils.set_random_seed(args.seed + blink.rank())  # ranks start apart
    train_data, test_data = load_data(args.seed)
    batches = blink.shard(
        tf.data.Dataset.from_tensor_slices(train_data), args.batch, shuffle=True, seed=args.seed
    ).prefetch(2)
    model = make_model()
    optimizer = keras.optimizers.SGD(args.lr * blink.size(), momentum=0.9)
    optimizer.build(model.trainable_variables)
    blink.broadcast_variables(model.variables + optimizer.variables, root_rank=0)  # now alike
    step = make_step(model, optimizer)
    losses, start = [], time.perf_counter()
    for epoch in range(args.epochs):
        mean = tf.reduce_mean([step(images, classes) for images, classes in batches])
        losses.append(float(blink.allreduce(mean, name="loss")))
        say(f"epoch {epoch + 1:2d}: loss {losses[-1]:.4f}")
    speed = args.epochs * len(train_data[0]) / (time.perf_counter() - start)
    return model, losses, accuracy(model, test_data), speed


def say(line):
    if blink.rank() == 0:
        print(line, flush=True)


def main(argv=None):
    args = parse_args(argv)
    blink.init()
    say(blinkrun.world().describe())
    _, losses, test_accuracy, speed = train(args)
    say(f"{speed:.0f} images/s on {blink.size()} rank{'s'[: blink.size() > 1]}")
    say(f"test accuracy: {test_accuracy:.2f}")
    blink.shutdown()
    return losses


if __name__ == "__main__":
    main()
