"""A job for Keras' torch backend on a machine without TensorFlow."""

import sys
import warnings


def run():
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword")
    sys.modules["tensorflow"] = None  # as if it was not installed
    import keras
    import numpy as np

    import blinkrun.tf.keras as blink
    from blinkrun.tf.keras import backend

    blink.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(blink.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    rng = np.random.default_rng(blink.rank())
    model.fit(
        rng.normal(size=(8, 3)),
        rng.normal(size=(8, 2)),
        batch_size=4,
        verbose=0,
        callbacks=[
            blink.callbacks.BroadcastGlobalVariablesCallback(0),
            blink.callbacks.MetricAverageCallback(),
        ],
    )
    total = float(np.asarray(blink.allreduce(1.0, op=blink.Sum)))
    loaded = sorted(name for name in sys.modules if name.startswith(("tensorflow.", "tf_keras")))
    return [total, loaded, [each.tolist() for each in backend.host_values(model.variables)]]
