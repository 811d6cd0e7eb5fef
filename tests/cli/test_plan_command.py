"""`blinkrun plan`: text, ranking, pictures, the cache, and what it says of wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.corpus import FOLDER, case
from support.golden import check_golden

from blinkrun.cli import plan_options
from blinkrun.launcher.cli import main
from blinkrun.topology.probe import probe_host
from blinkrun.topology.read import read_machine

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A plan cache for this test alone."""
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


def run(capsys: Captured, words: str) -> tuple[int, str, str]:
    code = main(words.split())
    out, err = capsys.readouterr()
    return code, out, err


def test_the_options_are_frozen() -> None:
    """Scripts rely on these: an option may be added here, none may go or change its meaning."""
    assert set(plan_options.make_parser().options) == {
        *("--topology", "--gpus", "--root", "--links", "--method", "--loss", "--relays"),
        *("--json", "--plot", "--bandwidths", "--partial", "--report", "--advise", "--free"),
        *("--help", "-h"),
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dgx-1v", "allreduce --topology dgx-1v --gpus 0,1,4 --links nvlink"),
        ("dgx-2", "allreduce --topology dgx-2 --links nvlink"),
        ("broadcast_relay", "broadcast --topology dgx-1v --gpus 0,1,6 --relays 2 --links nvlink"),
        ("advise", "--topology dgx-1v --advise 3 --free 0,1,2,4,7 --links nvlink"),
    ],
)
def test_text(capsys: Captured, name: str, words: str) -> None:
    code, out, err = run(capsys, f"plan {words}")
    assert (code, err) == (0, "")
    check_golden(f"cli/plan_{name}.txt", out)


def test_text_of_a_pasted_report(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "report.txt").write_text(case("a6000-3-one-without-bridge").text)
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "plan allreduce --topology report.txt --links pcie")
    assert code == 0
    check_golden("cli/plan_a6000-3-one-without-bridge.txt", out)


def test_options_may_stand_in_any_order(capsys: Captured) -> None:
    first = run(capsys, "plan reduce --topology dgx-1v --gpus 0-3 --root 2 --links nvlink")
    assert first == run(capsys, "plan --links nvlink --root 2 --gpus 0-3 --topology dgx-1v reduce")
    assert first[0] == 0


def test_ranks_are_in_the_order_given_and_gpus_keep_their_numbers(capsys: Captured) -> None:
    _, out, _ = run(capsys, "plan broadcast --topology dgx-1v --gpus 4,0,1 --links nvlink --json")
    plan = json.loads(out)
    assert plan["devices"] == [4, 0, 1]
    assert plan["root"] == 4
    assert {tuple(edge[:2]) for tree in plan["trees"] for edge in tree["edges"]} == {(4, 0), (0, 1)}


def test_rate_in_lanes_and_in_gb_per_s(capsys: Captured) -> None:
    _, out, _ = run(capsys, "plan allreduce --topology dgx-1v --links nvlink --json")
    plan = json.loads(out)
    assert (plan["rate_exact"], plan["unit"], plan["unit_gb_per_s"]) == ("24/7", "lane", 23.0)
    _, out, _ = run(capsys, "plan allreduce --topology dgx-1v --gpus 0-3 --links pcie --json")
    plan = json.loads(out)
    assert (plan["unit"], plan["unit_gb_per_s"]) == ("GB/s", 1.0)


def test_links_are_all_that_the_machine_has(capsys: Captured) -> None:
    for name, links in (("dgx-1v --gpus 0,1,4", "all"), ("pcie-8 --gpus 0,1", "pcie")):
        _, out, _ = run(capsys, f"plan broadcast --topology {name} --json")
        assert json.loads(out)["links"] == links


