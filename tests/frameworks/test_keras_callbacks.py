"""Callbacks of blinkrun.tf.keras: with Keras 3 on both backends, and with tf_keras."""

import pytest

MISMATCH, USAGE = "MismatchError", "UsageError"


def equal(answers):
    return all(answer == answers[0] for answer in answers)


class Beginnings:
    """What all ranks have alike when training begins."""

    def test_the_first_step_is_taken_on_the_weights_of_the_root(self, any_job):
        answers = any_job.of("broadcast_precedes_the_first_step")
        for name in answers[0]:
            assert equal([answer[name] for answer in answers]), name

    def test_optimizers_go_on_where_that_of_the_root_was(self, any_job):
        answers = any_job.of("optimizers_are_broadcast")
        assert equal(answers)
        for iterations, rate, *_ in answers[0].values():
            assert iterations == 12  # two epochs before, one now
            assert rate == pytest.approx(0.01)

    def test_a_model_that_one_rank_has_built_is_built_on_the_others(self, any_job):
        assert equal(any_job.of("a_model_that_is_built_on_one_rank_only"))

    def test_every_fit_begins_with_the_weights_of_the_root(self, any_job):
        answers = any_job.of("each_fit_begins_alike")
        roots = answers[0]
        for answer in answers:
            for (apart, after), (at_root, _) in zip(answer, roots, strict=True):
                assert after == at_root
                assert answer is roots or apart != at_root

    def test_local_variables_stay_as_they_are(self, any_job):
        answers = any_job.of("local_variables_stay")
        for kernel_before, kernel_after, *_ in answers:
            assert kernel_before == kernel_after
        assert equal([answer[3] for answer in answers])
        if any_job.size > 1:
            assert answers[0][1] != answers[1][1]

    def test_ranks_with_different_data_and_weights_end_with_equal_weights(self, any_job):
        answers = any_job.of("training_keeps_weights_equal")
        assert equal(answers)
        for _, history in answers[0].values():
            assert history["loss"][-1] < history["loss"][0]

    def test_without_the_callback_they_end_with_different_ones(self, any_job):
        answers = any_job.of("without_the_callback_weights_differ")
        assert len(set(answers)) == any_job.size

    def test_what_does_not_fit_together_is_told_to_all(self, any_job):
        answers = any_job.of("what_does_not_fit_together")
        if any_job.size == 1:
            assert not any(answers[0].values())
            return
        for what, words in {
            "epochs": "rank 1: training begins with epoch 1, on rank 0 with 0; give fit the same",
            "callbacks": "rank 1: training begins with callbacks ['Broadcast",
            "models": "with shape (3, 3) of float32, rank 0 has ",
        }.items():
            for kind, message in (answer[what] for answer in answers):
                assert kind == MISMATCH
                assert words in message
                assert "\n" not in message
        assert all(answer["afterwards"] is None for answer in answers)

    def test_arguments_that_cannot_be_used_are_named(self, any_job):
        for answer in any_job.of("bad_arguments"):
            assert answer["root"][0] == USAGE
            assert answer["root"][1].startswith(f"root_rank is {any_job.size}, ranks are 0 to")
            assert answer["local"] == [
                USAGE,
                "local_variables takes variables of the model, got 3",
            ]
            assert answer["unregistered"][0] == "ProcessSetError"

    def test_ranks_outside_of_a_set_go_their_own_way(self, any_job):
        answers = any_job.of("one_set_trains")
        if any_job.size < 3:
            return
        one, two, other = answers
        assert one[1] == two[1] == two[0]  # the root's, as the rate is 0
        assert other[0] == other[1] != one[1]
        assert one[2] == two[2] != other[2]


class Epochs:
    """What happens at the ends of epochs."""

    def test_averages_are_there_before_anybody_looks(self, any_job):
        mean = (any_job.size - 1) / 2
        for seen, history in any_job.of("averages_come_before_all_others"):
            assert seen == [{"loss": mean, "acc": 1.0}]
            assert history == {"loss": [mean], "acc": [1.0]}

    def test_decisions_by_metrics_are_alike(self, any_job):
        answers = any_job.of("decisions_are_alike_wherever_the_callback_stands")
        assert equal(answers)
        stops = [stop for stop, _ in answers[0]]
        assert any(stops) == (any_job.size > 1)  # rank 0 alone would go on

    def test_metrics_may_be_missing_infinite_or_arrays(self, any_job):
        for rank, got in enumerate(any_job.of("metrics_of_every_kind")):
            assert got["val_loss"] == "7.0"  # that of rank 0, the only one
            assert got["nan"] == "nan"
            assert got["inf"] == "-inf"
            assert got["text"] == f"'of rank {rank}'"
            mean = (any_job.size - 1) / 2
            assert got["table"] == [mean, 1.0]
            if any_job.size > 1:
                assert got["loss"] == repr(mean)

    def test_a_metric_has_one_shape(self, any_job):
        for answer in any_job.of("metrics_of_different_shapes"):
            if any_job.size == 1:
                assert answer is None
            else:
                assert answer[0] == MISMATCH
                assert "metric 'table' has shape (3,), rank 0 has (2,)" in answer[1]

    def test_ranks_with_other_losses_stop_at_the_same_epoch(self, any_job):
        answers = any_job.of("a_fit_stops_at_one_epoch_on_all_ranks")
        assert equal([answer[1:] for answer in answers])
        own = [answer[0] for answer in answers]
        assert own[0][1] < own[0][0]  # by its own losses it would have gone on
        if any_job.size > 1:
            assert all(losses[1] > losses[0] for losses in own[1:])
            assert len(own[0]) == 2
        else:
            assert len(own[0]) == 6

    def test_when_one_rank_stops_all_do(self, any_job):
        answers = any_job.of("all_stop_when_one_does")
        assert equal(answers)
        for num_epochs, _ in answers[0].values():
            assert num_epochs == 2

    @pytest.mark.parametrize("case", ["ranks_with_fewer_batches_wait", "join_alone_is_enough"])
    def test_after_epochs_of_different_length_all_are_as_far(self, any_job, case):
        answers = any_job.of(case)
        assert equal(answers)
        assert answers[0][0] == 2 * (1 + any_job.size)  # the batches of the last rank

    def test_local_variables_stay_local_after_epochs_of_different_length(self, any_job):
        answers = any_job.of("local_variables_stay_local_when_epochs_differ")
        assert len({local for local, _ in answers}) == any_job.size
        assert equal([others for _, others in answers])

    def test_one_rank_shows_progress(self, any_job):
        answers = any_job.of("progress_is_shown_once")
        assert [answer["one"] for answer in answers] == [True] + [False] * (any_job.size - 1)
        assert all(answer["own"] for answer in answers)


