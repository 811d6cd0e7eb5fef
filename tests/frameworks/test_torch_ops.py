import pytest


def ranks(job):
    return list(range(job.size))


def test_each_rank_knows_its_place(job):
    assert job.of("who_am_i") == [
        [True, rank, job.size, rank, job.size, 0, 1] for rank in ranks(job)
    ]


@pytest.mark.parametrize(
    "case",
    [
        "allreduce_all_dtypes_and_ops",
        "allreduce_scales",
        "allreduce_layouts",
        "allreduce_in_place",
        "allreduce_async_many",
        "broadcast_from_every_root",
        "broadcast_in_place_and_async",
        "allgather_equal",
        "allgather_unequal",
    ],
)
def test_results_are_those_promised(job, case):
    assert job.of(case) == [[]] * job.size


def test_allgather_of_unlike_rows_names_a_rank_and_both_shapes(job):
    lines = job.of("allgather_mismatch")
    if job.size == 1:
        assert lines == ["no error"]
        return
    others = (
        "rank 1" if job.size == 2 else f"ranks {', '.join('12')}" if job.size == 3 else "ranks 1-3"
    )
    (line,) = set(lines)
    assert line.startswith(
        f"MismatchError: {others}: allgather 'scores' has shape (2, 4), rank 0 has (2, 3); every "
        "rank must call it with the same shape but for the first dimension"
    )


def test_tensors_that_no_collective_takes_are_refused(job):
    for lines in job.of("refused_tensors"):
        assert "allreduce of 'w': the tensor is sparse" in lines["sparse"]
        assert "on meta" in lines["meta"]
        assert "the tensor is sparse" in lines["sparse rows"]
        assert "the tensor is quantized; give it dense, as .dequantize()" in lines["quantized"]
        assert "the tensor is nested; give its parts" in lines["nested"]
        assert "takes a torch tensor, got list" in lines["list"]
        assert all(line.startswith("InvalidBufferError: ") for line in lines.values())


def test_arguments_that_make_no_sense_are_refused(job):
    for lines in job.of("refused_arguments"):
        assert "op is 'sum'; choose Average, Sum, Min, Max, Product or Adasum" in lines["op"]
        assert f"root_rank is {job.size}, ranks are 0 to {job.size - 1}" in lines["root"]
        assert "root_rank is -1" in lines["negative"]
        assert "root_rank is '0'; give the number of a rank" in lines["text"]
        assert "compression is 'fp16'; give Compression.none" in lines["compression"]