def test_bandwidths_of_a_file(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "measured"
    file.write_text("nvlink2_lane = 20 GB/s\n")
    words = "plan broadcast --topology dgx-1v --gpus 0,1 --links nvlink --json --bandwidths"
    assert json.loads(run(capsys, f"{words} {file}")[1])["rate_gb_per_s"] == 20.0


def test_the_second_time_comes_from_the_cache(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    words = "plan allreduce --topology dgx-1v --gpus 0,1,4 --json"
    first = run(capsys, words)
    (kept,) = cache.iterdir()

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("planned twice")

    with monkeypatch.context() as patch:
        patch.setattr("blinkrun.cli.planning.pack_by", refuse)
        assert run(capsys, words) == first
    kept.write_text("broken")
    code, out, err = run(capsys, words)
    assert (code, out) == (0, first[1])
    assert "is broken" in err


@pytest.mark.parametrize("method", ["exact", "mwu", "onehop", "paper"])
def test_methods(capsys: Captured, method: str) -> None:
    words = f"plan allreduce --topology dgx-1v --gpus 0-3 --links nvlink --method {method} --json"
    code, out, _ = run(capsys, words)
    plan = json.loads(out)
    assert (code, plan["method"]) == (0, method)
    assert plan["is_optimal"] is (plan["rate_exact"] == plan["bound_exact"])
    assert method != "exact" or plan["is_optimal"]


def test_the_paper_splits_large_data_over_nvlink_and_pcie(capsys: Captured) -> None:
    words = "plan broadcast --topology dgx-1v --gpus 0,1,2,3 --method paper"
    rows = json.loads(run(capsys, f"{words} --json")[1])["hybrid"]
    assert [row["pcie_bytes"] for row in rows[:5]] == [0] * 5
    assert 0 < rows[-1]["pcie_bytes"] < rows[-1]["nvlink_bytes"]
    assert all(row["pcie_bytes"] + row["nvlink_bytes"] == row["bytes"] for row in rows)
    assert "over PCIe" in run(capsys, words)[1]
    assert "hybrid" not in json.loads(run(capsys, f"{words} --links nvlink --json")[1])


def test_the_loss_stands_in_the_text(capsys: Captured) -> None:
    out = run(capsys, "plan allreduce --topology dgx-1v --gpus 0-2 --links nvlink --loss 0.05")[1]
    assert "loss 5 %" in out


def test_loss_gives_fewer_trees_but_never_less_than_rings(capsys: Captured) -> None:
    plans = {}
    for loss in ("0", "5%", "50%"):
        words = f"plan allreduce --topology dgx-1v --gpus 0-5 --links nvlink --json --loss {loss}"
        plans[loss] = json.loads(run(capsys, words)[1])
    trees = [len(plan["trees"]) for plan in plans.values()]
    assert trees == sorted(trees, reverse=True)
    assert trees[0] > trees[-1]
    assert all(plan["rate_gb_per_s"] >= plan["ring"]["rate_gb_per_s"] for plan in plans.values())
    assert plans["5%"]["loss"] == "1/20"


def test_cpu_ranks_are_planned_where_there_is_no_gpu(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blinkrun.topology.probe.probe_here", lambda: (None, probe_host()))
    code, out, _ = run(capsys, "plan allreduce --gpus 0-3 --json")
    plan = json.loads(out)
    assert (code, plan["what"], plan["links"]) == (0, "rank", "shm")
    assert plan["devices"] == [0, 1, 2, 3]
    assert run(capsys, "plan allreduce --links nvlink")[0] == 2
    assert run(capsys, "plan allreduce --plot x.svg")[0] == 2


def test_this_machine_is_planned_for_the_gpus_that_are_visible(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    four = read_machine(case("p3-8xlarge-v100-4").text)
    monkeypatch.setattr("blinkrun.topology.probe.probe_here", lambda: (four, probe_host()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert json.loads(run(capsys, "plan allreduce --json")[1])["devices"] == [3, 1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert json.loads(run(capsys, "plan allreduce --json")[1])["devices"] == [0, 1, 2, 3]


def test_advice_ranks_by_rate_and_groups_what_is_alike(capsys: Captured) -> None:
    words = "plan --topology dgx-1v --advise 3 --free 0,1,2,4,7 --json"
    code, out, _ = run(capsys, words)
    advice = json.loads(out)
    rates = [group["rate_gb_per_s"] for group in advice["groups"]]
    chosen = [tuple(gpus) for group in advice["groups"] for gpus in group["allocations"]]
    assert (code, advice["collective"], advice["count"]) == (0, "allreduce", 3)
    assert rates == sorted(rates, reverse=True)
    assert sum(group["count"] for group in advice["groups"]) == len(set(chosen)) == 10
    best = ",".join(map(str, chosen[0]))
    plan = json.loads(run(capsys, f"plan allreduce --topology dgx-1v --gpus {best} --json")[1])
    assert plan["rate_gb_per_s"] == rates[0]


@pytest.mark.parametrize(
    "words",
    [
        "allreduce --topology ac922-4 --gpus 0,1,2",
        "allreduce --topology dgx-2 --links nvlink --gpus 0,1",
        "broadcast --topology dgx-1v --gpus 0,1,6 --relays 2 --links nvlink",
        "reduce --topology pcie-8 --gpus 0-3",
    ],
)
def test_pictures_are_the_same_bytes_each_time(
    capsys: Captured, tmp_path: Path, words: str
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    files = [tmp_path / f"{number}.svg" for number in range(2)]
    for file in files:
        assert run(capsys, f"plan {words} --plot {file}")[0] == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"<dc:date>" not in files[0].read_bytes()


DGX1V = "plan allreduce --topology dgx-1v"
WRONG = [
    ("plan", "which collective? one of allreduce, broadcast, reduce, allgather, reducescatter"),
    ("plan allreduc", "collective allreduc is unknown; did you mean allreduce?"),
    ("plan allreduce --topology dgx-1w", "no machine 'dgx-1w' in the catalog; near are dgx-1v"),
    (f"{DGX1V} --gpus 0,9", "--gpus 9: dgx-1v has GPUs 0-7"),
    (f"{DGX1V} --gpus 0,0", "--gpus 0,0: GPU 0 is named twice"),
    (f"{DGX1V} --gpus 0-2,1", "--gpus 0-2,1: GPU 1 is named twice"),
    (f"{DGX1V} --gpus 0", "allreduce of GPU 0 alone: need at least two"),
    (f"{DGX1V} --gpus a", "--gpus a: 'a' is no GPU number; write it as 0,1,4 or 0-3"),
    (f"{DGX1V} --gpus 3-1", "--gpus 3-1: 3-1 is no range of GPU numbers; as 0-3"),
    (f"{DGX1V} --gpus 0 1", "'1' is a word too many; see blinkrun plan --help"),
    (f"{DGX1V} --gpus -1,2", "--gpus needs a value; see blinkrun plan --help"),
    (f"{DGX1V} --root 1", "--root is for broadcast and reduce; allreduce has none"),
    ("plan reduce --topology dgx-1v --gpus 0,1 --root 5", "--root 5 is not among --gpus 0,1"),
    ("plan reduce --topology dgx-1v --root 8", "--root 8: dgx-1v has GPUs 0-7"),
    ("plan reduce --topology dgx-1v --root x", "--root x: need a whole number of at least 0"),
    (
        f"{DGX1V} --links nvlink --gpus 0,1,6,7",
        "no path over NVLink between GPUs 0,1 and GPUs 6,7; --links all or --relays 2 would join",
    ),
    (
        f"{DGX1V} --links nvlink --gpus 1,4,6 --relays 7",
        "no path over NVLink between GPU 1 and GPUs 4,6; --links all or --relays 7,0 would join",
    ),
    (f"{DGX1V} --relays 2", "--relays are GPUs outside the job; say with --gpus which are in it"),
    (f"{DGX1V} --gpus 0,1 --relays 1", "--relays 1: in the job already, as --gpus says"),
    (f"{DGX1V} --gpus 0,1 --relays 9", "--relays 9: dgx-1v has GPUs 0-7"),
    (f"{DGX1V} --links all --loss 1", "--loss 1: need at least 0 and less than 1 (100 %)"),
    (f"{DGX1V} --loss=-1", "--loss -1: need at least 0 and less than 1 (100 %)"),
    (f"{DGX1V} --loss x", "--loss x: not a number; write it as 0.05 or 5%"),
    (f"{DGX1V} --loss 1e-99999999", "--loss 1e-99999999: not a number; write it as 0.05 or 5%"),
    (f"{DGX1V} --links ib", "--links ib is unknown; known are nvlink, pcie, all"),
    (f"{DGX1V} --method exakt", "--method exakt is unknown; did you mean exact?"),
    ("plan allreduce --topology pcie-8 --links nvlink", "pcie-8 has no NVLink"),
    (f"{DGX1V} --links nvlink --method onehop", "one-hop trees need a link between every two"),
    (f"{DGX1V} --plot a.gif", "--plot a.gif: the name must end in .svg, .png, .pdf"),
    (f"{DGX1V} --plot no/a.svg", "--plot no/a.svg: there is no folder no"),
    (f"{DGX1V} --free 0,1", "--free is what --advise chooses from; a plan's GPUs are --gpus"),
    ("plan --topology dgx-1v --advise 1", "--advise 1: need a whole number of at least 2"),
    ("plan --topology dgx-1v --advise 9", "--advise 9: only 8 GPUs are free"),
    ("plan --topology dgx-1v --advise 2 --free 0,9", "--free 9: dgx-1v has GPUs 0-7"),
    (
        "plan --topology dgx-1v --advise 2 --gpus 0,9",
        "--gpus does not go with --advise; the GPUs to choose from are --free",
    ),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, words)
    assert (code, out) == (2, "")
    assert err.startswith(f"blinkrun: plan: {said}")
    assert err.count("\n") == 1


def test_a_wrong_bandwidth_is_named_by_file_and_line(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "measured"
    file.write_text("# of Tuesday\nnvlink2_lne = 20 GB/s\n")
    code, out, err = run(capsys, f"{DGX1V} --bandwidths {file}")
    assert (code, out) == (2, "")
    assert err.startswith(f"blinkrun: {file}:2: no bandwidth is called 'nvlink2_lne'")
    assert err.count("\n") == 1


def test_a_cache_folder_that_cannot_be_used(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path / "file"))
    code, out, err = run(capsys, f"{DGX1V} --gpus 0,1")
    assert (code, out) == (2, "")
    assert err.startswith(f"blinkrun: plan: plan cache {tmp_path / 'file' / 'plans'}: ")
    assert err.count("\n") == 1


def test_a_picture_that_cannot_be_written(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    (tmp_path / "loop.svg").symlink_to(tmp_path / "loop.svg")
    code, out, err = run(capsys, f"{DGX1V} --gpus 0,1 --plot {tmp_path / 'loop.svg'}")
    assert (code, out) == (2, "")
    assert err.startswith(f"blinkrun: plan: --plot {tmp_path / 'loop.svg'}: ")


def test_a_report_without_pairs_cannot_be_planned(capsys: Captured) -> None:
    file = FOLDER / "a100-nvlink-status-ellipsis" / "input.txt"
    code, _, err = run(capsys, f"plan allreduce --topology {file}")
    assert code == 2
    assert "does not say which GPUs are linked" in err
