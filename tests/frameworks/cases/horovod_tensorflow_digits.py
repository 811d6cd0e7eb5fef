"""Training scripts of users of Horovod: nothing in them knows of blinkrun.

The first has a loop of its own, the second leaves it to Keras.
"""

import argparse

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--fp16-allreduce", action="store_true")
args = parser.parse_args()

hvd.init()
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
digits = load_digits()
images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)
labels = digits.target.astype(np.int64)
train = images[:1500], labels[:1500]
test = images[1500:], labels[1500:]
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none


def new_model():
    tf.keras.utils.set_random_seed(hvd.rank())  # ranks start apart
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((64,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def report(title, model):
    accuracy = np.mean(np.argmax(model(test[0]), axis=1) == test[1])
    accuracy = hvd.allreduce(tf.constant(accuracy), name=f"{title}.accuracy").numpy()
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    alike = all((w == weights).all() for w in hvd.allgather_object(weights))
    if hvd.rank() == 0:
        print(f"{title}: accuracy {accuracy:.3f}, ranks agree: {alike}", flush=True)


def by_tape():
    model = new_model()
    loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
    opt = tf.optimizers.SGD(0.1 * hvd.size(), momentum=0.9)
    dataset = tf.data.Dataset.from_tensor_slices(train).shard(hvd.size(), hvd.rank())
    dataset = dataset.repeat().shuffle(750, seed=hvd.rank()).batch(32)

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        grads = tape.gradient(value, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables, root_rank=0)
        return value

    for batch, (x, y) in enumerate(dataset.take(args.steps // hvd.size())):
        training_step(x, y, batch == 0)
    report("tape", model)


def by_keras():
    model = new_model()
    scaled_lr = 0.05 * hvd_keras.size()
    opt = tf.keras.optimizers.SGD(scaled_lr, momentum=0.9)
    opt = hvd_keras.DistributedOptimizer(opt, compression=compression)
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=opt,
        metrics=["accuracy"],
    )
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(
            initial_lr=scaled_lr, warmup_epochs=2, verbose=0
        ),
    ]
    rank, size = hvd_keras.rank(), hvd_keras.size()
    model.fit(
        train[0][rank::size],
        train[1][rank::size],
        batch_size=32,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=0,
    )
    report("keras", model)


by_tape()
by_keras()
