import pytest


@pytest.mark.parametrize(
    "case",
    [
        "gradient_of_allreduce",
        "gradient_of_selections",
        "gradient_of_products",
        "gradient_of_grouped_allreduce",
        "gradient_of_allgather",
        "gradient_of_grouped_allgather",
        "gradient_of_broadcast",
        "gradient_of_alltoall",
        "gradient_of_reducescatter",
        "gradient_of_compressed",
        "gradient_of_indexed_slices",
        "gradient_over_process_sets",
        "gradient_of_variables_and_none",
        "second_derivatives",
        "gradients_in_another_order",
        "gradient_of_another_dtype",
    ],
)
def test_gradients_of_tensorflow_collectives_are_those_of_the_formula(tf_job, case):
    assert tf_job.of(case) == [[]] * tf_job.size
