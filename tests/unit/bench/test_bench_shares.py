import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.bench.shares import by_difference, covered, read_spans, spans
from blinkrun.engine.timeline import Timeline

EDGES = st.integers(0, 40)
SPANS = st.lists(st.tuples(EDGES, EDGES).map(sorted).map(tuple), max_size=8)


@given(SPANS, st.tuples(EDGES, EDGES).map(sorted).map(tuple))
def test_what_is_covered_is_counted_once_and_only_in_the_window(found, window):
    moments = [
        moment
        for moment in range(window[0], window[1])
        if any(start <= moment < stop for start, stop in found)
    ]
    assert covered(found, window) == len(moments)


def event(phase, pid, ts, **more):
    return {"ph": phase, "pid": pid, "ts": ts, **more}


def test_activities_inside_others_and_those_that_are_open_do_not_count():
    events = [
        event("B", 1, 10),
        event("B", 2, 11),
        event("X", 1, 12, dur=100),
        event("B", 1, 12),
        event("E", 1, 13),
        event("E", 1, 20),
        event("E", 3, 21),
    ]
    assert spans(events) == [(10.0, 20.0)]


@pytest.mark.parametrize("wrap", [list, lambda events: {"traceEvents": events}])
def test_both_forms_of_a_trace_are_read(tmp_path, wrap):
    path = tmp_path / "trace.json"
    epoch = event("M", 0, 0, args={"start_time_since_epoch_in_micros": 1000})
    path.write_text(json.dumps(wrap([epoch, event("B", 1, 5), event("E", 1, 7)])))
    assert read_spans(path) == [(1005.0, 1007.0)]


def test_a_timeline_of_the_engine_is_understood(tmp_path):
    path = tmp_path / "timeline.json"
    timeline = Timeline(str(path), rank=0)
    start_ns = timeline._start_ns
    timeline.begin("gradient", "NEGOTIATE_ALLREDUCE", at_ns=start_ns + 1_000_000)
    timeline.end("gradient", at_ns=start_ns + 2_000_000)
    timeline.begin("gradient", "ALLREDUCE", at_ns=start_ns + 2_000_000)
    timeline.end("gradient", at_ns=start_ns + 5_000_000)
    timeline.close()
    found = read_spans(path)
    assert [stop - start for start, stop in found] == pytest.approx([1000, 3000], abs=1)
    assert found[0][0] > 1e15  # microseconds since the epoch


def test_a_step_that_takes_a_quarter_longer_is_a_fifth_communication():
    assert by_difference(1.25, 1.0) == pytest.approx(0.2)
