"""The mean of metrics over ranks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import MismatchError
from blinkrun.tf.keras.averages import averages

METRICS = st.dictionaries(st.sampled_from("abc"), st.floats(-1e6, 1e6), max_size=3)


@given(st.lists(METRICS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_mean_is_over_those_that_have_the_metric_in_any_order(everyone, random):
    ranks = list(range(len(everyone)))
    means = averages(everyone, ranks)
    assert list(means) == sorted({name for metrics in everyone for name in metrics})
    for name, mean in means.items():
        having = [metrics[name] for metrics in everyone if name in metrics]
        assert mean == pytest.approx(sum(having) / len(having), abs=1e-6)
    shuffled = []
    for metrics in everyone:
        items = list(metrics.items())
        random.shuffle(items)
        shuffled.append(dict(items))
    assert averages(shuffled, ranks) == means


def test_what_is_not_finite_stays_so():
    mean = averages(
        [{"a": math.nan, "b": math.inf, "c": math.inf}, {"a": 1, "b": 1, "c": -math.inf}], [0, 1]
    )
    assert math.isnan(mean["a"])
    assert mean["b"] == math.inf
    assert math.isnan(mean["c"])


def test_arrays_are_averaged_by_element_and_have_one_shape():
    mean = averages([{"a": np.array([1, 2])}, {"a": np.array([2, 4])}], [0, 1])
    assert mean["a"].tolist() == [1.5, 3.0]
    with pytest.raises(
        MismatchError, match=r"rank 7: metric 'a' has shape \(3,\), rank 5 has \(2,\)"
    ):
        averages([{}, {"a": np.zeros(2)}, {"a": np.zeros(3)}], [3, 5, 7])
