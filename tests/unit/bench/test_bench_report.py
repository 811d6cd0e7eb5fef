import pytest

from blinkrun.bench import report, runs
from blinkrun.bench.engine_goals import engine_goal_lines
from blinkrun.bench.goals import training_goal_lines
from blinkrun.bench.options import parse
from blinkrun.errors import LaunchError

RESULT = {
    "ranks": 2,
    "collective": "allreduce",
    "dtype": "float32",
    "buffers": "arena",
    "rows": [
        {
            "size_bytes": 1 << 20,
            "time_us": 100.0,
            "algbw_gb_per_s": 10.0,
            "busbw_gb_per_s": 10.0,
            "wrong": 0,
            "peers": {"mpi": {"time_us": 200.0, "algbw_gb_per_s": 5.0}},
        }
    ],
}


def make_outcome(run):
    return runs.Outcome(run, "blinkrun -np 2 bench", "# the table\n  1048576", (RESULT,))


def test_every_run_is_a_command_that_the_benchmark_accepts():
    pytest.importorskip("torch", reason="needs torch for the peer gloo")
    for run in runs.collective_runs():
        for each in (run, runs.shorten(run)):
            assert parse(each.arguments, each.ranks).sizes


def test_runs_have_names_of_their_own():
    names = [run.name for run in runs.collective_runs()]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.slow
def test_the_report_has_command_table_picture_and_ratio(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    run = runs.collective_runs()[0]
    path = report.write("collectives", [make_outcome(run)], tmp_path)
    text = path.read_text()
    assert text.startswith("# Collectives on ")
    assert f"![{run.name}]({path.stem}_2-ranks-arena.png)" in text
    assert "    blinkrun -np 2 bench\n" in text
    assert "```\n# the table\n  1048576\n```" in text
    assert "| 1 MiB | 2.00 |" in text
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {path.name, f"{path.stem}.json", f"{path.stem}_2-ranks-arena.png"}


def test_the_report_on_training_judges_what_blinkrun_chooses():
    def rates(**medians):
        return {name: {"median": value} for name, value in medians.items()}

    model = {
        "auto": "ours",
        "samples_per_s": rates(ours=2000.0)
        | {"DDP over gloo": {"median": 1000.0}, "one process alone": {"median": 1100.0}}
        | {"one flat MPI allreduce": {"median": 1600.0}, "DDP over blink": {"median": 1490.0}},
    }
    result = {"models": {"mlp25": model, "cnn1": model}}
    run = runs.Run("2 ranks training", 2, ("--training",))
    outcome = runs.Outcome(run, "blinkrun -np 2 bench --training", "# table", (result,))
    lines = report.training_report([outcome], "stem")
    assert "| 2 ranks, mlp25: blinkrun >= 1.5x DDP over gloo | 2.00 | yes |" in lines
    assert "| 2 ranks, mlp25: DDP over blink >= 1.5x DDP over gloo | 1.49 | **no** |" in lines
    assert any("Horovod's 1338 | 1.25 | yes |" in line for line in lines)
    assert "| 2 ranks, cnn1: blinkrun >= 0.95x twice one process | 0.91 | **no** |" in lines


def test_the_overhead_of_the_wrapper_is_judged_on_one_rank():
    rates = {"ours": {"median": 990.0}, "one process alone": {"median": 1000.0}}
    model = {"auto": "ours", "samples_per_s": rates}
    lines = training_goal_lines({"1 ranks training": [{"models": {"mlp25": model}}]})
    assert lines[2:] == [
        "| 1 ranks, mlp25: at least 98 % of one process alone | 0.99 | yes |",
    ]


def engine_launch(small_us=100.0, gloo_us=3000.0, burst_s=0.01):
    def row(size_bytes, time_us, peer_us):
        return {
            "size_bytes": size_bytes,
            "time_us": time_us,
            "peers": {name: {"time_us": peer_us} for name in ("gloo", "horovod")},
        }

    seconds = {"blinkrun": burst_s, "horovod": 0.1}
    rows = [row(16 << 10, small_us, 2000.0), row(1 << 20, 1000.0, gloo_us)]
    return {"rows": rows, "burst": {"seconds": seconds}}


@pytest.mark.parametrize(
    ("change", "answers"),
    [
        ({}, ["yes"] * 4),
        ({"small_us": 151.0}, ["**no**", "yes", "yes", "yes"]),
        ({"gloo_us": 1900.0}, ["yes", "**no**", "yes", "yes"]),
        ({"gloo_us": 900.0}, ["yes", "**no**", "**no**", "yes"]),
        ({"burst_s": 0.011}, ["yes", "yes", "yes", "**no**"]),
    ],
)
def test_the_engine_is_judged_by_small_large_and_many(change, answers):
    launches = [engine_launch(**change)]
    lines = engine_goal_lines({"2 ranks engine": launches, "2 ranks engine, Horovod": launches})
    assert [line.split(" | ")[-1].rstrip(" |") for line in lines[2:]] == answers


def test_what_a_launch_did_not_measure_is_not_judged():
    launch = {"rows": [], "burst": {"seconds": {"blinkrun": 0.1}}}
    assert engine_goal_lines({"2 ranks engine": [launch], "4 ranks engine": []})[2:] == []


def test_the_machine_is_a_word_for_files_and_words_for_people():
    word, machine = report.hardware()
    assert word == word.lower()
    assert not set(word) & set(" /()@.")
    assert "cores" in machine


def test_runs_take_turns_and_each_turn_gives_a_report():
    launched = []

    def launch(run):
        launched.append(run.name)
        return f"table {len(launched)}", {"launch": len(launched)}

    both = [runs.Run(name, 2, ("--sizes", "4")) for name in ("first", "second")]
    turns = list(runs.carry_out(both, 2, launch))
    assert launched == ["first", "second"] * 2
    assert [[outcome.launches for outcome in turn] for turn in turns] == [
        [({"launch": 1},), ({"launch": 2},)],
        [({"launch": 1}, {"launch": 3}), ({"launch": 2}, {"launch": 4})],
    ]
    assert [outcome.table for outcome in turns[1]] == ["table 1", "table 2"]
    assert turns[0][1].command == "blinkrun -np 2 bench --sizes 4"


def test_a_launch_that_fails_says_what_it_wrote_last():
    command = ["python3", "-c", "import sys; sys.stderr.write('it broke\\n'); sys.exit(3)"]
    with pytest.raises(LaunchError, match=r"ended with exit code 3: it broke"):
        runs.output(command)


def test_an_unknown_run_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        report.main(["--only", "nothing like it", str(tmp_path)])
    assert caught.value.code == 2
    assert "no run has that in its name" in capsys.readouterr().err
