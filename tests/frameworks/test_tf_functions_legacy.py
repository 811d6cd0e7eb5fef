"""Batch normalization and variables of tf_keras."""


def test_it_is_tf_keras_batch_norm_of_the_joined_batch(legacy_job):
    for kinds, *variants in legacy_job.of("legacy_batch_norm"):
        assert kinds == ["blinkrun", "tf_keras"]
        for distances in variants:
            assert {"outputs", "gradients", "weights"} <= set(distances)
            assert max(distances.values()) < 1e-4, distances


def test_variables_of_tf_keras_become_those_of_rank_0(legacy_job):
    assert all(legacy_job.of("legacy_variables"))
