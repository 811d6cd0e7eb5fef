import pytest

from blinkrun.bench import report
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
    return report.Outcome(run, "blinkrun -np 2 bench", "# the table\n  1048576", (RESULT,))


def test_every_run_is_a_command_that_the_benchmark_accepts():
    pytest.importorskip("torch", reason="needs torch for the peer gloo")
    for run in report.all_runs():
        for each in (run, report.shorten(run)):
            assert parse(each.arguments, each.ranks).sizes


def test_runs_have_names_of_their_own():
    names = [run.name for run in report.all_runs()]
    assert sorted(set(names)) == sorted(names)


def test_the_report_has_command_table_picture_and_ratio():
    run = report.all_runs()[0]
    text = "\n".join(report.report_lines([make_outcome(run)], "stem", "2026-01-31", "a machine"))
    assert "# Collectives on a machine" in text
    assert f"![{run.name}](stem_2-ranks-arena.png)" in text
    assert "    blinkrun -np 2 bench\n" in text
    assert "```\n# the table\n  1048576\n```" in text
    assert "| 1 MiB | 2.00 |" in text
    assert "[stem.json](stem.json)" in text


def test_the_machine_is_a_word_for_files_and_words_for_people():
    word, machine = report.hardware()
    assert word == word.lower()
    assert not set(word) & set(" /()@.")
    assert "cores" in machine


def test_a_launch_that_fails_says_what_it_wrote_last():
    command = ["python3", "-c", "import sys; sys.stderr.write('it broke\\n'); sys.exit(3)"]
    with pytest.raises(LaunchError, match=r"ended with exit code 3: it broke"):
        report._output(command)


def test_an_unknown_run_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        report.main(["--only", "nothing like it", str(tmp_path)])
    assert caught.value.code == 2
    assert "no run has that in its name" in capsys.readouterr().err
