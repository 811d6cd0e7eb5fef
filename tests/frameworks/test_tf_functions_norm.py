"""SyncBatchNormalization equals Keras' BatchNormalization on the joined batch."""

import pytest


@pytest.mark.parametrize(
    "case",
    [
        "batch_norm_of_joined_batches",
        "batch_norm_of_uneven_batches",
        "batch_norm_in_a_graph",
        "batch_norm_with_a_mask",
    ],
)
def test_it_is_batch_norm_of_the_joined_batch(tf_job, case):
    for variants in tf_job.of(case):
        for distances in variants:
            assert {"outputs", "gradients", "weights"} <= set(distances)
            assert max(distances.values()) < 1e-4, distances


def test_evaluation_uses_moving_statistics_and_no_other_rank(tf_job):
    assert max(tf_job.of("batch_norm_in_evaluation")) < 1e-6


def test_narrow_inputs_are_computed_in_float32(tf_job):
    for found in tf_job.of("batch_norm_of_narrow_types"):
        near = {"float16": 4e-3, "mixed_float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-5}
        for policy, (dtype, distance) in found.items():
            assert dtype == policy.removeprefix("mixed_")
            assert distance < near[policy]


def test_ranks_that_have_joined_count_for_nothing(tf_job):
    assert max(tf_job.of("batch_norm_while_a_rank_has_joined")) < 1e-5


def test_models_with_it_are_made_again_from_their_configuration(tf_job):
    for names, momentum, distance in tf_job.of("batch_norm_in_a_model"):
        assert names == ["SyncBatchNormalization"] * 2
        assert momentum == 0.5
        assert distance == 0


def test_the_fused_kernel_is_refused(tf_job):
    assert all("leave it at False" in line for line in tf_job.of("batch_norm_refusals"))
