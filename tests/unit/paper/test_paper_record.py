"""docs/paper: every goal is met there, and some rows of each figure are computed anew."""

import json

import pytest
from support.places import ROOT

from blinkrun.paper import command, data

FOLDER = ROOT / "docs" / "paper"
# A whole figure takes minutes. Taken are rows of every kind: rings over NVLink, over PCIe and none,
# few GPUs and many, small sizes and large ones.
SAMPLES = {
    "fig14": ("fig14_16_dgx1v", (43,)),
    "fig15": ("fig15_dgx1p_broadcast", (1,)),
    "fig16": ("fig14_16_dgx1v", (29,)),
    "fig17": ("fig17_training_dgx1v", (3,)),
    "fig18": ("fig18_27_dgx2_allreduce", (0, 10)),
    "fig19b": ("fig19b_two_hosts_sim_gb_s", (1,)),
}


def recorded(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("name", [*command.FIGURES, "emulated"])
def test_every_goal_is_met_and_there_are_a_table_and_a_picture(name):
    figure = recorded(name)
    assert figure["fig"] == name
    assert [goal for goal in figure.get("goals", ()) if not goal["is_met"]] == []
    lines = (FOLDER / f"{name}.csv").read_text().splitlines()
    assert len(lines) == len(figure["rows"]) + 1
    assert f"paper/{name}.svg" in (FOLDER.parent / "paper.md").read_text()
    assert (FOLDER / f"{name}.svg").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_of_the_rows_comes_out_again(name, monkeypatch):
    file, numbers = SAMPLES[name]
    every = data.rows
    some = tuple(every(file)[number] for number in numbers)
    monkeypatch.setattr(data, "rows", lambda asked: some if asked == file else every(asked))
    figure = command.maker(name)()
    rows = [json.loads(json.dumps(row)) for row in figure.rows]
    assert rows == [row for row in recorded(name)["rows"] if row in rows]
    assert len(rows) >= len(numbers)
