"""Checkpoints that one rank writes."""

from pathlib import Path

from keras_callbacks_parts import digest, history_of, listed, make_data, make_model, raised

import blinkrun.tf as blink
from blinkrun.adapter.objects import allgather_object
from blinkrun.tf.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
)
from blinkrun.tf.keras.state import keras

CASES = [
    "the_best_model_is_saved_once",
    "only_what_is_better_is_saved",
    "a_failure_to_write_reaches_all",
    "a_checkpoint_on_the_root_alone",
    "a_checkpoint_without_a_file",
]


def the_best_model_is_saved_once():
    """All ranks load the file as soon as they may go on."""
    file = Path("saved") / "best.keras"
    model = make_model()
    callbacks = [BroadcastGlobalVariablesCallback(0), BestModelCheckpoint("loss", filepath=file)]
    history_of(model, *make_data(0), callbacks=callbacks)
    loaded = keras.models.load_model(file)
    return [digest(model.weights), digest(loaded.weights)]


def only_what_is_better_is_saved():
    """Rank 0's own metrics would save the second time, not the third."""
    model = make_model(seed=0)
    checkpoint = BestModelCheckpoint("val_loss", save_weights_only=True, mode="min")
    checkpoint.filepath = "epoch{epoch}.weights.h5"
    callbacks = listed([checkpoint, MetricAverageCallback()], model)
    callbacks.on_train_begin()
    for epoch, loss in enumerate((4.0, 3.0 if blink.rank() == 0 else 9.0, 3.5, 3.4)):
        callbacks.on_epoch_begin(epoch)
        callbacks.on_epoch_end(epoch, {"val_loss": loss})
    saved = [Path(f"epoch{epoch}.weights.h5").exists() for epoch in range(1, 5)]
    return [saved, checkpoint.best]


def a_failure_to_write_reaches_all():
    Path("a_file").touch()
    file = Path("a_file") / "best.keras"
    model = make_model()
    callbacks = [BestModelCheckpoint("loss", filepath=file)]
    failed = raised(lambda: history_of(model, *make_data(0), callbacks=callbacks))
    return [failed, allgather_object(blink.rank())]


def a_checkpoint_on_the_root_alone():
    model = make_model()
    callbacks = [BroadcastGlobalVariablesCallback(0)]
    if blink.rank() == 0:
        callbacks.append(BestModelCheckpoint("loss", filepath="alone.keras"))
    history_of(model, *make_data(0), callbacks=callbacks)
    allgather_object(None)  # it is written
    return Path("alone.keras").exists()


def a_checkpoint_without_a_file():
    return raised(
        lambda: history_of(make_model(), *make_data(0), callbacks=[BestModelCheckpoint()])
    )
