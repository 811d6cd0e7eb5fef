"""Work on all cores: in order, told as it comes, errors passed on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from blinkrun.errors import UsageError
from blinkrun.paper import pool
from blinkrun.units import format_size, parse_size


def test_results_come_in_the_order_of_the_items():
    assert pool.mapped(parse_size, ["3", "1K", "2"]) == [3, 1024, 2]


def test_it_tells_how_far_it_is():
    told = []
    pool.mapped(parse_size, ["1", "2", "3"], said=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_an_error_is_that_of_the_item():
    with pytest.raises(UsageError, match="'x' is no size"):
        pool.mapped(parse_size, ["1", "x", "2"])


def test_one_core_starts_no_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(pool.multiprocessing, "get_context", None)  # would fail if called
    assert pool.mapped(format_size, [1024, 5]) == ["1 KiB", "5 B"]


def test_processes_end_with_their_caller_however_it_ends():
    """A caller that is killed cannot clean up; nothing is left all the same."""
    code = (
        "import os, sys, time\n"
        "from blinkrun.paper.pool import mapped\n"
        "if __name__ == '__main__':\n"
        "    def said(done, total):\n"
        "        print(children(os.getpid()), flush=True)\n"
        "    def children(pid):\n"
        "        return open(f'/proc/{pid}/task/{pid}/children').read()\n"
        "    mapped(time.sleep, [0.0, 60.0, 60.0], said=said)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as caller:
        children = [int(pid) for pid in caller.stdout.readline().split()]
        caller.kill()
    assert len(children) >= 2
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid):
    """Whether a process does anything; one that is over waits to be collected at most."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_nothing_is_nothing():
    assert pool.mapped(parse_size, []) == []
