import pytest


@pytest.mark.parametrize(
    "case",
    [
        "reductions_wrap_round_and_convert",
        "reductions_of_large_unsigned_numbers",
        "reductions_of_complex_numbers",
        "moves_keep_every_bit",
        "in_place_in_every_dtype",
        "factors_in_every_dtype",
        "groups_of_several_dtypes",
    ],
)
def test_every_dtype_has_the_results_that_numpy_and_torch_give_alone(job, case):
    assert job.of(case) == [[]] * job.size


def test_dtypes_that_travel_alike_are_told_apart(job):
    for lines in job.of("dtypes_that_travel_alike_do_not_match"):
        if job.size == 1:
            assert set(lines.values()) == {"no error"}
            return
        assert lines["sum"].startswith("MismatchError")
        assert "allreduce 's' has device cpu, rank 0 has cpu (int16)" in lines["sum"]
        assert "broadcast 'm' has device cpu (uint16), rank 0 has cpu (int16)" in lines["move"]


def test_operations_that_mean_nothing_for_a_dtype_are_refused(job):
    for lines in job.of("operations_without_a_meaning"):
        assert "allreduce: bool has no average; use op=Sum (or)" in lines["bool"]
        assert "allreduce of 'c': complex64 has Sum and Average only" in lines["complex"]
        assert "Adasum needs floating-point numbers, got int32" in lines["adasum"]
        assert "bool takes no factors" in lines["factors"]
        assert all(line.startswith("InvalidBufferError") for line in lines.values())