class Rates:
    """Learning rates."""

    def test_they_follow_the_schedule(self, any_job):
        size = any_job.size
        warm = [0.8 / size * ((batch + 1) / 2 * (size - 1) / 2 + 1) for batch in range(4)]
        for rank, got in enumerate(any_job.of("rates_by_batch")):
            for name, rates in {
                "warmup": warm + [0.8] * 4,
                "staircase": [0.5, 0.5, 2, 2, 3, 3, 3, 3],
                "smooth": [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5],
                "power": [0.5, 0.5, 1, 1, 0.5, 0.5, 0.25, 0.25],
            }.items():
                assert got[name][0] == pytest.approx(rates), name
                assert got[name][1] == pytest.approx(rates[1::2]), name
            said = "\nEpoch 2: finished gradual learning rate warmup to 0.8.\n"
            assert got["warmup"][2] == (said if rank == 0 else "")

    def test_batches_of_all_ranks_have_the_rate_of_the_longest_epoch(self, any_job):
        longest = 1 + any_job.size
        for rank, rates in enumerate(any_job.of("the_longest_epoch_counts")):
            wanted = [
                1 + epoch + batch / longest for epoch in range(4) for batch in range(2 + rank)
            ]
            assert rates == pytest.approx(wanted)

    def test_what_momentum_carries_along_is_scaled_with_the_rate(self, any_job):
        for got in any_job.of("momentum_is_corrected"):
            assert got["True"] == pytest.approx(-(1 + 1.5 + (1.5 + 2) + (1.75 + 2)))
            assert got["False"] == pytest.approx(-(1 + 1.5 + (0.75 + 2) + (1.375 + 2)))

    def test_only_velocities_that_contain_the_rate_are_scaled(self, any_job):
        for got in any_job.of("what_momentum_is_corrected"):
            assert all(kinds == [2] for kinds in got["SGD"])
            assert all(kinds in ([], [1]) for kinds in got["plain SGD"])
            assert all(kinds == [1, 2] for kinds in got["RMSprop"])
            assert all(kinds == [1] for kinds in got["Adam"])

    def test_rates_that_cannot_be_set_are_refused(self, any_job):
        for got in any_job.of("rates_that_cannot_be_set"):
            assert got["schedule"][0] == got["none"][0] == got["steps"][0] == USAGE
            assert "the optimizer has ExponentialDecay for it" in got["schedule"][1]
            assert "needs initial_lr" in got["none"][1]
            assert got["steps"][1].endswith("give it steps_per_epoch")
            assert got["steps given"] is None


class Files:
    """Checkpoints."""

    def test_the_file_is_complete_when_ranks_go_on(self, any_job):
        answers = any_job.of("the_best_model_is_saved_once")
        assert equal([digest for answer in answers for digest in answer])

    def test_only_what_is_better_on_average_is_saved(self, any_job):
        saved = [True, any_job.size == 1, any_job.size > 1, any_job.size > 1]
        for answer in any_job.of("only_what_is_better_is_saved"):
            assert answer == [saved, 3.0 if any_job.size == 1 else 3.4]

    def test_all_ranks_learn_that_it_could_not_be_written(self, any_job):
        answers = any_job.of("a_failure_to_write_reaches_all")
        assert answers[0][0][0] == "NotADirectoryError"
        for rank, ((kind, message), alive) in enumerate(answers[1:], 1):
            assert kind == "CollectiveError"
            assert message.startswith(f"rank {rank}: rank 0 could not save the model to 'a_file/be")
            assert alive == list(range(any_job.size))

    def test_the_root_alone_may_have_the_callback(self, any_job):
        assert all(any_job.of("a_checkpoint_on_the_root_alone"))

    def test_a_missing_file_name_is_told(self, any_job):
        for kind, message in any_job.of("a_checkpoint_without_a_file"):
            assert kind == USAGE
            assert "has no file to save to" in message


class TestKeras(Beginnings, Epochs, Rates, Files):
    @pytest.fixture
    def any_job(self, keras_job):
        return keras_job

    def test_seeds_stay_each_ranks_own(self, any_job):
        answers = any_job.of("seeds_stay_apart")
        assert equal([weights for weights, _ in answers])
        assert len({str(state) for _, state in answers}) == any_job.size


class TestTfKeras(Beginnings, Epochs, Rates, Files):
    @pytest.fixture
    def any_job(self, legacy_job):
        return legacy_job

    def test_legacy_optimizers_are_broadcast_as_well(self, any_job):
        answers = any_job.of("legacy_optimizers_are_broadcast")
        assert equal(answers)
