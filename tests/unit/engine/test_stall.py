import threading

from support.negotiators import tensor

from blinkrun.engine.events import Pending
from blinkrun.engine.stacks import describe_threads
from blinkrun.engine.stall import CONFLICT_S, END, WARN, Report, StallWatch, report_text


def pending(number, name="grad", *, have=(0, 2), missing=(1,), joined=(), conflict="", **more):
    request = tensor(name, 2, where="train.py:31", **more)
    return Pending(request, have, missing, joined, number, conflict)


def looks(watch, *steps):
    return [[(r.kind, r.pending.number) for r in watch.look(now, seen)] for now, seen in steps]


def test_a_request_is_reported_once_in_each_period():
    one = pending(1)
    times = [0, 59, 60, 61, 119, 120, 200, 239, 240]
    found = looks(StallWatch(60.0), *((now, [one]) for now in times))
    assert [now for now, reports in zip(times, found, strict=True) if reports] == [
        60,
        120,
        200,
        240,
    ]


def test_each_request_has_its_own_age():
    first, second = pending(1), pending(2)
    watch = StallWatch(60.0)
    found = looks(
        watch, (0, [first]), (50, [first, second]), (60, [first, second]), (110, [second])
    )
    assert found == [[], [], [(WARN, 1)], [(WARN, 2)]]


def test_a_name_that_comes_again_is_young_again():
    found = looks(
        StallWatch(60.0), (0, [pending(1)]), (50, []), (70, [pending(2)]), (120, [pending(2)])
    )
    assert found == [[], [], [], []]


def test_the_job_ends_after_the_shutdown_time():
    one = pending(1)
    found = looks(StallWatch(60.0, 100.0), (0, [one]), (60, [one]), (99, [one]), (100, [one]))
    assert found == [[], [(WARN, 1)], [], [(END, 1)]]


def test_zero_means_never():
    one = pending(1)
    assert looks(StallWatch(0.0, 0.0), (0, [one]), (1e9, [one])) == [[], []]
    assert looks(StallWatch(0.0, 5.0), (0, [one]), (4.9, [one]), (5, [one])) == [[], [], [(END, 1)]]


def test_sets_that_wait_for_each_other_get_a_moment():
    watch = StallWatch(60.0)
    torn, fine = pending(1, conflict="two sets"), pending(2)
    assert watch.conflicts(0.0, [torn, fine]) == []
    assert watch.conflicts(CONFLICT_S - 0.1, [torn, fine]) == []
    assert watch.conflicts(CONFLICT_S, [torn, fine]) == [torn]
    assert watch.conflicts(CONFLICT_S + 1, [fine]) == []
    assert watch.conflicts(CONFLICT_S + 2, [torn]) == []  # it begins anew


def test_the_report_says_who_waits_for_whom_and_what_those_do():
    report = Report(WARN, pending(1, have=(0, 2), missing=(1, 3, 4), joined=(5,)), 61.2)
    text = report_text([report], {1: "MainThread:\n  train.py:7 in load", 3: None})
    assert text.splitlines() == [
        "allreduce 'grad' has waited 61 s for ranks 1, 3, 4; ranks 0, 2 have called it at"
        " train.py:31; joined: rank 5",
        "rank 1 is here:",
        "  MainThread:",
        "    train.py:7 in load",
        "rank 3: no answer within 2 s: it is stopped or computes outside Python",
        "rank 4: no answer within 2 s: it is stopped or computes outside Python",
    ]


def test_many_requests_that_wait_for_the_same_rank_are_not_all_listed():
    reports = [Report(WARN, pending(n, f"g{n}", process_set=2), 60.0) for n in range(200)]
    reports.append(Report(WARN, pending(900, "other", have=(1,), missing=(0,)), 60.0))
    lines = report_text(reports).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("allreduce 'g0' of process set 2 has waited 60 s for rank 1;")
    assert lines[3] == "... and 197 more, for the same ranks"
    assert lines[4].startswith("allreduce 'other' has waited 60 s for rank 0; rank 1 has called it")


class Parked:
    """A thread that waits in a function with a name to look for."""

    def __init__(self, name):
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.a_telling_name, args=(30,), name=name)

    def a_telling_name(self, depth):
        if depth:
            return self.a_telling_name(depth - 1)
        self.inside.set()
        return self.go_on.wait(20)

    def __enter__(self):
        self.thread.start()
        assert self.inside.wait(20)
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self.thread.join(20)


def test_stacks_show_the_main_thread_first_and_not_our_own():
    with Parked("loader"), Parked("blinkrun helper"):
        text = describe_threads(100_000)
        short = describe_threads(300)
    assert text.startswith("MainThread:")
    assert f"{__file__}:" in text
    assert "in test_stacks_show_the_main_thread_first_and_not_our_own" in text
    assert "in describe_threads" not in text
    assert "loader:" in text
    assert "in a_telling_name" in text
    assert "... " in text  # of a deep stack the innermost frames
    assert "helper" not in text
    assert len(short) < 400
    assert "more thread" in short
    assert "loader" not in short


def test_a_thread_that_hangs_shows_where():
    with Parked("loader"):
        lines = describe_threads(100_000).splitlines()
    after = lines[lines.index("loader:") :]
    assert any("in wait" in line for line in after)
    assert any("self.go_on.wait(20)" in line for line in after)


def test_a_report_names_hosts_where_there_are_several():
    report = Report(WARN, pending(1, missing=(1, 3, 5)), 61.0)
    text = report_text([report], {1: None, 3: "t", 5: None}, ["a", "a", "a", "b", "b", "b"])
    assert "for rank 1 on host a, ranks 3, 5 on host b; ranks 0, 2 have called it" in text
    assert "rank 3 on host b is here:" in text
    assert "rank 5 on host b: no answer" in text
