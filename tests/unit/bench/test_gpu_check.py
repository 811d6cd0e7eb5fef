"""`make gpu-check` on a fake device: what it finds, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import fake_check

from blinkrun.bench import gpu_check, gpu_check_cases, gpu_check_report
from blinkrun.bench.gpu_check_report import Part
from blinkrun.bench.gpu_check_worker import run_processes
from blinkrun.types import Collective, DType, Op

TESTS = Path(__file__).parents[2]
FAKE = ["--opener", "support.fake_check:open_device", "--peer", "support.fake_check:Peer"]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine of this test's own; the script's settings end with the test."""
    for name in ("BLINKRUN_GPUS_PER_RANK", "BLINKRUN_CACHE_DIR", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    fake_check.machine.cache_clear()
    yield
    machine = fake_check.machine()
    leaks = machine.leaks()
    machine.close()
    assert leaks == [], leaks


def check(out: Path, *options: str) -> tuple[int, dict[str, Part]]:
    """Run the script; return its exit code and what it wrote, by part."""
    code = gpu_check.main(["--quick", "--out", str(out), *FAKE, *options])
    written = json.loads((out / "gpu_check.json").read_text())
    return code, {part["name"]: Part(**part) for part in written["parts"]}


def test_ranks_of_one_process_and_times(tmp_path: Path):
    code, parts = check(tmp_path, "--parts", "compile,loopback-2,times-2")
    assert code == 0
    assert {part.state for part in parts.values()} == {"passed"}
    assert parts["loopback-2"].values["compared"] > 100_000
    rows = parts["times-2"].values["rows"]
    assert [row["size_bytes"] for row in rows] == [1024, 4096, 1 << 20]
    assert all(row["allreduce_us"] > row["enqueue_us"] > 0 for row in rows)
    page = (tmp_path / "gpu_check.md").read_text()
    assert "| wrong elements | none | 0 | met |" in page
    assert "Fake device" in page


def test_times_without_sums_of_cupy(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """It compiles them with headers of CUDA, which need not be there."""
    code, parts = check(tmp_path, "--parts", "times-2", "--peer", "support.fake_check:NoSums")
    assert code == 0
    assert {row["sum_us"] for row in parts["times-2"].values["rows"]} == {0.0}
    assert "no sums by cupy: no headers" in capsys.readouterr().err
    assert "| - |" in (tmp_path / "gpu_check.md").read_text()


def test_every_stream_has_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kernels of ranks that are threads must not come to lie one behind the other."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    check(tmp_path, "--parts", "compile")
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_whole_script(tmp_path: Path):
    pytest.importorskip("torch", reason="torch is not installed")
    code, parts = check(tmp_path, "--budget", "300")
    assert code == 0, parts
    for name, part in parts.items():
        assert part.state == ("left out" if name.endswith("check") else "passed"), part
    assert parts["training"].values["last_loss"] < parts["training"].values["first_loss"]


def test_wrong_elements_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    right = gpu_check_cases.expected

    def off(plan, case, inputs):
        wanted = right(plan, case, inputs)
        if (case.collective, case.dtype, case.op) == (Collective.ALLREDUCE, DType.INT32, Op.MAX):
            wanted[1] = np.concatenate([wanted[1][:-1], wanted[1][-1:] + 1])
        return wanted

    monkeypatch.setattr(gpu_check_cases, "expected", off)
    code, parts = check(tmp_path, "--parts", "loopback-2")
    assert code == 1
    assert parts["loopback-2"].state == "failed"
    wrong = parts["loopback-2"].values["wrong"]
    assert 1 <= sum(wrong.values()) <= 2
    assert all(name.startswith("allreduce MAX int32") for name in wrong)
    assert "missed" in (tmp_path / "gpu_check.md").read_text()


def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path):
    fake_check.machine().fail("cuLaunchKernel", rank=1, reason="too many resources requested")
    code, parts = check(tmp_path, "--parts", "loopback-2,compile")
    assert code == 1
    assert parts["loopback-2"].state == "failed"
    assert "too many resources requested" in parts["loopback-2"].told
    assert parts["compile"].state == "passed"


def test_no_device_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    opener = ["--opener", "support.fake_check:open_none"]
    assert gpu_check.main(["--out", str(tmp_path), *opener]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert told.err.startswith("gpu-check: no device to check: ")
    assert told.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_when_time_is_up_the_rest_is_left_out():
    setting = gpu_check.Setting(FAKE[1], FAKE[3])
    said: list[str] = []
    parts = gpu_check.run_parts(setting, ["times-2", "loopback-8"], budget_s=-1, say=said.append)
    assert [part.state for part in parts] == ["left out", "left out"]
    assert len(said) == 2


def test_goals_say_what_was_not_measured():
    small = {"size_bytes": 4096, "allreduce_us": 20.0, "copy_us": 5.0}
    large = {"size_bytes": 256 << 20, "allreduce_us": 1000.0, "copy_us": 850.0}
    rows = [{"enqueue_us": 3.0, "sum_us": 4.0, **row} for row in (small, large)]
    values = {"rows": rows, "graph_us": 13.0}
    parts = [
        Part("times-2", "passed", "", values={"ranks": 2, **values}),
        Part("times-4", "passed", "", values={"ranks": 4, **values}),
        Part("loopback-2", "left out", "no time"),
    ]
    found = gpu_check_report.goals(parts)
    assert [goal.is_met for goal in found] == [True, True, False, None]
    assert [goal.measured for goal in found] == ["85 %", "20.0 us", "13.0 us", None]
    page = gpu_check_report.page(
        {"name": "X", "capability": (9, 0), "driver": 1, "runtime": 1}, "2026-01-01", parts
    )
    assert "not measured" in page


@pytest.mark.parametrize("size", [2, 4, 8])
def test_cases_are_of_every_kind(size: int):
    found = list(gpu_check_cases.cases(size))
    reducing = {(each.dtype, each.op) for each in found if each.collective is Collective.ALLREDUCE}
    assert reducing == {(d, o) for d in DType for o in Op} - {(DType.BOOL, Op.AVERAGE)}
    assert {each.collective for each in found} == set(Collective) - {Collective.BARRIER}
    assert {each.place for each in found} == set(gpu_check_cases.Place)
    assert {each.count for each in found} == set(gpu_check_cases.SIZES)
    assert {each.in_place for each in found} == {False, True}
    assert {each.offset for each in found} == {0, 1, 2, 3, 4}
    assert any(each.bits for each in found) == (size == 2)


@pytest.mark.parametrize(
    ("code", "said", "state"),
    [
        (0, "========= ERROR SUMMARY: 0 errors", "passed"),
        (9, "========= ERROR SUMMARY: 3 errors", "failed"),
        (1, "loopback-2 failed CollectiveTimeoutError: rank 0 waited 30 s", "left out"),
        (1, "loopback-2 failed: 3 of 100 elements are wrong", "failed"),
    ],
)
def test_what_the_sanitizer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str, state: str
):
    """In its place stands a program that takes the same options and runs nothing."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f'#!/bin/sh\ncase "$*" in *--tool\\ memcheck*gpu_check*--cache*) echo "{said}";'
                    f" exit {code};; esac\nexit 3\n")  # fmt: skip
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    _, parts = check(tmp_path / "out", "--parts", "memcheck")
    assert parts["memcheck"].state == state


@pytest.mark.parametrize(
    ("run", "deadline_s", "told"),
    [
        ("math:sqrt", 60, r"process of rank 0: exit code 1: .*TypeError"),
        ("support.fake_check:hang", 3, r"process of rank 0: not through in time"),
    ],
)
def test_a_process_that_fails_or_hangs_is_named_and_none_is_left(
    run: str, deadline_s: float, told: str
):
    before = set(children())
    with pytest.raises(RuntimeError, match=re.compile(told, re.DOTALL)):
        run_processes(2, {"run": run}, deadline_s=deadline_s)
    assert set(children()) <= before


def children() -> list[str]:
    """Return the processes that this one has started and not waited for."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
