"""Wrapped Keras optimizers in mixed precision, with Keras' accumulation, in graphs, with XLA."""

from __future__ import annotations

import pytest
from test_keras_optimizer import check, check_each


@pytest.mark.parametrize(
    "case",
    [
        "loss_scale_outside",
        "loss_scale_inside",
        "accumulation_with_loss_scale",
        "passes_with_loss_scale",
        "training_by_hand",
    ],
)
def test_training_is_that_of_one_process_there_too(keras_job, case):
    check(keras_job.of(case))


def test_all_ranks_leave_out_a_step_in_which_one_overflows(keras_job):
    """A reduction behind the check of a LossScaleOptimizer would wait for ever."""
    answers = keras_job.of("overflow_on_one_rank")
    assert answers == [answers[0]] * keras_job.size
    for name, (_, scale, iterations, is_finite) in answers[0].items():
        assert scale == (2.0**14 if name == "by compile" else 4.0)
        assert iterations == 2  # of three batches
        assert is_finite


def test_few_bits_are_near_one_process(keras_job):
    answers = keras_job.of("half_precision")
    for name, near in (("mixed_float16", 2e-3), ("mixed_bfloat16", 8e-3), ("bfloat16", 2e-2)):
        check([each[name] for each in answers], near)


def test_validation_is_each_ranks_own(keras_job):
    answers = keras_job.of("validation")
    assert answers == [answers[0]] * keras_job.size
    assert answers[0][1] == ["loss", "mae", "val_loss", "val_mae"]


def test_ranks_with_fewer_batches_join(keras_job):
    answers = keras_job.of("ranks_with_fewer_batches")
    assert [each[2] for each in answers] == [2] + [4] * (keras_job.size - 1)
    assert len({each[0] for each in answers[1:]}) <= 1
    if keras_job.size > 1:
        assert all(each[1] for each in answers)


def test_graphs_of_several_steps_and_none_at_all(keras_job):
    check_each(keras_job.of("graph_modes"))


def test_embeddings_train_by_sparse_gradients(keras_job):
    check_each(keras_job.of("embeddings"))


def test_xla_is_refused_by_a_line_that_says_what_to_set(keras_job):
    for each in keras_job.of("xla_is_refused"):
        if keras_job.size == 1:
            assert each is None
        else:
            assert "UsageError" in each["kinds"]
            assert "jit_compile=False" in each["text"]
            assert "\n" not in each["text"]


def test_xla_is_not_chosen_where_keras_would(keras_job):
    for distributed, half, alone in keras_job.of("xla_is_not_chosen"):
        assert [distributed, half] == [keras_job.size == 1] * 2
        assert alone


def test_scales_of_float8_are_the_same_on_all_ranks(keras_job):
    assert len(set(keras_job.of("float8"))) == 1


def test_one_rank_asks_for_nothing(keras_job):
    asked = 0 if keras_job.size == 1 else 2
    assert keras_job.of("one_rank_adds_nothing") == [asked] * keras_job.size
