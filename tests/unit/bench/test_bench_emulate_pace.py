import pytest
from support.emulated import job_for

from blinkrun.bench import emulate_pace
from blinkrun.bench.emulate_pace import check_pace, scale_for, shortest_ns
from blinkrun.errors import UsageError
from blinkrun.planner.make import make_plan


@pytest.fixture(scope="module")
def job():
    return job_for("dgx-1v --gpus 0,1,4 --against ring --sizes 64K,512K")


@pytest.fixture(scope="module")
def plan(job):
    return make_plan(job.topology)


def test_every_program_is_tried_on_this_machine(job, plan):
    call = job.calls[1]
    ways = job.ways(call, job.ring_programs())
    times = shortest_ns(job, call, ways, plan)
    assert len(times) == 2
    # no more than the machine's own links need, by far, and no less than memory
    assert all(1_000 < time_ns < 1_000_000_000 for time_ns in times)


def test_there_is_memory_for_the_largest_size_that_is_tried():
    size = emulate_pace.LARGEST_BYTES
    job = job_for(f"dgx-1v --gpus 0,1 --collective allgather --chunk 1M --sizes {size}")
    ways = job.ways(job.calls[0], {})
    assert len(shortest_ns(job, job.calls[0], ways, make_plan(job.topology))) == 1


def test_a_scale_that_gives_links_time_enough_is_kept():
    assert scale_for(1000, least_ns=10, links_ns=15) == 1000


@pytest.mark.parametrize(
    ("scale", "least_ns", "links_ns", "needed"),
    [(1000, 10, 14, 1100), (1, 1000, 3, 500), (10, 101, 100, 16), (7, 9, 10, 10)],
)
def test_the_scale_that_is_named_would_do(scale, least_ns, links_ns, needed):
    assert scale_for(scale, least_ns=least_ns, links_ns=links_ns) == needed
    slower = links_ns * needed // scale
    assert scale_for(needed, least_ns=least_ns, links_ns=slower) in range(needed, needed + 2)


def test_a_machine_that_is_too_slow_is_told_what_scale_would_do(job, plan, monkeypatch):
    calls = []

    def slow(job, call, ways, plan):
        calls.append(call.size_bytes)
        return [way.simulated_ns * factor for way, factor in zip(ways, (1, 3), strict=True)]

    monkeypatch.setattr(emulate_pace, "shortest_ns", slow)
    with pytest.raises(UsageError) as caught:
        check_pace(job, plan)
    said = str(caught.value)
    assert said.startswith("this machine cannot pace dgx-1v at --scale 1000: 512 KiB keep it busy ")
    assert said.endswith("; try --scale 4600")  # three times too slow, and half as much again
    assert "\n" not in said
    assert calls == [512 << 10]  # the larger size: a start and an end say little


def test_a_machine_that_is_quick_enough_says_nothing(job, plan, monkeypatch):
    monkeypatch.setattr(
        emulate_pace, "shortest_ns", lambda _job, _call, ways, _plan: [1] * len(ways)
    )
    check_pace(job, plan)


def test_sizes_for_which_there_is_no_memory_are_not_tried(plan, monkeypatch):
    monkeypatch.setattr(emulate_pace, "LARGEST_BYTES", 1000)
    monkeypatch.setattr(emulate_pace, "shortest_ns", lambda *_: pytest.fail("tried"))
    check_pace(job_for("dgx-1v --gpus 0,1,4 --sizes 64K"), plan)


def test_what_fails_in_a_thread_is_raised(job, plan, monkeypatch):
    def broken(*_):
        raise ValueError("no memory")

    monkeypatch.setattr(emulate_pace, "Blinkrun", broken)
    call = job.calls[0]
    with pytest.raises(ValueError, match="no memory"):
        shortest_ns(job, call, job.ways(call, job.ring_programs()), plan)
