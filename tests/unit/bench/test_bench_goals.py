import pytest

from blinkrun.bench.goals import Goal, Spread, goal_lines, goals, ratio, ratios
from blinkrun.bench.runs import collective_runs

KIB, MIB = 1024, 1 << 20


def make_result(ours, peers, memory=None):
    """JSON of a run: algbw by size, of us and of each peer."""
    rows = []
    for size_bytes, algbw in ours.items():
        row = {
            "size_bytes": size_bytes,
            "algbw_gb_per_s": algbw,
            "peers": {name: {"algbw_gb_per_s": found[size_bytes]} for name, found in peers.items()},
        }
        if memory is not None:
            row["memory"] = {"share": memory}
        rows.append(row)
    return {"rows": rows}


def test_the_ratio_is_to_the_best_peer_of_that_size():
    result = make_result({4: 6.0, KIB: 6.0}, {"mpi": {4: 2.0, KIB: 1.0}, "gloo": {4: 1, KIB: 3.0}})
    assert [ratio(row) for row in result["rows"]] == [3.0, 2.0]


def test_a_run_without_peers_has_no_ratio():
    assert ratios([make_result({4: 1.0}, {})]) == {}


def test_launches_are_told_by_median_and_range():
    launches = [make_result({4: algbw}, {"mpi": {4: 1.0}}) for algbw in (5.0, 2.0, 3.0)]
    assert ratios(launches)[4] == Spread(median=3.0, least=2.0, most=5.0)
    assert Spread.of([3.0]).text() == "3.00"
    assert Spread.of([5.0, 2.0, 3.0]).text(1) == "3.0 (2.0 to 5.0)"


@pytest.mark.parametrize(("algbw", "answer"), [(3.0, "yes"), (2.9, "**no**")])
def test_a_goal_is_judged_at_its_lowest_size(algbw, answer):
    ours = {KIB: 0.1, 256 * KIB: 50.0, 4 * MIB: algbw, 256 * MIB: 9.0}
    result = make_result(ours, {"mpi": dict.fromkeys(ours, 1.0)})
    line = next(line for line in goal_lines({"2 ranks arena": [result]}) if ">= 3x" in line)
    assert f"{algbw:.2f} at 4 MiB | {answer} |" in line


def test_goals_are_told_in_words():
    assert Goal("2 ranks user", 4, KIB, 2 / 3).text() == (
        "2 ranks user, 4 B to 1 KiB: at most 1.5x the best peer's time"
    )
    assert Goal("4 ranks arena", 16 * KIB, 16 * KIB, 3).text() == (
        "4 ranks arena, 16 KiB: >= 3x the best peer"
    )
    assert Goal("8 ranks user", 16 * KIB, MIB, 1).text() == (
        "8 ranks user, 16 KiB to 1 MiB: ahead of the best peer"
    )


def test_16_bit_floats_are_held_against_float32():
    runs = {
        "2 ranks float32": [make_result({64 * KIB: 9.0, MIB: 10.0, 4 * MIB: 10.0}, {})],
        "2 ranks float16": [make_result({64 * KIB: 1.0, MIB: 12.0, 4 * MIB: 9.0}, {})],
    }
    assert goal_lines(runs)[-1].endswith("| 0.90x at 4 MiB | **no** |")


@pytest.mark.parametrize(("share", "answer"), [(0.71, "71 % | yes |"), (0.6, "60 % | **no** |")])
def test_the_memory_rate_is_judged_at_64_mib(share, answer):
    runs = {"2 ranks arena": [make_result({64 * MIB: 9.0}, {}, memory=share)]}
    assert goal_lines(runs)[-1].endswith(answer)


def test_every_goal_has_a_run_that_covers_it():
    names = {run.name for run in collective_runs()}
    assert {goal.run for goal in goals()} <= names
