import pytest


@pytest.mark.parametrize(
    "case",
    [
        "allreduce_all_dtypes_and_ops",
        "allreduce_all_dtypes_and_ops_in_graphs",
        "allreduce_shapes",
        "allreduce_scales_and_averages",
        "allreduce_wraps_as_its_own_width",
        "allreduce_float8",
        "allreduce_adasum",
        "allreduce_compressed",
        "allreduce_grouped",
        "allreduce_what_tensors_are_made_of",
        "allreduce_indexed_slices",
        "broadcast_all_dtypes_from_every_root",
        "broadcast_variables_in_place",
        "allgather_all_dtypes_and_sizes",
        "allgather_grouped",
        "alltoall_equal_and_uneven",
        "alltoall_splits_of_a_graph",
        "reducescatter_shapes_and_ops",
        "results_outlive_their_calls",
        "process_sets",
    ],
)
def test_results_on_tensorflow_tensors_are_those_promised(tf_job, case):
    assert tf_job.of(case) == [[]] * tf_job.size


def test_all_ranks_hold_the_same_bits(tf_job):
    digests = tf_job.of("allreduce_digests")
    assert all(each == digests[0] for each in digests)
    assert len(set(digests[0])) == (4 if tf_job.size > 1 else 2)  # those of the mean three times
