"""Torn output becomes whole lines, whatever the pieces; frames survive any cut."""

from __future__ import annotations

import marshal
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.launcher.agent import rank_and_size
from blinkrun.launcher.agent_tools import (
    HEADER,
    MAX_LINE,
    STDERR,
    STDOUT,
    TOLD,
    Decoder,
    Lines,
    encode,
)
from blinkrun.launcher.output import Tail, plain, prefixed

texts = st.lists(st.sampled_from([b"a", b"bc", b"", b"\n", b"\r", b"\r\n", b"\xff\x00"]))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(texts.map(b"".join), st.lists(st.integers(0, 100)))
def test_whole_lines_come_out_and_nothing_is_lost(data: bytes, places: list[int]) -> None:
    lines = Lines()
    chunks = [lines.feed(piece) for piece in cut(data, places)]
    last = lines.finish()
    assert b"".join([*chunks, last]) == data
    assert all(chunk == b"" or chunk.endswith((b"\n", b"\r")) for chunk in chunks)
    assert not re.search(rb"[\n\r].", last, re.DOTALL) or last == b""
    assert lines.finish() == b""


@given(texts.map(b"".join), st.lists(st.integers(0, 100)), st.integers(0, 99))
def test_prefixed_lines_do_not_depend_on_how_they_were_torn(
    data: bytes, places: list[int], rank: int
) -> None:
    lines = Lines()
    chunks = [lines.feed(piece) for piece in cut(data, places)]
    shown = b"".join(prefixed(rank, chunk) for chunk in [*chunks, lines.finish()])
    assert shown == prefixed(rank, data)


def test_a_newline_after_a_held_carriage_return_makes_one_line() -> None:
    lines = Lines()
    assert lines.feed(b"50 %\r") == b""
    assert lines.feed(b"\n") == b"50 %\r\n"


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    lines = Lines()
    piece = b"x" * 1000
    sizes = [len(lines.feed(piece)) for _ in range(200)]
    assert max(sizes) <= MAX_LINE + len(piece)
    assert sum(sizes) + len(lines.finish()) == 200 * len(piece)


def test_prefix_and_plain() -> None:
    assert prefixed(3, b"") == b""
    assert prefixed(3, b"no end") == b"[3] no end\n"
    assert prefixed(12, b"10 %\r20 %\r\n\n") == b"[12] 10 %\n[12] 20 %\n[12] \n"
    assert plain(b"no end", alone=True) == b"no end"
    assert plain(b"no end", alone=False) == b"no end\n"
    assert plain(b"", alone=False) == b""
    assert plain(b"end\n", alone=False) == b"end\n"


@given(st.lists(st.lists(st.text("ab ", max_size=5), min_size=1, max_size=9), max_size=9))
def test_the_tail_is_the_last_lines(chunks: list[list[str]]) -> None:
    tail = Tail(4)
    for chunk in chunks:
        tail.add("".join(f"{line}\n" for line in chunk).encode())
    last = [line.rstrip() for chunk in chunks for line in chunk][-4:]
    while last and not last[-1]:
        last.pop()
    while last and not last[0]:
        last.pop(0)
    assert tail.lines() == tuple(last)


def test_the_tail_shows_bytes_that_are_no_text_and_cuts_long_lines() -> None:
    tail = Tail()
    tail.add(b"\xff\xfe ok")
    tail.add(b"x" * 10**6 + b"\n")
    first, second = tail.lines()
    assert first == "\ufffd\ufffd ok"
    assert 0 < len(second) <= 500


frames = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=20)))


@given(frames, st.lists(st.integers(0, 300)))
def test_frames_survive_any_cut(sent: list[tuple[int, bytes]], places: list[int]) -> None:
    data = b"".join(encode(kind, body) for kind, body in sent)
    decoder = Decoder()
    assert [frame for piece in cut(data, places) for frame in decoder.feed(piece)] == sent


def test_values_are_marshalled_and_monsters_refused() -> None:
    ((kind, body),) = Decoder().feed(encode(TOLD, {"time": 1.5}))
    assert (kind, marshal.loads(body)) == (TOLD, {"time": 1.5})
    with pytest.raises(OSError, match="frame of 4294967295 bytes"):
        Decoder().feed(HEADER.pack(TOLD, 2**32 - 1))


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "2"}, (2, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3)),
        ({"PMIX_RANK": "0", "BLINKRUN_SIZE": "1"}, (0, 1)),
        ({"PMI_RANK": "one", "PMI_SIZE": "3"}, (-1, -1)),
        ({}, (-1, -1)),
    ],
)
def test_the_rank_is_what_the_mpi_says(environ: dict[str, str], found: tuple[int, int]) -> None:
    assert rank_and_size(environ) == found
