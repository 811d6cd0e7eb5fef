"""The simulator against the emulator: commands, what becomes of their results, of failures."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from blinkrun.errors import InternalError, LaunchError, UsageError
from blinkrun.paper import subprocesses
from blinkrun.paper.emulate import Emulation, emulated, emulations
from blinkrun.paper.subprocesses import run_until
from blinkrun.types import Collective

ONE = Emulation("dgx-1v", (1, 4, 5, 7), Collective.BROADCAST)


def result(blink_us, ring_us, wrong=0):
    """What bench writes, as far as it is read."""
    ring = {"time_us": ring_us, "simulated_us": 400.0, "wrong": 0}
    row = {"size_bytes": 4 << 20, "time_us": blink_us, "simulated_us": 100.0, "wrong": wrong}
    return {"rows": [row | {"peers": {"ring": ring}}]}


def test_every_allocation_runs_once_for_each_collective():
    every = emulations()
    assert len(set(every)) == 120
    assert sum(one.machine == "dgx-1p" for one in every) == 28


def test_a_broadcast_starts_at_the_root_with_the_best_rate(tmp_path):
    """From GPU 4 the pair 0, 1 is reached over 3 lanes, from 5 over fewer."""
    words = Emulation("dgx-1v", (5, 0, 1, 4, 7), Collective.BROADCAST).arguments(
        tmp_path / "b", tmp_path / "r"
    )
    assert words[words.index("--gpus") + 1] == "5,0,1,4,7"
    assert words[words.index("--root") + 1] in "0147"
    assert "--root" not in Emulation("dgx-1v", (5, 6, 7), Collective.ALLREDUCE).arguments(
        tmp_path / "b", tmp_path / "r"
    )


def test_rows_hold_both_instruments():
    found = emulated(bench=lambda _: result(110.0, 330.0), wanted=[ONE])
    (row,) = found.rows
    assert (row["ratio"], row["ring_ratio"]) == (1.1, 0.825)
    assert row["emulated_blink_over_ring"] == 3.0
    assert row["simulated_blink_over_ring"] == 4.0
    assert found.summary["near_pct"] == 100.0
    assert found.summary["ring_near_pct"] == 0.0
    assert [goal.is_met for goal in found.goals] == [True, False]


def test_wrong_elements_are_told():
    found = emulated(bench=lambda _: result(110.0, 330.0, wrong=3), wanted=[ONE, ONE])
    assert found.summary["wrong"] == 6
    assert "6 elements were wrong" in found.how


@pytest.mark.parametrize("broken", [{}, {"rows": []}, {"rows": [{"time_us": 1.0}]}, []])
def test_a_result_of_another_form_is_named(broken):
    with pytest.raises(InternalError, match="broadcast on GPUs 1,4,5,7 of dgx-1v: what bench"):
        emulated(bench=lambda _: broken, wanted=[ONE])


def test_a_command_that_calls_its_input_wrong_is_quoted():
    with pytest.raises(UsageError, match=r"^this: plan: no machine 'nowhere'"):
        run_until(["plan", "allreduce", "--topology", "nowhere"], 60, "this")


def python(monkeypatch, code):
    monkeypatch.setattr(subprocesses, "COMMAND", (sys.executable, "-c", code))


def test_a_command_that_fails_says_what_it_said_last(monkeypatch):
    python(monkeypatch, "import sys; sys.exit('first\\nlast')")
    with pytest.raises(LaunchError, match=r"^this: ended with 1: last$"):
        run_until([], 60, "this")


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(monkeypatch, tmp_path):
    """Also if it does not listen."""
    pids = tmp_path / "pids"
    python(
        monkeypatch,
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(60)\n",
    )
    monkeypatch.setattr(subprocesses, "_GRACE_S", 0.1)
    with pytest.raises(LaunchError, match=r"^this: not through after 1 s, ended$"):
        run_until([], 1.0, "this")
    parent, child = map(int, pids.read_text().split())
    assert not is_running(parent)
    ends_s = time.monotonic() + 10
    while is_running(child) and time.monotonic() < ends_s:  # killed, but not yet seen to
        threading.Event().wait(0.001)
    assert not is_running(child)


def is_running(pid):
    """Whether a process does anything; one that is over waits to be collected at most."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_ctrl_c_ends_the_command(monkeypatch):
    python(monkeypatch, "import time; time.sleep(60)")
    started = []

    class Interrupted(subprocesses.subprocess.Popen):
        def communicate(self, *_, **__):
            started.append(self.pid)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocesses.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_until([], 60, "this")
    assert not is_running(started[0])
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)
