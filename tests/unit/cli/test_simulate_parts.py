"""The parts of simulate that need no command: options, scenes, bounds, text and traces."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mutants import mutants

from blinkrun.cli import simulate_many
from blinkrun.cli.simulate_many import over_equal_hosts, verify_over_hosts
from blinkrun.cli.simulate_options import SimulateOptions, parse, parse_hosts, parse_sizes
from blinkrun.cli.simulate_scene import Scene, in_mb_per_s, scene_of
from blinkrun.cli.simulate_text import simulate_text, size_text
from blinkrun.cli.simulate_trees import Trees
from blinkrun.cli.simulating import fitted, num_blocks, simulate_all, trace_of
from blinkrun.cli.source import Source
from blinkrun.cli.subject import Subject, subject_of
from blinkrun.errors import ProgramError, UsageError
from blinkrun.planner.multihost import plan_equal_hosts
from blinkrun.planner.rings import ring_peer
from blinkrun.topology.model import LinkSet
from blinkrun.units import parse_size


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def dgx1() -> Subject:
    return subject_of(Source("dgx-1v"))


def options(words: str) -> SimulateOptions:
    found = parse(words.split())
    assert found is not None
    return found


def scene(subject: Subject, words: str) -> Scene:
    return scene_of(subject, options(words))


def test_every_option_reaches_its_value():
    found = options(
        "broadcast --topology m --gpus 3,1/0-2 --sizes 1M,4 --root 1 --links pcie --against ring "
        "--trees packed --chunk 64K --channels 2 --hosts 2 --network-gbps 40 --json --trace t.json"
    )
    assert (found.collective, found.source.name, found.root) == ("broadcast", "m", 1)
    assert found.gpus == ((3, 1), (0, 1, 2))
    assert (found.sizes, found.is_default) == ((4, 1 << 20), False)
    assert (found.links, found.against, found.trees) == ("pcie", "ring", "packed")
    assert (found.chunk_bytes, found.channels) == (1 << 16, 2)
    assert (found.hosts, found.network_gbps, found.json) == (2, 40, True)
    assert str(found.trace) == "t.json"


def test_the_usual_sizes_go_from_a_kilobyte_to_a_gigabyte():
    found = options("allreduce")
    assert found.is_default
    assert (found.sizes[0], found.sizes[-1]) == (1 << 10, 1 << 30)
    assert found.sizes == tuple(sorted(set(found.sizes)))


@given(st.lists(st.integers(1, 1 << 40), min_size=1))
def test_sizes_come_in_order_and_once(sizes):
    assert parse_sizes(",".join(map(str, sizes))) == tuple(sorted(set(sizes)))


@given(st.integers(1, 1 << 42))
def test_a_size_is_written_exactly(size):
    number, unit = size_text(size).split(" ")
    worth = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    if unit in worth:
        assert int(number) * worth[unit] == size
    else:
        assert parse_size(number + unit) == size


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, unique=True), min_size=1, max_size=4))
def test_hosts_are_read_as_they_are_written(hosts):
    text = "/".join(",".join(map(str, host)) for host in hosts)
    assert parse_hosts(text) == tuple(map(tuple, hosts))


def test_nvlink_alone_counts_the_same_as_in_all_links(dgx1):
    """Lanes become MB/s; nothing else changes."""
    lanes, rates = dgx1.topology(LinkSet.NVLINK), in_mb_per_s(dgx1, LinkSet.NVLINK)
    assert rates.unit == "MB/s"
    assert [link.resources for link in rates.links] == [link.resources for link in lanes.links]
    for lane, rate in zip(lanes.resources, rates.resources, strict=True):
        assert (lane.name, lane.capacity * 23_000) == (rate.name, rate.capacity)


def test_rings_may_use_pcie_where_nvlink_closes_none(dgx1):
    found = scene(dgx1, "allreduce --gpus 0,1,4 --links nvlink")
    assert ring_peer(found.rings, found.flow).kind == "pcie"
    assert {link.kind.value for link in found.topology.links} == {"nvlink"}
    only = scene(dgx1, "allreduce --gpus 0,1,4 --links pcie")
    assert only.rings == only.topology


def test_ranks_are_host_by_host_in_the_order_given(dgx1):
    found = scene(dgx1, "reduce --gpus 5,3/0,1,2 --root 3 --hosts 2 --network-gbps 40")
    assert found.topology.devices == (5, 3, 1000, 1001, 1002)
    assert found.root == 1
    assert [host.devices for host in found.hosts] == [(5, 3), (0, 1, 2)]
    network = {r.name: r.capacity for r in found.topology.resources if "network" in r.name}
    assert set(network.values()) == {5000}
    assert len(network) == 4


def test_the_same_gpus_on_every_host_unless_told_otherwise(dgx1):
    found = scene(dgx1, "allreduce --gpus 0,3 --hosts 3 --network-gbps 100")
    assert [host.devices for host in found.hosts] == [(0, 3)] * 3


def test_a_host_may_have_a_single_gpu_but_a_job_may_not(dgx1):
    found = scene(dgx1, "allreduce --gpus 0/3 --hosts 2 --network-gbps 100")
    assert found.topology.size == 2
    with pytest.raises(UsageError, match="GPU 3 alone"):
        scene(dgx1, "allreduce --gpus 3")


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall"])
def test_every_block_has_whole_elements(dgx1, collective):
    found = scene(dgx1, f"{collective} --gpus 0-2")
    blocks = num_blocks(found)
    assert blocks == (1 if collective == "allreduce" else 3)
    sizes = fitted(found, options(f"{collective} --sizes 1000,1001,4096"))
    assert all(size % (4 * blocks) == 0 for size in sizes)
    assert max(sizes) > 4096 - 4 * blocks


def test_sizes_that_nobody_asked_for_are_left_out_if_too_small(dgx1):
    found = scene(dgx1, "allgather")
    usual = replace(options("allgather"), sizes=(4, 1024))
    assert fitted(found, usual) == (1024,)
    with pytest.raises(UsageError, match="too small"):
        fitted(found, replace(usual, is_default=False))


def test_the_bound_of_alltoall_is_that_of_its_fullest_port():
    """Three of four ranks' blocks leave by a port of 138 GB/s: four thirds of it."""
    found = scene(subject_of(Source("dgx-2")), "alltoall --gpus 0-3")
    assert Trees(found, "auto").bound.mb_per_s == Fraction(4, 3) * 138_000


