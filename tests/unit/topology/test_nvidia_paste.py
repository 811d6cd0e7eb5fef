"""Pastes are freed of what is around the words, and lines keep their numbers."""

import pytest

from blinkrun.topology.nvidia_words import split_words
from blinkrun.topology.paste import Line, clean_lines
from blinkrun.topology.paste_tags import untagged


def words_of(text):
    return [line.text.split() for line in clean_lines(text) if line.text.split()]


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[4mGPU0\tX\x1b[0m",
        "\x1b]0;title\x07GPU0 X",
        "[4mGPU0 X[0m",
        "^[[1;31mGPU0 X^[[m",
        "\\x1b[4mGPU0\\tX\\n",
        "| **GPU0** | `X` |",
        "<tr><td align='left'>GPU0</td><td>&nbsp;X</td></tr>",
        "<p>GP<b>U0</b> X<br/></p>",
        "\ufeffGPU0\u00a0X",
        "“GPU0”\u200b ×",
        "│ GPU0 │ X │",
    ],
)
def test_what_is_around_the_words_goes(text):
    assert words_of(text) == [["GPU0", "X"]]


def test_what_only_looks_like_markup_stays():
    assert words_of("Link 0: <inactive>") == [["Link", "0:", "<inactive>"]]
    assert words_of("mlx5\\_0") == [["mlx5_0"]]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_keep_their_numbers(end):
    text = end.join(["a", "<td", "class='x'>b</td><tr>c", "", "d"])
    found = [(line.number, line.text.strip()) for line in clean_lines(text) if line.text.strip()]
    assert [number for number, text in found if text != "b"] == [1, 3, 5]
    assert dict(found)[5] == "d"


def bare(*texts):
    lines = [Line(number, text) for number, text in enumerate(texts, start=1)]
    return [(line.number, line.text) for line in untagged(lines)]


@pytest.mark.parametrize(
    "tag",
    [
        "[rank0]: ",
        "[1,0]<stdout>:",
        "(worker pid=71) ",
        "node-7.cluster: ",
        "2024-05-01 12:30:00,123 INFO ",
        "2024-05-01T12:30:00Z [web] ",
        "12:30:00 ",
    ],
)
def test_tags_go_where_neighbours_have_them(tag):
    assert bare(tag + "GPU0 X", tag + "GPU1 X") == [(1, "GPU0 X"), (2, "GPU1 X")]
    assert bare(tag + "GPU0 X", "GPU1 X") == [(1, tag + "GPU0 X"), (2, "GPU1 X")]


def test_blank_lines_do_not_part_lines_of_a_log():
    assert bare("[r0] a", "", "[r0] b") == [(1, "a"), (2, ""), (3, "b")]
    assert bare("[r0] a", " ", "b") == [(1, "[r0] a"), (2, " "), (3, "b")]


def test_a_line_that_was_broken_up_has_one_tag():
    lines = [Line(1, "[r0] a"), Line(1, "b"), Line(2, "[r0] c")]
    assert [line.text for line in untagged(lines)] == ["a", "b", "c"]


def test_line_numbers_go_where_they_count():
    assert bare("7 GPU0 X", "8 GPU1 X") == [(1, "GPU0 X"), (2, "GPU1 X")]
    assert bare("9: a", "10: b", "11:c", "x") == [(1, "a"), (2, "b"), (3, "c"), (4, "x")]
    assert bare("7 GPU0 X", "7 GPU1 X") == [(1, "7 GPU0 X"), (2, "7 GPU1 X")]
    assert bare("0", "1", "2") == [(1, "0"), (2, "1"), (3, "2")]


def test_lines_of_ranks_are_put_together():
    assert bare("[r0] 1", "[r1] 1", "[r0] 2", "[r1] 2") == [(1, "1"), (3, "2"), (2, "1"), (4, "2")]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("GPU0XNV18NV18", "GPU0 X NV18 NV18"),
        ("GPU0GPU1zz0net", "GPU0 GPU1 zz0net"),
        ("mlx5_0CPU AffinityNUMA_Affinity", "mlx5_0 CPU Affinity NUMA_Affinity"),
        ("GPU0,X,NV12,SYS", "GPU0 X NV12 SYS"),
        ("host:GPU0 a;b", "host GPU0 a b"),
        ("N/A 0-31,64-95 - -- ---", "N/A 0-31,64-95 -"),
        ("-GPU0 >GPU1 //", "GPU0 GPU1"),
        ("GPU0" * 2000, "GPU0" * 2000),  # no word of anybody's
    ],
)
def test_words(text, want):
    assert " ".join(split_words(text)) == want
