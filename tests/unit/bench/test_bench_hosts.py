import json
from pathlib import Path

import pytest

from blinkrun.bench import fake_hosts, host_runs, report, runs, training
from blinkrun.bench.host_goals import bound_us, goals, host_goal_lines, host_table
from blinkrun.bench.host_runs import merged, without_gloo
from blinkrun.bench.options import parse
from blinkrun.bench.predicted import predicted_us
from blinkrun.errors import LaunchError
from blinkrun.planner.hosts_plan import HostsPlan, Network
from blinkrun.topology.cpu import Cpu, Host, cpu_topology

MIB = 1 << 20
MS = 1000.0


def peer(time_ms, cores=2.0):
    return {"time_us": time_ms * MS, "algbw_gb_per_s": 1 / time_ms, "cores": cores}


def launch(size_bytes=16 * MIB, ours=140.0, mpi=141.0, gloo=198.0, mpich=190.0, hosts=(2, 2)):
    peers = {"mpi": peer(mpi), "gloo": peer(gloo, 0.3), "mpich": peer(mpich)}
    rows = [{"size_bytes": size_bytes, **peer(ours, 0.25), "wrong": 0, "peers": peers}]
    for row in rows:
        row["over_mpich"] = {"time_us": 1.01 * row["time_us"]}
    return {"hosts": list(hosts), "rows": rows}


def answers(name, *launches):
    lines = host_goal_lines({name: launches})[2:]
    return [line.split(" | ")[-1].rstrip(" |") for line in lines]


def test_every_host_sends_what_the_others_lack():
    assert bound_us(16 * MIB, 2, "1 Gbit/s") == 16 * MIB / 125
    assert bound_us(9, 3, "1 Gbit/s") == 12 / 125
    assert bound_us(9, 3, "no limit") is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["yes", "yes", "yes"]),
        ({"ours": 145.0, "mpi": 145.0}, ["**no**", "yes", "yes"]),  # 92.6 % of the bound
        ({"mpi": 138.0}, ["yes", "**no**", "yes"]),
        ({"mpich": 181.0}, ["yes", "yes", "**no**"]),
    ],
)
def test_goals_of_equal_hosts_at_a_gigabit(change, expected):
    assert answers("hosts 2+2, 1 Gbit/s", launch(**change)) == expected


def test_goals_of_unequal_hosts_of_more_and_without_a_limit():
    unequal = launch(ours=152.0, mpi=182.0, hosts=(1, 3))
    assert answers("hosts 1+3, 1 Gbit/s", unequal) == ["yes", "**no**"]
    three = {"mpi": 170.0, "hosts": (2, 2, 2)}
    assert answers("hosts 2+2+2, 1 Gbit/s", launch(ours=203.0, **three)) == ["yes"]
    assert answers("hosts 2+2+2, 1 Gbit/s", launch(ours=204.0, **three)) == ["**no**"]
    small = launch(4, ours=0.08, mpi=0.05, gloo=1.0, mpich=0.06)
    assert answers("hosts 2+2, no limit", small) == ["**no**"]
    assert answers("hosts 2+2, no limit", launch(mpi=141.0)) == ["yes"]


def test_launches_are_judged_by_their_median():
    slow = launch(ours=400.0)
    assert answers("hosts 2+2, 1 Gbit/s", launch(), slow, launch()) == ["yes"] * 3
    assert answers("hosts 2+2, 1 Gbit/s", slow, slow, launch()) == ["**no**"] * 3


def test_training_is_held_against_ddp():
    rates = {"ours": {"median": 130.0}, training.WAYS["ddp"]: {"median": 100.0}}
    found = {"models": {"mlp25": {"auto": "ours", "samples_per_s": rates}}}
    line = host_goal_lines({"hosts 2+2 training, 1 Gbit/s": [found]})[-1]
    assert line.endswith("mlp25 >= 1.3x DDP over gloo | 1.30 | yes |")


def test_the_table_has_medians_the_bound_and_cores():
    run = host_runs.host_runs()[0]
    head, _, row = host_table(runs.Outcome(run, "", "", (launch(), launch(ours=150.0), launch())))
    assert "| size | blinkrun | Open MPI | MPICH | gloo | best peer by blinkrun |" in head
    assert row == (
        "| 16 MiB | 140 | 141 | 190 | 198 | 1.01 (0.94 to 1.01) | 96 % | 141 | 0.2, 2.0, 2.0, 0.3 |"
    )
    free = next(run for run in host_runs.host_runs() if run.name == "hosts 2+2, no limit")
    assert "bound" not in host_table(runs.Outcome(free, "", "", (launch(),)))[0]


