"""Writing to a reader that leaves, and to a terminal that lacks letters."""

from __future__ import annotations

import io
import os
import sys

import pytest

from blinkrun.cli.figures import format_bytes, format_seconds, resource_names
from blinkrun.cli.output import emit
from blinkrun.cli.parsing import Parser
from blinkrun.errors import UsageError


def test_a_closed_pipe_is_silent(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    stream = io.TextIOWrapper(os.fdopen(writing, "wb"))
    monkeypatch.setattr(sys, "stdout", stream)
    assert emit("text\n" * 10_000) == 141
    stream.write("more")
    stream.close()  # as at exit: what is left goes nowhere


def test_letters_that_the_terminal_lacks_are_replaced(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert emit("├─ GPU0\n") == 0
    assert raw.getvalue() == b"?? GPU0\n"


def test_any_stream_will_do(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert emit("text") == 0
    assert sys.stdout.getvalue() == "text"


def test_figures_at_their_limits():
    assert [format_bytes(size) for size in (0, 999, 1000, 2_500_000)] == [
        *("0 B", "999 B", "1 KB", "2.5 MB"),
    ]
    assert [format_seconds(s) for s in (0, 0.000999, 0.001, 60)] == [
        *("0 us", "999 us", "1 ms", "60 s"),
    ]
    assert resource_names(["port 3 in"]) == "port 3 in"
    assert resource_names(["host memory h0.0", "host memory h1.1"]) == "host memory h0.0 h1.1"


def test_errors_of_argparse_in_our_words():
    parser = Parser("look", "blinkrun look", "", "")
    parser.add_argument("--number", type=int)
    for words, said in (
        (["--number"], "--number needs a value"),
        (["--number", "x"], "argument --number: invalid int value: 'x'"),
    ):
        with pytest.raises(UsageError, match=f"{said}; see blinkrun look --help"):
            parser.read(words)
