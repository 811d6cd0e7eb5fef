import json
import os
import subprocess
import sys
import threading
import time

import pytest

from blinkrun.engine.request import Kind
from blinkrun.engine.stats import Stats
from blinkrun.engine.timeline import PACK, QUEUE, UNPACK, Timeline, negotiating, tree
from blinkrun.errors import UsageError


def events(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def test_a_tensor_is_a_process_and_its_activities_nest(tmp_path):
    path = str(tmp_path / "timeline.json")
    timeline = Timeline(path, 3)
    start_ns = time.monotonic_ns()
    timeline.begin('grad "0"', negotiating(Kind.ALLREDUCE), at_ns=start_ns)
    timeline.end('grad "0"', at_ns=start_ns + 1500)
    timeline.begin('grad "0"', "ALLREDUCE", at_ns=start_ns + 1500, args={"bytes": 8})
    for name in (QUEUE, PACK, UNPACK):
        timeline.span('grad "0"', name, start_ns + 1600, start_ns + 1700)
    timeline.span('grad "0"', tree(1), start_ns + 1600, start_ns + 1700, lane=2)
    timeline.end('grad "0"', at_ns=start_ns + 2000)
    timeline.begin("other", "ALLREDUCE", at_ns=start_ns)
    timeline.close()
    found = events(path)
    names = {e["pid"]: e["args"]["name"] for e in found if e.get("name") == "process_name"}
    assert names == {0: "rank 3", 1: 'grad "0"', 2: "other"}
    assert abs(found[0]["args"]["start_time_since_epoch_in_micros"] / 1e6 - time.time()) < 60
    traced = [e for e in found if e["ph"] != "M"]
    assert [e["ph"] for e in traced] == list("BEBXXXXEB")
    assert [e["name"] for e in traced if e["ph"] == "B"] == [
        "NEGOTIATE_ALLREDUCE",
        "ALLREDUCE",
        "ALLREDUCE",
    ]
    assert traced[1]["ts"] - traced[0]["ts"] == pytest.approx(1.5)
    assert traced[3]["dur"] == pytest.approx(0.1)
    assert (traced[6]["name"], traced[6]["tid"]) == ("tree 1", 2)
    assert traced[2]["args"] == {"bytes": 8}


def test_cycles_are_marked_if_that_is_wanted(tmp_path):
    for mark in (False, True):
        path = str(tmp_path / f"{mark}.json")
        timeline = Timeline(path, 0, mark_cycles=mark)
        timeline.cycle()
        timeline.close()
        assert [e["name"] for e in events(path) if e["ph"] == "i"] == ["CYCLE_START"] * mark


def test_the_file_is_whole_whenever_it_is_read(tmp_path):
    path = str(tmp_path / "timeline.json")
    timeline = Timeline(path, 0)
    sizes = set()
    for number in range(3000):
        timeline.begin(f"t{number % 7}", "ALLREDUCE")
        timeline.end(f"t{number % 7}")
        if number % 100 == 0:
            sizes.add(len(events(path)))
    assert len(sizes) > 3  # it grows while it is written
    timeline.close()
    assert len([e for e in events(path) if e["ph"] in "BE"]) == 6000


def test_events_are_held_back_for_a_moment_only(tmp_path, monkeypatch):
    path = str(tmp_path / "timeline.json")
    timeline = Timeline(path, 0)
    timeline.begin("x", "ALLREDUCE")
    assert len(events(path)) == 2
    timeline.tick()
    assert len(events(path)) == 2
    later_ns = time.monotonic_ns() + 10**9
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    timeline.tick()
    assert events(path)[-1]["name"] == "ALLREDUCE"
    timeline.close()


def test_timelines_follow_each_other_also_into_the_same_file(tmp_path):
    first, second = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    for path, name in [(first, "one"), (second, "two"), (first, "three")]:
        timeline = Timeline(path, 0)
        timeline.begin(name, "ALLREDUCE")
        timeline.close()
        timeline.begin("late", "ALLREDUCE")  # after the end: ignored
        timeline.tick()
        timeline.close()
    assert [e["args"]["name"] for e in events(first) if e.get("name") == "process_name"][1:] == [
        "three"
    ]
    assert [e["args"]["name"] for e in events(second) if e.get("name") == "process_name"][1:] == [
        "two"
    ]


def test_threads_may_write_at_the_same_time(tmp_path):
    path = str(tmp_path / "timeline.json")
    timeline = Timeline(path, 0)

    def write(name):
        for _ in range(700):
            timeline.begin(name, "ALLREDUCE")
            timeline.end(name)

    threads = [threading.Thread(target=write, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    timeline.close()
    by_tensor = {}
    for event in events(path):
        if event["ph"] in "BE":
            by_tensor.setdefault(event["pid"], []).append(event["ph"])
    assert list(by_tensor.values()) == [["B", "E"] * 700] * 4


def test_a_job_that_is_killed_leaves_a_whole_file(tmp_path):
    path = str(tmp_path / "timeline.json")
    script = (
        "import signal, sys\n"
        "from blinkrun.engine.timeline import Timeline\n"
        "timeline = Timeline(sys.argv[1], 0)\n"
        "for _ in range(3000):\n"
        "    timeline.begin('x', 'ALLREDUCE')\n"
        "    timeline.end('x')\n"
        "print('written', flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, "-c", script, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "written\n"
        finally:
            process.kill()
            process.wait(20)
    assert len([event for event in events(path) if event["ph"] in "BE"]) > 5000
    assert os.listdir(tmp_path) == ["timeline.json"]


def test_a_device_stays_what_it_is():
    timeline = Timeline(os.devnull, 0)
    timeline.begin("x", "ALLREDUCE")
    timeline.close()
    assert not os.path.isfile(os.devnull)


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        Timeline(str(tmp_path / "missing" / "timeline.json"), 0)


@pytest.mark.parametrize("calls", [1, 2, 30])
def test_a_full_disk_ends_the_timeline_and_not_the_training(tmp_path, monkeypatch, capsys, calls):
    path = str(tmp_path / "timeline.json")
    timeline = Timeline(path, 2)
    write = os.pwrite
    left = iter([True] * calls)

    def until_full(file, text, offset):
        return write(file, text if next(left, False) else text[: len(text) // 2], offset)

    monkeypatch.setattr(os, "pwrite", until_full)
    for _ in range(4000):
        timeline.begin("x", "ALLREDUCE")
    timeline.close()
    assert len(events(path)) < 4000
    assert capsys.readouterr().err.count("[rank 2] timeline") == 1
    assert os.listdir(tmp_path) == ["timeline.json"]


def test_a_disk_that_is_full_at_the_end_leaves_what_was_written(tmp_path, monkeypatch, capsys):
    path = str(tmp_path / "timeline.json")
    timeline = Timeline(path, 2)
    for _ in range(1000):
        timeline.begin("x", "ALLREDUCE")
    before = len(events(path))
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    timeline.close()
    assert len(events(path)) == before > 500
    assert capsys.readouterr().err.count("[rank 2] timeline") >= 1
    assert os.listdir(tmp_path) == ["timeline.json"]


def test_the_summary_is_one_line():
    stats = Stats()
    stats.add_requests(3000)
    stats.add_batch(600_000_000, 2_000_000_000)
    stats.add_batch(400_000_000, 1_000_000_000, calls=3, is_overlapped=True)
    stats.add_wait(1_500_000_000)
    assert (stats.batches, stats.calls, stats.overlap) == (2, 4, pytest.approx(1 / 3))
    assert stats.line() == (
        "3,000 requests in 4 calls, 1,000.0 MB; 3.00 s in communication (33 % behind computation),"
        " 1.50 s waited"
    )
    assert "0 requests" in Stats().line()
