"""Under TF_USE_LEGACY_KERAS=1: batch normalization over all ranks, and variables of tf_keras."""

import numpy as np
import tensorflow as tf
from tf_functions_norm_cases import compare

import blinkrun.tf as blink

CASES = ("legacy_batch_norm", "legacy_variables")


def legacy_batch_norm():
    mask = np.random.default_rng(3).random((12, 4)) < 0.6
    kinds = [each.__module__.split(".")[0] for each in blink.SyncBatchNormalization.__mro__[:2]]
    return [
        kinds,
        compare(()),
        compare((4,), axis=1),
        compare((2, 3), axis=1, uneven=True, momentum=0.7),
        compare((2, 2), scale=False, wrap=tf.function, steps=1),
        compare((4,), mask=mask),
    ]


def legacy_variables():
    tf.keras.utils.set_random_seed(blink.rank())
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,))])
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    variables = [*model.variables, *optimizer.variables]
    blink.broadcast_variables(variables, 0)
    values = blink.allgather_object([each.numpy().tolist() for each in variables])
    return all(each == values[0] for each in values)
