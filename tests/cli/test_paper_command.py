"""`blinkrun simulate --paper`: what it writes, and what it says of wrong input."""

from __future__ import annotations

import csv
import json

import pytest
from support.golden import check_golden

from blinkrun.launcher.cli import main
from blinkrun.paper import command, theory
from blinkrun.paper.figure import Column, Figure, Goal, Panel, Series, Shape


def run(capsys, words):
    code = main(words.split())
    out, err = capsys.readouterr()
    return code, out, err


def made():
    """A figure that takes no time."""
    return Figure(
        name="fig13",
        title="A title",
        rows=({"gpus": [0, 1], "blink": 2.0},),
        columns=(Column("gpus", "GPUs"), Column("blink", "blink")),
        panels=(Panel(Shape.BARS, "gpus", (Series("blink", "blink", "#000000"),), "", ""),),
        summary={"max_ratio": 2.0},
        goals=(Goal("ratio", 1.0, 2.0),),
    )


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(theory, "fig13", made)


@pytest.mark.usefixtures("quick")
def test_a_figure_is_written_in_every_form_and_the_page_shows_it(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    code, out, err = run(capsys, f"simulate --paper fig13 --out {tmp_path}/new/folder")
    assert (code, out) == (0, "")
    assert "fig13 took" in err
    folder = tmp_path / "new/folder"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("fig13.csv", "fig13.json", "fig13.svg", "paper.md"),
    ]
    assert json.loads((folder / "fig13.json").read_text())["max_ratio"] == 2.0
    assert next(csv.DictReader((folder / "fig13.csv").read_text().splitlines()))["gpus"] == "0 1"
    assert "](fig13.svg)" in (folder / "paper.md").read_text()


@pytest.mark.usefixtures("quick")
def test_the_page_goes_where_it_is_asked_to(capsys, tmp_path):
    words = f"simulate --paper FIG13 --no-pictures --out {tmp_path}/a --page {tmp_path}/b/c.md"
    code, _, err = run(capsys, words)
    assert code == 0
    assert f"wrote {tmp_path}/b/c.md" in err
    assert "](../a/fig13.svg)" in (tmp_path / "b/c.md").read_text()
    assert not (tmp_path / "a/fig13.svg").exists()


@pytest.mark.parametrize("words", ["--paper", "--paper all"])
def test_all_are_all_in_the_order_of_the_page(words, tmp_path):
    options = command.parse([*words.split(), "--out", str(tmp_path)])
    assert options.figures == tuple(command.FIGURES)


def test_figures_may_be_separated_by_commas(tmp_path):
    last = list(command.FIGURES)[-1]
    options = command.parse(["--paper", f"{last},fig13", "--out", str(tmp_path)])
    assert options.figures == ("fig13", last)


def test_a_figure_of_two_parts_is_both(tmp_path):
    options = command.parse(["--paper", "fig19", "--out", str(tmp_path)])
    assert options.figures == ("fig19a", "fig19b")


def test_every_figure_of_the_table_can_be_made():
    """The functions are there; what they make is tested figure by figure."""
    assert all(callable(command.maker(name)) for name in command.FIGURES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--paper fig133 --out DIR", "--paper fig133: did you mean fig13?"),
        ("--paper x --out DIR", "--paper x: there are fig13, "),
        ("--paper fig13", "where to? give --out DIR"),
        ("--paper fig13 --out", "--out needs a value"),
        ("--paper fig13 --out DIR --trees few", "unrecognized arguments: --trees few"),
        ("--paper fig13 --out DIR/file", "--out DIR/file is no folder"),
        ("--paper fig13 --out DIR --page DIR", "--page DIR is a folder"),
        ("--paper fig13 --out DIR/file/below", "cannot make DIR/file/below: Not a directory"),
    ],
)
def test_wrong_input_is_one_line_and_computes_nothing(capsys, tmp_path, words, said):
    (tmp_path / "file").write_text("")
    code, out, err = run(capsys, f"simulate {words}".replace("DIR", str(tmp_path)))
    assert (code, out) == (2, "")
    assert err.replace(str(tmp_path), "DIR").startswith("blinkrun: simulate: ")
    assert said in err.replace(str(tmp_path), "DIR")
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_pictures_without_matplotlib_are_refused_before_anything_is_computed(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    code, _, err = run(capsys, f"simulate --paper fig13 --out {tmp_path}/new")
    assert code == 2
    assert "--no-pictures leaves them out" in err
    assert not (tmp_path / "new").exists()


def test_help(capsys):
    code, out, err = run(capsys, "simulate --paper --help")
    assert (code, err) == (0, "")
    check_golden("cli/simulate_paper_help.txt", out)
