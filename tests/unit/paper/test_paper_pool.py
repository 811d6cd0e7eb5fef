"""Work on all cores: in order, told as it comes, errors passed on."""

from __future__ import annotations

import os

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


def test_nothing_is_nothing():
    assert pool.mapped(parse_size, []) == []
