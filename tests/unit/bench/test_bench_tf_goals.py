import copy

import pytest

from blinkrun.bench import framework, report, runs
from blinkrun.bench.framework import TF_WAYS, parse
from blinkrun.bench.tf_goals import tf_goal_lines
from blinkrun.bench.tf_training import OURS, efficiency
from blinkrun.bench.turns import Turn


def rate(value):
    return {"median": value, "min": value, "max": value}


MODEL = {
    "gradient_bytes": 25_000_000,
    "samples_per_s": {
        OURS["fit"]: rate(1300.0),
        TF_WAYS["mwms"]: rate(1000.0),
        TF_WAYS["single"]: rate(1300 / 1.7),
    },
    "efficiency": {},
    "agree": {},
    "share": {OURS["fit"]: {"timeline": 0.10, "difference": 0.10}},
    "memory": {"peak_bytes": 650, "plain_peak_bytes": 600, "allowed_bytes": 50},
}
TWO = {"ranks": 2, "framework": "tf", "models": {"mlp25m": MODEL, "cnn": copy.deepcopy(MODEL)}}
ONE = {
    "ranks": 1,
    "models": {
        "mlp25m": {
            "samples_per_s": {OURS["fit"]: rate(980.0), TF_WAYS["single"]: rate(1000.0)},
            "share": {},
        }
    },
}


def answers(launch):
    lines = tf_goal_lines({"some run": [launch]})[2:]
    return [line.split(" | ")[-1].rstrip(" |") == "yes" for line in lines]


def test_goals_are_reached_at_their_edge():
    assert answers(TWO) == [True] * 4
    assert answers(ONE) == [True]


@pytest.mark.parametrize(
    ("index", "change"),
    [
        (0, lambda model: model["samples_per_s"][TF_WAYS["mwms"]].update(median=1001.0)),
        (1, lambda model: model["samples_per_s"][TF_WAYS["single"]].update(median=766.0)),
        (2, lambda model: model["share"][OURS["fit"]].update(timeline=0.121)),
        (2, lambda model: model["share"][OURS["fit"]].update(timeline=0.079)),
        (3, lambda model: model["memory"].update(peak_bytes=651)),
    ],
)
def test_a_goal_that_is_missed_is_said_to_be(index, change):
    launch = copy.deepcopy(TWO)
    change(launch["models"]["mlp25m"])
    change(launch["models"]["cnn"])
    expected = [True] * 4
    expected[index] = False
    assert answers(launch) == expected


def test_the_overhead_on_one_rank_may_be_two_percent():
    launch = copy.deepcopy(ONE)
    launch["models"]["mlp25m"]["samples_per_s"][OURS["fit"]]["median"] = 979.0
    assert answers(launch) == [False]


def test_what_was_not_measured_is_not_judged():
    launch = copy.deepcopy(TWO)
    for model in launch["models"].values():
        del model["samples_per_s"][TF_WAYS["mwms"]]
        del model["memory"]
        model["share"] = {}
    assert answers(launch) == [True]  # the one about one process


def test_runs_of_the_report_are_commands_that_the_benchmark_accepts(monkeypatch):
    monkeypatch.setattr(framework, "_is_there", lambda package: True)
    monkeypatch.setattr(runs.importlib.util, "find_spec", lambda name: name)
    found = runs.tf_runs()
    assert len({run.name for run in found}) == len(found) == 3
    for run in found:
        for each in (run, runs.shorten(run)):
            assert parse(each.arguments).framework == "tf"


def test_without_tensorflow_there_is_nothing_to_run(monkeypatch):
    monkeypatch.setattr(runs.importlib.util, "find_spec", lambda name: None)
    assert runs.tf_runs() == []


def test_a_loop_is_held_against_a_loop():
    rates = {
        OURS["fit"]: [180.0],
        OURS["tape"]: [190.0],
        TF_WAYS["single"]: [100.0],
        TF_WAYS["single-tape"]: [95.0],
    }
    turns = [Turn(name, None, name in OURS.values()) for name in rates]
    assert efficiency(rates, turns, 2) == {OURS["fit"]: 0.9, OURS["tape"]: 1.0}


@pytest.mark.slow
def test_the_report_has_a_picture_of_all_ways(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    run = runs.Run("2 ranks training with tf, mlp25m", 2, ("--framework", "tf"), is_drawn=True)
    outcome = runs.Outcome(run, "blinkrun -np 2 bench --framework tf", "# table", (TWO, TWO))
    path = report.write("training_tf", [outcome], tmp_path)
    text = path.read_text()
    assert text.startswith("# Training with TensorFlow on ")
    assert "| 2 ranks, mlp25m: >= 1.3x MultiWorkerMirroredStrategy | 1.30 | yes |" in text
    picture = f"{path.stem}_2-ranks-training-with-tf-mlp25m.png"
    assert f"({picture})" in text
    assert {file.name for file in tmp_path.iterdir()} == {path.name, f"{path.stem}.json", picture}
