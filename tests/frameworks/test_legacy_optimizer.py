"""Wrapped optimizers of tf_keras: equal weights on all ranks, and those that one process has."""

from __future__ import annotations

import pytest
from test_keras_optimizer import check_each


def alike(answers):
    assert answers == [answers[0]] * len(answers)
    return answers[0]


def test_every_legacy_optimizer_trains_as_one_process_does(legacy_job):
    answers = legacy_job.of("every_legacy_optimizer")
    assert len(answers[0]) >= 18
    check_each(answers)


def test_legacy_optimizers_train_in_graphs(legacy_job):
    check_each(legacy_job.of("legacy_in_a_graph"))


def test_without_blinkrun_legacy_weights_differ(legacy_job):
    assert len({each["weights"] for each in legacy_job.of("legacy_unwrapped")}) == legacy_job.size


def test_legacy_passes_are_added_up(legacy_job):
    answers = legacy_job.of("legacy_passes")
    check_each(answers)
    for family in answers[0].values():
        assert family["counts"] == [4, 0]  # every pass is an iteration, as under Horovod


def test_all_ranks_leave_out_a_legacy_step_in_which_one_overflows(legacy_job):
    for _, scale, is_finite in alike(legacy_job.of("legacy_loss_scale")).values():
        assert scale == 4.0
        assert is_finite


def test_legacy_gradients_are_reduced_once(legacy_job):
    for answer in legacy_job.of("legacy_loops"):
        for values in answer.values():
            assert values == pytest.approx([-3.0, -4.0, -7.0, -10.0, 3.0])


def test_legacy_gradients_of_local_layers_stay_on_their_rank(legacy_job):
    answers = legacy_job.of("legacy_local_variables")
    for family in answers[0]:
        assert [each[family][0] for each in answers] == pytest.approx([0.5, 1.0])
        assert len({each[family][1] for each in answers}) == 1


def test_legacy_embeddings_have_the_same_weights(legacy_job):
    alike(legacy_job.of("legacy_sparse"))


def test_a_wrapped_legacy_optimizer_is_what_it_was(legacy_job):
    for answer in alike(legacy_job.of("legacy_classes")).values():
        assert answer["isinstance"]
        assert answer["configs"] == [True, True]
        assert answer["wrapped"] == [True, True, True]
        assert answer["serialized"]
        assert "already" in answer["twice"]


def test_legacy_models_are_loaded_with_blinkrun_and_without(legacy_job):
    for answer in alike(legacy_job.of("legacy_files")).values():
        assert answer["plain"] == [False, True]
        assert answer["ours"] == [True, 2]
        assert answer["after"][0] == answer["after"][1]


def test_xla_is_refused_for_tf_keras_too(legacy_job):
    for text in legacy_job.of("legacy_xla"):
        assert "jit_compile=False" in text


def test_an_optimizer_of_keras_3_is_recognised_beside_tf_keras(legacy_job):
    assert legacy_job.of("modern_keras_beside") == pytest.approx([-1.5] * 2)
