"""Wrapped Keras optimizers are saved as what they were, and are wrapped when they are loaded."""

from __future__ import annotations


def alike(answers):
    """All ranks have answered the same."""
    assert answers == [answers[0]] * len(answers)
    return answers[0]


def test_a_wrapped_optimizer_is_what_it_was(keras_job):
    answer = alike(keras_job.of("classes"))
    assert answer.pop("recognised") == [True, False]
    assert all(answer.values())


def test_configurations_make_wrapped_optimizers_again(keras_job):
    answer = alike(keras_job.of("configurations"))
    assert answer == {
        "same": [True, True, True],
        "wrapped": [True, True, False],
        "kept": [True, True],
    }


def test_copies_and_pickles_stay_wrapped(keras_job):
    assert alike(keras_job.of("copies")) == [[True, 2], [True, 2]]


def test_models_are_loaded_with_blinkrun_and_without(keras_job):
    answer = alike(keras_job.of("files"))
    assert not answer["names blinkrun"]
    assert answer["class"] == "Adam"
    for ending in ("keras", "h5"):
        found = answer[ending]
        assert found["plain"]
        assert found["wrapped"]
        assert found["counts"] == [2, 2]
        assert found["after"] == answer["without a file"]


def test_weights_are_loaded_with_the_state_of_the_optimizer(keras_job):
    assert alike(keras_job.of("weights_only"))


def test_the_optimizer_in_a_loss_scale_optimizer_is_found(keras_job):
    kind, is_wrapped, _ = alike(keras_job.of("loaded_with_loss_scale"))
    assert kind == "LossScaleOptimizer"
    assert is_wrapped


def test_optimizers_of_ones_own_are_loaded(keras_job):
    by_class, by_name = alike(keras_job.of("optimizers_of_ones_own"))
    assert by_class[0] == "OwnOptimizer"
    assert by_class == by_name


def test_a_model_without_optimizer_is_loaded_as_it_is(keras_job):
    assert alike(keras_job.of("models_without_optimizer"))


def test_one_rank_loads_what_others_build(keras_job):
    alike(keras_job.of("rank_0_loads"))