def make_plan(ranks=((0, 1), (2, 3)), mb_per_s=125):
    host = cpu_topology(Host((Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0))), 2)
    return HostsPlan((host, host), ranks, (Network(mb_per_s), Network(mb_per_s)))


def test_the_prediction_is_near_the_bound_of_the_network_that_was_measured():
    assert predicted_us(make_plan(), 16 * MIB) == pytest.approx(16 * MIB / 125, rel=0.01)
    assert predicted_us(make_plan(mb_per_s=250), MIB) == pytest.approx(MIB / 250, rel=0.03)
    small = predicted_us(make_plan(), 4)
    assert 50 < small < 150  # one message either way of 50 us
    assert predicted_us(make_plan(((0, 2), (1, 3))), 4) is None


def test_the_table_says_what_was_predicted():
    measured = launch() | {"plan": json.loads(make_plan().to_json())}
    head, _, row = host_table(runs.Outcome(host_runs.host_runs()[0], "", "", (measured,)))
    assert "| over MPICH | simulated | cores" in head
    assert "| 141 | 134 | 0.2, 2.0" in row


def test_mpich_is_a_peer_beside_the_others():
    under_mpich = launch(ours=150.0, mpi=190.0)
    under_mpich["rows"][0]["wrong"] = 1
    first = launch()
    del first["rows"][0]["peers"]["mpich"]
    row = merged(first, under_mpich)["rows"][0]
    assert row["peers"]["mpich"]["time_us"] == 190.0 * MS
    assert row["over_mpich"]["time_us"] == 150.0 * MS
    assert row["wrong"] == 1
    assert "mpich" not in first["rows"][0]["peers"]


def test_runs_are_commands_that_the_benchmark_accepts():
    pytest.importorskip("torch", reason="needs torch for the peer gloo")
    found = host_runs.host_runs()
    assert len({run.name for run in found}) == len(found)
    for run in found:
        assert run.ranks == sum(run.slots)
        if "--training" in run.arguments:
            words = [word for word in run.arguments if word != "--training"]
            assert training.parse(words).models == ("mlp25",)
            continue
        for each in (run, runs.shorten(run), without_gloo(run)):
            assert parse(each.arguments, each.ranks).sizes
            assert each.slots == run.slots
    assert {goal.run for goal in goals()} <= {run.name for run in found}


def test_a_command_names_hosts_and_slots():
    run = runs.Run("x", 3, ("--sizes", "4"), slots=(1, 2))
    assert runs.command(run) == ["-np", "3", "-H", "a:1,b:2", "bench", "--sizes", "4"]
    assert runs.command(run, ["h0", "h1"])[3] == "h0:1,h1:2"


def test_a_host_takes_its_words_as_they_are():
    hosts = fake_hosts.FakeHosts(Path("/agent"), 2, "h")
    assert hosts.names == ("h0", "h1")
    assert hosts.command(1, ["a b", "$c"]) == ["/agent", "h1", "'a b'", "'$c'"]
    assert hosts.slots(2, 0) == "h0:2"
    assert len(fake_hosts.FakeHosts(Path("/agent"), 10).names[-1] + "e") < 16  # an interface


def test_without_a_script_there_are_no_hosts_and_the_report_says_why(tmp_path, capsys):
    script = tmp_path / "none.sh"
    assert fake_hosts.why_not(script) == f"fake hosts need {script}"
    with pytest.raises(LaunchError, match="fake hosts need"), fake_hosts.fake_hosts(script):
        pass
    words = ["--only", "hosts", "--fake-hosts", str(script), str(tmp_path)]
    assert report.main(words) == 1
    assert f"several hosts are left out: fake hosts need {script}" in capsys.readouterr().err


def test_the_report_has_goals_medians_and_tables():
    run = runs.Run("hosts 2+2, 1 Gbit/s", 4, ("--sizes", "16M"), slots=(2, 2), rate="1gbit")
    outcome = runs.Outcome(run, "blinkrun -np 4 -H a:2,b:2 bench", "# table", (launch(),))
    lines = report.hosts_report([outcome], "stem")
    assert "## hosts 2+2, 1 Gbit/s: medians" in lines
    assert "    blinkrun -np 4 -H a:2,b:2 bench" in lines
    assert any("93 % of the network's bound | 0.96 at 16 MiB | yes |" in line for line in lines)
