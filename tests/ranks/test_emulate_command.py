"""`blinkrun bench --emulate` on real ranks: right, at the pace that was asked for, and endable."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.launching import DEADLINE_S, POLL_S, Launch, commandline, launch, marked

pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")


@pytest.fixture
def environ(plan_cache: Path) -> dict[str, str]:
    """Plans of this run only."""
    return {"BLINKRUN_CACHE_DIR": str(plan_cache)}


def emulated(words: str, tmp_path: Path, environ: dict[str, str]) -> dict[str, Any]:
    """Return what ``bench --emulate words --json`` writes."""
    path = tmp_path / "out.json"
    argv = ["bench", "--emulate", *words.split(), "--json", str(path)]
    ended = launch(argv, cwd=tmp_path, environ=environ)
    assert (ended.code, ended.err) == (0, "")
    assert "# Wrong elements: 0 OK" in ended.out
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def check_pace(result: dict[str, Any]) -> None:
    """Hold trees and rings to the rate of the links, which nothing outruns, and to the simulator.

    Calls take so long that what a busy machine adds, some 10 ms until a sleeper has a core, is
    little of it.
    """
    for row in result["rows"]:
        assert row["algbw_gb_per_s"] <= row["bound_gb_per_s"]
        for way in (row, *row["peers"].values()):
            assert 0.9 < way["emulated_over_simulated"] < 1.15, way


def test_trees_and_rings_keep_the_pace_of_an_allocation_without_a_ring(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """GPUs 1, 4, 5 and 7 form no NVLink ring: the ring library gets a part of PCIe."""
    words = "dgx-1v --gpus 1,4,5,7 --scale 6000 --against ring --sizes 1M --rounds 1"
    result = emulated(words, tmp_path, environ)
    (row,) = result["rows"]
    assert result["ranks"] == 4
    assert row["algbw_gb_per_s"] > 5 * row["peers"]["ring"]["algbw_gb_per_s"]
    check_pace(result)


@pytest.mark.parametrize("collective", ["reduce", "allgather", "reducescatter"])
def test_every_collective_is_right_and_in_time(
    tmp_path: Path, environ: dict[str, str], collective: str
) -> None:
    root = " --root 4" if collective == "reduce" else ""
    words = f"dgx-1v --gpus 1,4,5 --scale 2500 --sizes 1536K --rounds 1 --collective {collective}"
    check_pace(emulated(f"{words} --against ring{root}", tmp_path, environ))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "machine"), [("allreduce", "dgx-1v"), ("broadcast", "dgx-1p")]
)
def test_eight_ranks_on_few_cores_keep_the_pace(
    tmp_path: Path, environ: dict[str, str], machine: str, collective: str
) -> None:
    sizes = f"--sizes 4M --rounds 1 --collective {collective}"
    words = f"{machine} --scale 4000 --against ring {sizes}"
    result = emulated(words, tmp_path, environ)
    assert result["ranks"] == 8
    check_pace(result)


def test_links_of_nvlink_alone_carry_all(tmp_path: Path, environ: dict[str, str]) -> None:
    """1 and 4 share no NVLink: without PCIe they have not even each other's memory."""
    words = "dgx-1v --gpus 1,5,4 --links nvlink --scale 10000 --sizes 512K"
    result = emulated(words, tmp_path, environ)
    assert result["emulated"]["links"] == "nvlink"
    check_pace(result)


def test_ctrl_c_leaves_nothing_running(tmp_path: Path, environ: dict[str, str]) -> None:
    """A call that takes minutes; `end` looks for what is left."""
    words = "bench --emulate dgx-1v --gpus 1,4,5,7 --scale 100000 --sizes 16M --chunk 64K"
    job = Launch(words.split(), cwd=tmp_path, environ=environ)
    deadline_s = time.monotonic() + DEADLINE_S / 2
    while sum("-m blinkrun.bench.main" in commandline(pid) for pid in marked(job.mark)) < 4:
        assert time.monotonic() < deadline_s, "no ranks came up"
        assert Path(f"/proc/{job.pid}").exists(), job.end()
        time.sleep(POLL_S)
    job.signal(signal.SIGINT)
    ended = job.end()
    assert (ended.code, ended.last_words) == (130, "blinkrun: ended by SIGINT\n")
