"""`shard` for `model.fit` on either backend."""


def test_ranks_fit_on_as_many_batches_of_their_own_rows(keras_job):
    answers = keras_job.of("arrays_for_fit")
    together = [row for rows, _, _ in answers for row in rows]
    assert sorted(together) == [float(2 * row) for row in range(11)]  # batches are as many: all
    assert all(matches for _, matches, _ in answers)
    assert len({batches for _, _, batches in answers}) == 1
