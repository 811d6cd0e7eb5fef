"""SyncBatchNorm equals torch's BatchNorm on the joined batch."""

import pytest


@pytest.mark.parametrize("case", ["batch_norm_of_joined_batches", "batch_norm_of_uneven_batches"])
def test_it_is_batch_norm_of_the_joined_batch(job, case):
    for variants in job.of(case):
        for distances in variants:
            assert {"outputs", "gradients"} <= set(distances)
            assert max(distances.values()) < 1e-9, distances


def test_evaluation_uses_running_statistics_and_no_other_rank(job):
    assert max(job.of("batch_norm_in_evaluation")) < 1e-6


def test_narrow_inputs_are_computed_in_float32(job):
    for found in job.of("batch_norm_of_narrow_types"):
        dtype, distance = found["float32"]
        assert (dtype, distance < 1e-5) == ("torch.float32", True)
        dtype, distance = found["bfloat16"]
        assert (dtype, distance < 3e-2) == ("torch.bfloat16", True)


def test_conversion_keeps_parameters_and_names(job):
    for name, same, keys in job.of("batch_norm_converted"):
        assert name == "SyncBatchNorm"
        assert same
        assert "1.0.running_mean" in keys


def test_ranks_that_have_joined_count_for_nothing(job):
    assert max(job.of("batch_norm_while_a_rank_has_joined")) < 1e-5


def test_inputs_that_cannot_be_normalized_are_refused(job):
    for flat, wide, single in job.of("batch_norm_refusals"):
        assert "at least 2 dimensions, got 1" in flat
        assert "has num_features=3, the input of shape (2, 4) has 4" in wide
        if job.size > 1:
            assert "more than 1 value per channel in training, the joined batch has 1" in single
