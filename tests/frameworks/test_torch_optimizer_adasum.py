"""DistributedOptimizer with op=Adasum."""


def test_what_steps_change_is_combined_by_adasum(job):
    for reports in zip(*job.of("adasum_of_steps"), strict=True):
        assert max(report["distance"] for report in reports) < 1e-12
        assert len({report["bits"] for report in reports}) == 1


def test_narrow_changes_are_combined_in_their_precision(job):
    for reports in zip(*job.of("adasum_of_narrow_steps"), strict=True):
        assert len({report["bits"] for report in reports}) == 1
    for full, halved in job.of("adasum_of_narrow_steps"):
        assert full["distance"] < 1e-6
        assert halved["distance"] < 1e-3


def test_an_overflow_on_one_rank_stops_the_step_of_all(job):
    answers = job.of("adasum_with_a_scaler")
    assert all(answer == answers[0] for answer in answers)
    (_, first), (_, second), (_, third) = answers[0]
    assert [scale for scale, _ in answers[0]] == [8.0, 4.0, 4.0]
    assert first == second != third


def test_calls_that_would_lose_gradients_are_refused(job):
    for early, skipped, twice in job.of("adasum_refusals"):
        assert "zero_grad() between backward() and step()" in early
        assert "skip_synchronize() does not go with op=Adasum" in skipped
        assert "more than backward_passes_per_step=1 backward passes" in twice


def test_a_rank_that_has_joined_changes_nothing(job):
    assert max(job.of("adasum_while_a_rank_has_joined")) < 1e-12
