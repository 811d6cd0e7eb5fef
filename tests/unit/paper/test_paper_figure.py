"""Figures as values: JSON, CSV, table, picture, page."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from blinkrun.errors import InternalError
from blinkrun.paper.draw import draw
from blinkrun.paper.figure import (
    Column,
    Figure,
    Goal,
    Panel,
    Series,
    Shape,
    plain,
    rounded,
)
from blinkrun.paper.page import page, table

ROWS = (
    {"gpus": [0, 1, 4], "size_bytes": 1024, "blink": 23.04, "ring": 9.0, "size": "1KB"},
    {"gpus": [5, 6, 7], "size_bytes": 2048, "blink": 66.0, "ring": None, "size": "2KB"},
)
SERIES = (Series("blink", "blink", "#000000"), Series("ring", "ring", "#ff0000", is_mark=True))


def panel(shape, x="gpus", series=SERIES):
    return Panel(shape, x, series, x_label="GPUs", y_label="GB/s", is_log=shape is Shape.LINES)


def figure(**changes):
    usual = Figure(
        name="fig99",
        title="A title",
        rows=ROWS,
        columns=(Column("gpus", "GPUs"), Column("blink", "blink"), Column("ring", "ring", 2)),
        panels=(panel(Shape.BARS),),
        summary={"geomean_ratio": 2.5},
        goals=(Goal("ratio", 2.0, 2.5, "2x"), Goal("rows", 46, 45)),
        says=("It says.",),
        causes=("Because.",),
        how="How it was made.",
    )
    return replace(usual, **changes)


def test_json_has_rows_summary_and_goals():
    data = json.loads(json.dumps(figure().as_json()))
    assert data["fig"] == "fig99"
    assert data["rows"] == list(ROWS)
    assert data["geomean_ratio"] == 2.5
    assert [goal["is_met"] for goal in data["goals"]] == [True, False]
    assert data["causes"] == ["Because."]


def test_csv_can_be_read_back():
    rows = list(csv.DictReader(figure().as_csv().splitlines()))
    assert rows[0]["gpus"] == "0 1 4"
    assert float(rows[0]["blink"]) == 23.04
    assert rows[1]["ring"] == ""


def test_rows_of_different_keys_are_refused():
    with pytest.raises(InternalError, match="fig99 has rows with keys"):
        figure(rows=(ROWS[0], {"gpus": [1]}))


def test_no_rows_are_refused():
    with pytest.raises(InternalError, match="fig99 has no rows"):
        figure(rows=())


def test_a_column_that_rows_lack_is_refused():
    with pytest.raises(InternalError, match=r"shows \['nothing'\]"):
        figure(columns=(Column("nothing", "nothing"),))


def test_a_summary_cannot_hide_the_rows():
    with pytest.raises(InternalError, match="key of the figure itself"):
        figure(summary={"rows": 3})


def test_a_table_has_a_line_for_every_row():
    lines = table(figure())
    assert lines == [
        "| GPUs | blink | ring |",
        "| --- | --: | --: |",
        "| 0 1 4 | 23.0 | 9.00 |",
        "| 5 6 7 | 66.0 |  |",
    ]


@pytest.mark.parametrize(("value", "shown"), [(0.00123456, 0.001235), (123456.7, 123457.0)])
def test_reported_numbers_have_four_digits_or_are_whole(value, shown):
    assert rounded(value) == shown


def test_numbers_without_a_fraction_stay_whole():
    assert plain(46, 2) == "46"
    assert plain(True) == "True"


def test_the_page_tells_goals_causes_and_assumptions(tmp_path):
    text = page([figure()], out=tmp_path / "docs/paper", at=tmp_path / "docs/paper.md")
    assert "| fig99 | ratio | 2 | 2.5 | 2x |" in text
    assert "| fig99 | rows | 46 | 45 (not met) |  |" in text
    assert "![A title](paper/fig99.svg)" in text
    assert "- Because." in text
    assert "| dgx-1v | nvlink2_lane | 23 GB/s |" in text
    assert "| ring library |" in text


def test_a_page_beside_its_pictures_names_them_alone(tmp_path):
    text = page([figure()], out=tmp_path, at=tmp_path / "paper.md")
    assert "](fig99.svg)" in text


def test_a_figure_like_the_papers_says_so(tmp_path):
    text = page([figure(causes=())], out=tmp_path, at=tmp_path / "paper.md")
    assert "Nothing here differs from the paper by more than 15 %." in text


@pytest.mark.parametrize(
    "drawn",
    [
        panel(Shape.BARS),
        panel(Shape.LINES, "size_bytes"),
        panel(Shape.POINTS, "size_bytes"),
    ],
    ids=lambda drawn: str(drawn.shape),
)
def test_pictures_are_the_same_bytes_each_time(drawn, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        draw(figure(panels=(drawn, panel(Shape.BARS))), path)
    one, two = (Path(path).read_text() for path in paths)
    assert one == two
    assert "blink" in one


def test_box_plots_are_drawn_from_five_numbers(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    parts = {"p05": 1.0, "q1": 1.5, "median": 2.0, "q3": 3.0, "p95": 6.0}
    rows = ({"box": "one", **parts}, {"box": "two", **parts})
    boxes = panel(Shape.BOXES, "box", (Series("", "ratio", "#000000"),))
    draw(figure(rows=rows, columns=(Column("box", "box"),), panels=(boxes,)), tmp_path / "a.svg")
    assert "ratio" in (tmp_path / "a.svg").read_text()
