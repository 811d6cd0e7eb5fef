"""Wrapped Keras optimizers: equal weights on all ranks, and those that one process has."""

from __future__ import annotations

import pytest

NEAR = 2e-6  # float32 sums in another order
TRAINED_LIKE_ONE_PROCESS = [
    "several_optimizers_in_one",
    "groups_of_variables",
    "op_sum",
    "accumulation",
    "passes",
    "passes_without_average",
    "frozen_layers",
    "gradients_that_are_none",
    "models_made_before",
    "loops_of_ones_own",
]


def check(outcomes, near=NEAR):
    """All ranks have the same weights, which have moved as those of one process have."""
    for outcome in outcomes:
        assert outcome["weights"] == outcomes[0]["weights"]
        assert outcome["off"] <= near * max(1.0, outcome["moved"])
        assert outcome["moved"] > 10 * outcome["off"]


def check_each(answers, near=NEAR):
    for name in answers[0]:
        check([answer[name] for answer in answers], near)


def test_every_optimizer_trains_as_one_process_does(keras_job):
    answers = keras_job.of("every_optimizer")
    assert len(answers[0]) >= 13
    check_each(answers)


def test_without_blinkrun_weights_differ(keras_job):
    answers = keras_job.of("unwrapped")
    if keras_job.size == 1:
        check(answers)
    else:
        assert len({each["weights"] for each in answers}) == keras_job.size
        assert all(each["off"] > 1e-3 for each in answers)


@pytest.mark.parametrize("case", TRAINED_LIKE_ONE_PROCESS)
def test_training_is_that_of_one_process(keras_job, case):
    check([each for each in keras_job.of(case) if each is not None] or [_NOTHING])


_NOTHING = {"weights": "", "off": 0.0, "moved": 1.0}  # this Keras has no such thing


def test_options_of_optimizers_act_on_the_gradients_of_all_ranks(keras_job):
    check_each(keras_job.of("options_of_optimizers"))


def test_arguments_change_how_gradients_travel(keras_job):
    answers = keras_job.of("arguments")
    check_each([{k: v for k, v in each.items() if k not in ("bf16", "fp16")} for each in answers])
    check([each["fp16"] for each in answers], 1e-3)
    check([each["bf16"] for each in answers], 8e-3)


def test_accumulated_gradients_are_reduced_once(keras_job):
    steps = 2 if keras_job.size > 1 else 0
    assert [each["requests"] for each in keras_job.of("accumulation")] == [steps] * keras_job.size


def test_passes_make_one_iteration_and_leave_nothing_to_save(keras_job):
    for each in keras_job.of("passes"):
        assert each["iterations"] == 1
        assert each["variables"] == 2


def test_a_rank_alone_may_have_a_batch_of_another_size(keras_job):
    assert len(set(keras_job.of("partial_batches"))) == 1


def test_apply_takes_gradients_with_variables_and_without(keras_job):
    mean = (keras_job.size + 1) / 2
    for each in keras_job.of("loops_of_ones_own"):
        assert each["steps"] == pytest.approx(2 * mean)
        assert each["reduced"] == pytest.approx(mean)


def test_several_optimizers_train_in_turns(keras_job):
    answers = keras_job.of("two_optimizers")
    assert answers == [answers[0]] * keras_job.size


def test_an_optimizer_of_another_model_is_refused(keras_job):
    for text in keras_job.of("one_optimizer_for_two_models"):
        assert "is not among the 2" in text or keras_job.size == 1


def test_ranks_of_a_process_set_train_together(keras_job):
    answers = keras_job.of("a_set_of_ranks")
    if keras_job.size < 3:
        assert answers == [None] * keras_job.size
    else:
        assert answers[0] == answers[2] != answers[1]


def test_gradients_of_local_layers_stay_on_their_rank(keras_job):
    answers = keras_job.of("layers_of_ones_own")
    size = keras_job.size
    assert [each["local"] for each in answers] == pytest.approx(
        [(r + 1) / size for r in range(size)]
    )
    assert len({each["shared"] for each in answers}) == 1


def test_the_learning_rate_is_set_as_ever(keras_job):
    for rates in keras_job.of("learning_rate"):
        assert rates == pytest.approx([0.5, 0.25, 0.1])
