"""`blinkrun plan --json`: its schema, and its claims checked from nothing but it and the links.

What the planner computed is not used here: rates, use, bound and depth are computed anew.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from support.corpus import FOLDER

from blinkrun.launcher.cli import main
from blinkrun.topology.catalog import described
from blinkrun.topology.graph import Topology
from blinkrun.topology.machine import Machine
from blinkrun.topology.model import LinkSet, topology_of
from blinkrun.topology.read import read_machine

NUMBER = (int, float)
SCHEMA: dict[str, Any] = {
    "version": int,
    "machine": str,
    "what": str,
    "collective": str,
    "links": str,
    "method": str,
    "loss": str,
    "devices": [int],
    "relays": [int],
    "root": (int, type(None)),
    "rate_gb_per_s": NUMBER,
    "rate_exact": str,
    "unit": str,
    "unit_gb_per_s": NUMBER,
    "bound_gb_per_s": NUMBER,
    "bound_exact": str,
    "is_optimal": bool,
    "certificate": {"prices": dict, "partition": [[int]], "why": str},
    "trees": [
        {"root": int, "rate_gb_per_s": NUMBER, "rate_exact": str, "depth": int, "edges": [list]}
    ],
    "resources": dict,
    "ring": {
        "rate_gb_per_s": NUMBER,
        "rings": int,
        "kind": str,
        "is_exact": bool,
        "orders": [[int]],
        "ratio": (*NUMBER, type(None)),
    },
    "times": [
        {
            "bytes": int,
            "trees": str,
            "seconds": NUMBER,
            "algbw_gb_per_s": NUMBER,
            "ring_seconds": (*NUMBER, type(None)),
        }
    ],
}
HYBRID = [{"bytes": int, "nvlink_bytes": int, "pcie_bytes": int, "seconds": NUMBER}]
CORPUS = {name: FOLDER / name for name in ("a6000-8-nv4-pairs-slurm", "azure-ndv4-a100-8")}


def machine_of(name: str) -> tuple[str, Machine]:
    """What to write for --topology, and what it means."""
    if name not in CORPUS:
        return name, described(name)
    (file,) = CORPUS[name].glob("input.*")
    return str(file), read_machine(file.read_text())


def check_schema(value: Any, schema: Any, where: str = "plan") -> None:
    """Assert that `value` has the keys and types of `schema`, no more and no less."""
    if isinstance(schema, dict):
        assert isinstance(value, dict), where
        assert set(value) == set(schema), where
        for key, part in schema.items():
            check_schema(value[key], part, f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for at, item in enumerate(value):
            check_schema(item, schema[0], f"{where}[{at}]")
    else:
        assert isinstance(value, schema), where


def ways(collective: str, edge: list[Any]) -> list[tuple[int, int, str]]:
    """The links that an edge takes: (src, dst, kind)."""
    src, dst, kinds = edge
    if collective != "allreduce":
        return [(src, dst, kinds)]
    down, _, up = kinds.partition("/")
    return [(src, dst, down), (dst, src, up or down)]


def check_tree(plan: dict[str, Any], tree: dict[str, Any]) -> None:
    """Assert that the edges lead from the root to all devices, or to the root, at that depth."""
    up = plan["collective"] in ("reduce", "reducescatter")
    depth = {tree["root"]: 0}
    for src, dst, _ in tree["edges"]:
        parent, child = (dst, src) if up else (src, dst)
        assert child not in depth, "an edge into what is reached already"
        depth[child] = depth[parent] + 1  # edges stand in the order of the root's data
    assert set(plan["devices"]) <= set(depth) <= {*plan["devices"], *plan["relays"]}
    assert tree["depth"] == max(depth.values())


def use_of(plan: dict[str, Any], topology: Topology) -> Counter[str]:
    """GB/s on each resource, from the trees."""
    links: dict[tuple[int, int, str], list[tuple[str, ...]]] = {}
    for link in topology.links:
        links.setdefault((link.src, link.dst, link.kind.value), []).append(link.resources)
    use: Counter[str] = Counter()
    for tree in plan["trees"]:
        for edge in tree["edges"]:
            for way in ways(plan["collective"], edge):
                (resources,) = links[way]
                for name in resources:
                    use[name] += tree["rate_gb_per_s"]
    return use


CASES = [
    ("dgx-1v", "allreduce", "--links nvlink"),
    ("dgx-1v", "allreduce", "--gpus 0,1,4,6"),
    ("dgx-1v", "allreduce", "--gpus 1,7 --relays 2,3 --links nvlink"),
    ("dgx-1v", "broadcast", "--gpus 0,1,6 --root 6 --relays 2 --links nvlink"),
    ("dgx-1v", "broadcast", "--gpus 3,0,5 --root 0"),
    ("dgx-1v", "reduce", "--gpus 0-4 --links nvlink"),
    ("dgx-1v", "allgather", "--gpus 0-3 --links nvlink"),
    ("dgx-1v", "reducescatter", "--gpus 0-3 --links nvlink"),
    ("dgx-1v", "allreduce", "--gpus 0-5 --links nvlink --loss 5%"),
    ("dgx-1v", "broadcast", "--links nvlink --method mwu"),
    ("dgx-1v", "allreduce", "--gpus 0-3 --method paper"),
    ("dgx-2", "allreduce", "--links nvlink"),
    ("dgx-2", "broadcast", "--links nvlink --gpus 0-7 --root 3"),
    ("dgx-2", "allgather", "--links nvlink --gpus 0-5 --method onehop"),
    ("pcie-8", "allreduce", "--gpus 0-3"),
    ("mi210-4", "allreduce", ""),
    ("a6000-8-nv4-pairs-slurm", "allreduce", "--gpus 0-3"),
    ("azure-ndv4-a100-8", "reduce", "--gpus 0,1,2 --root 1"),
]


@pytest.mark.parametrize(("name", "collective", "words"), CASES, ids=[" ".join(c) for c in CASES])
def test_what_a_plan_claims_is_true(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    name: str,
    collective: str,
    words: str,
) -> None:
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    source, machine = machine_of(name)
    assert main(f"plan {collective} --topology {source} --json {words}".split()) == 0
    plan = json.loads(capsys.readouterr().out)
    hybrid = {"hybrid": HYBRID} if plan["method"] == "paper" and plan["unit"] == "GB/s" else {}
    check_schema(plan, SCHEMA | hybrid)
    topology = topology_of(machine, LinkSet(plan["links"]))

    for tree in plan["trees"]:
        check_tree(plan, tree)
    use, resources = use_of(plan, topology), plan["resources"]
    for resource, numbers in resources.items():
        assert set(numbers) == {"capacity_gb_per_s", "used_gb_per_s"}
        assert numbers["used_gb_per_s"] == pytest.approx(use.pop(resource, 0.0))
        assert numbers["used_gb_per_s"] <= numbers["capacity_gb_per_s"] * (1 + 1e-12)
    assert not use, "on resources that are not listed"

    unit = plan["unit_gb_per_s"]
    for key in ("rate", "bound"):
        assert plan[f"{key}_gb_per_s"] == pytest.approx(
            float(Fraction(plan[f"{key}_exact"])) * unit
        )
    total = sum((Fraction(tree["rate_exact"]) for tree in plan["trees"]), Fraction(0))
    assert total == Fraction(plan["rate_exact"]) <= Fraction(plan["bound_exact"])
    prices = plan["certificate"]["prices"]
    paid = sum(float(Fraction(p)) * resources[r]["capacity_gb_per_s"] for r, p in prices.items())
    assert paid == pytest.approx(plan["bound_gb_per_s"])
    parts = plan["certificate"]["partition"]
    assert sorted(gpu for part in parts for gpu in part) == sorted(plan["devices"])
    if plan["method"] == "exact" and plan["loss"] == "0":
        assert plan["is_optimal"]
        if plan["links"] != "nvlink":
            assert plan["rate_gb_per_s"] >= plan["ring"]["rate_gb_per_s"] * (1 - 1e-12)
    if plan["links"] == "nvlink":
        assert plan["unit"] == "lane"
    for order in plan["ring"]["orders"]:
        assert sorted(order) == sorted(plan["devices"])


def test_the_ranking_has_a_schema_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--topology", "dgx-1v", "--advise", "2", "--free", "0,1,7", "--json"]) == 0
    check_schema(
        json.loads(capsys.readouterr().out),
        {
            "version": int,
            "machine": str,
            "what": str,
            "collective": str,
            "links": str,
            "free": [int],
            "count": int,
            "root": (int, type(None)),
            "groups": [
                {
                    "rate_gb_per_s": NUMBER,
                    "ring_gb_per_s": NUMBER,
                    "ratio": (*NUMBER, type(None)),
                    "count": int,
                    "allocations": [[int]],
                    "why": str,
                }
            ],
        },
    )
