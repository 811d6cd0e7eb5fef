"""The callbacks with tf_keras: the same cases, but for what only Keras 3 has."""

import keras_callbacks_cases as beginnings
import keras_callbacks_epochs_cases as epochs
import keras_callbacks_files_cases as files
import keras_callbacks_rates_cases as rates
from keras_callbacks_parts import digest, history_of, make_data, make_model

from blinkrun.tf.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback
from blinkrun.tf.keras.state import keras

_LEFT_OUT = {"seeds_stay_apart"}  # tf_keras keeps no seeds in variables

CASES = ["legacy_optimizers_are_broadcast"]
for _module in (beginnings, epochs, files, rates):
    for _name in _module.CASES:
        if _name not in _LEFT_OUT:
            globals()[_name] = getattr(_module, _name)
            CASES.append(_name)


def legacy_optimizers_are_broadcast():
    found = {}
    for built in (True, False):
        model = make_model(keras.optimizers.legacy.SGD(0.1, momentum=0.5), built=built)
        callbacks = [BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
        history = history_of(model, *make_data(0), batch_size=4, epochs=2, callbacks=callbacks)
        found[str(built)] = [
            digest(model.weights),
            digest(model.optimizer.variables()),
            history["loss"],
        ]
    return found