def test_the_bound_is_the_same_whatever_trees_are_chosen(dgx1):
    found = scene(dgx1, "allreduce --gpus 0-3 --links nvlink")
    bounds = {Trees(found, trees).bound for trees in ("auto", "packed", "few", "shallow")}
    assert len(bounds) == 1
    for candidate in Trees(found, "auto").candidates:
        assert candidate.packing.rate <= bounds.copy().pop().mb_per_s


def test_hosts_are_bound_by_their_network_or_by_their_own_links(dgx1):
    words = "allreduce --gpus 0,1,4 --hosts 2 --network-gbps"
    slow = Trees(scene(dgx1, f"{words} 40"), "auto").bound
    fast = Trees(scene(dgx1, f"{words} 4000"), "auto").bound
    assert slow.mb_per_s == 5000
    assert "networks carry 5 GB/s" in slow.why
    assert 5000 < fast.mb_per_s < 500_000
    assert "inside a host" in fast.why


def test_trees_over_equal_hosts_span_them_with_each_host_on_top(dgx1, monkeypatch):
    """What is verified in place of a program of all ranks: with a fault it is refused."""
    host = scene(dgx1, "allreduce --gpus 0,1,4").topology
    local, _ = plan_equal_hosts(host, num_hosts=5, network_mb_per_s=5000)
    verify_over_hosts(host, local)
    packing = over_equal_hosts(host, local, 3)
    assert {tree.root // host.size for tree in packing.trees} == {0, 1, 2}
    assert len(packing.trees) == 3 * len(local.trees)
    right = simulate_many.lower_packing

    def wrong(*args, **kwargs):
        _, mutant = next(mutants(right(*args, **kwargs)))
        return mutant

    monkeypatch.setattr(simulate_many, "lower_packing", wrong)
    with pytest.raises(ProgramError):
        verify_over_hosts(host, local)


def test_few_trees_are_no_more_than_packed_ones(dgx1):
    found = scene(dgx1, "broadcast --links nvlink")
    few, best = Trees(found, "few").candidates[0], Trees(found, "packed").candidates[0]
    assert len(few.packing.trees) <= len(best.packing.trees)
    assert few.packing.rate >= best.packing.rate * Fraction(94, 100)


def test_progress_is_told_before_each_size(dgx1):
    told = []
    words = "allreduce --gpus 0,1,4 --links nvlink --trees packed --chunk 64K --channels 1"
    asked = options(f"{words} --sizes 1K,4K,16K")
    simulate_all(dgx1, asked, lambda done, of: told.append((done, of)))
    assert told == [(0, 3), (1, 3), (2, 3)]


def test_a_trace_without_rings_has_trees_alone(dgx1):
    words = "allreduce --gpus 0,1,4 --links nvlink --trees packed --chunk 64K --channels 1"
    found = simulate_all(dgx1, options(f"{words} --sizes 1M"), lambda done, of: None)
    trace = trace_of(found)
    assert set(trace["otherData"]) == {"trees"}
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names
    assert all(name.startswith("trees: ") for name in names)


def test_where_no_ring_closes_the_table_says_so(dgx1):
    words = "allreduce --gpus 0,1,4 --links nvlink --trees packed --chunk 64K --channels 1"
    found = simulate_all(dgx1, options(f"{words} --sizes 1M"), lambda done, of: None).report
    found |= {"against": "ring", "ring": {"kind": "none", "rings": 0, "rate_gb_per_s": 0.0}}
    text = simulate_text(found)
    assert "none: these links close no ring" in text
    assert text.endswith("\n")
    assert all(len(line) <= 130 for line in text.splitlines())
