"""When a job counts as hung."""

from __future__ import annotations

import os
import time

from hypothesis import given
from hypothesis import strategies as st

from blinkrun.launcher.watch import HangWatch, group_cpu_seconds


def first_hung(watch: HangWatch, cpu_per_s: float, outputs_at_s: tuple[float, ...] = ()) -> float:
    """Return the time of the first sample that says hung, up to 100 s; infinite if none."""
    for step in range(1000):
        now_s = step * 0.1
        num_outputs = sum(at_s <= now_s for at_s in outputs_at_s)
        if watch.is_hung(now_s, cpu_per_s * now_s, num_outputs):
            return now_s
    return float("inf")


def test_a_job_that_stands_still_is_hung_after_the_timeout() -> None:
    assert 4 <= first_hung(HangWatch(4), cpu_per_s=0.001) <= 6
    assert first_hung(HangWatch(4), cpu_per_s=0.5) == float("inf")


def test_output_starts_the_time_anew() -> None:
    assert 7 <= first_hung(HangWatch(4), cpu_per_s=0, outputs_at_s=(1.0, 3.0)) <= 9


def test_a_process_that_ends_is_movement() -> None:
    watch = HangWatch(1)
    seen = [watch.is_hung(step, cpu_s, 0) for step, cpu_s in enumerate([9, 9, 4, 4, 4])]
    assert seen == [False, False, False, False, True]


@given(st.floats(0.01, 1000))
def test_it_never_fires_before_the_timeout(timeout_s: float) -> None:
    watch = HangWatch(timeout_s)
    assert not watch.is_hung(0.0, 0.0, 0)
    assert not watch.is_hung(timeout_s, 0.0, 0)
    assert watch.is_hung(2 * timeout_s + 1, 0.0, 0)
    assert 0.1 <= watch.interval_s <= 5


def test_cpu_time_of_a_group_is_counted() -> None:
    before_s = group_cpu_seconds({os.getpgrp()})
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    assert group_cpu_seconds({os.getpgrp()}) >= before_s + 0.03
    assert group_cpu_seconds(set()) == 0
