"""Wires or switches: what counts between GPUs speak for."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.topology.bandwidth import DEFAULT
from blinkrun.topology.fabric import FabricKind, fabric_of, lane_mb_per_s
from blinkrun.topology.machine import Gpu, LinkStatus, Machine, NvSwitch, Wire, Xgmi
from blinkrun.topology.model_gpus import kind_of


def machine_of(lanes, size=None, gpu=None, **parts):
    """A machine of GPUs like `gpu` from {(low, high): lanes}."""
    count = size or 1 + max(high for _, high in lanes)
    gpus = tuple(gpu or Gpu(f"GPU{at}") for at in range(count))
    wires = tuple(Wire(*pair, number) for pair, number in lanes.items())
    return Machine("m", "by hand", gpus, nvlink=wires, **parts)


def uniform(size, lanes):
    return dict.fromkeys(combinations(range(size), 2), lanes)


A100 = Gpu("GPU0", model="NVIDIA A100-SXM4-80GB")
V100 = Gpu("GPU0", model="Tesla V100-SXM2-32GB")
H100 = Gpu("GPU0", arch="90")


@pytest.mark.parametrize(
    ("lanes", "gpu", "kind", "each", "generation"),
    [
        (uniform(4, 4), None, "direct", 12, "nvlink3"),
        (uniform(4, 2), None, "direct", 6, "nvlink2"),
        (uniform(4, 6), None, "direct", 18, "nvlink4"),  # HGX H100 with four GPUs
        (uniform(4, 6), H100, "direct", 18, "nvlink4"),
        (uniform(4, 6), V100, "switch", 6, "nvlink2"),  # four GPUs of a DGX-2
        (uniform(3, 6), None, "switch", 6, "nvlink2"),
        (uniform(3, 6), A100, "direct", 12, "nvlink3"),
        (uniform(3, 4), None, "direct", 8, "nvlink3"),  # three GPUs of a mesh of four
        (uniform(3, 8), None, "switch", 8, "nvlink3"),
        (uniform(6, 18), None, "switch", 18, "nvlink4"),
        (uniform(16, 6), None, "switch", 6, "nvlink2"),
        (uniform(8, 10), None, "switch", 10, "nvlink3"),  # two of twelve lanes down on all
        (uniform(3, 5), V100, "switch", 5, "nvlink2"),
        (uniform(8, 12), A100, "switch", 12, "nvlink3"),
        (uniform(72, 18), Gpu("x", model="NVIDIA GB200"), "switch", 18, "nvlink5"),
        (uniform(2, 18), None, "direct", 18, "nvlink4"),
        (uniform(2, 4), None, "direct", 4, "nvlink3_ga102"),
        (uniform(2, 3), None, "direct", 3, "nvlink3_ga102"),  # a bridge of four, one down
        (uniform(2, 2), None, "direct", 2, "nvlink2"),
        (uniform(4, 1), None, "direct", 3, "nvlink1"),
        ({(0, 1): 3, (2, 3): 3}, None, "direct", 3, "nvlink2"),  # AC922
        (uniform(2, 12), H100, "direct", 12, "nvlink4"),
        (uniform(2, 2), Gpu("x", lane_gb_per_s=25.781), "direct", 2, "nvlink2"),
        (uniform(2, 4), Gpu("x", lane_gb_per_s=14.062), "direct", 4, "nvlink3_ga102"),
        (uniform(2, 40), None, "direct", 40, "nvlink4"),
    ],
)
def test_counts_tell_wires_from_switches(lanes, gpu, kind, each, generation):
    fabric = fabric_of(machine_of(lanes, gpu=gpu))
    assert (fabric.kind, set(fabric.lanes), fabric.generation) == (kind, {each}, generation)
    assert fabric.pairs == set(lanes)


@given(st.integers(2, 8), st.data())
def test_wires_within_a_gpus_lanes_stay_wires(size, data):
    """No GPU of a V100's six lanes is taken for switched while its wires fit."""
    budget = dict.fromkeys(range(size), 6)
    lanes = {}
    for low, high in combinations(range(size), 2):
        count = data.draw(st.integers(0, min(2, budget[low], budget[high])))
        if count:
            lanes[low, high] = count
            budget[low] -= count
            budget[high] -= count
    fabric = fabric_of(machine_of(lanes, size=size, gpu=V100))
    assert fabric.kind == (FabricKind.DIRECT if lanes else FabricKind.NONE)
    assert {(wire.low, wire.high): wire.lanes for wire in fabric.wires} == lanes
    assert fabric.lanes == tuple(6 - budget[gpu] for gpu in range(size))


def test_one_weak_gpu_behind_a_switch_has_a_smaller_port():
    lanes = uniform(8, 12) | {pair: 10 for pair in uniform(8, 12) if 3 in pair}
    fabric = fabric_of(machine_of(lanes, gpu=A100))
    assert fabric.ports == (12, 12, 12, 10, 12, 12, 12, 12)
    assert fabric.narrow == ()


def test_a_weak_pair_behind_a_switch_is_narrow():
    fabric = fabric_of(machine_of(uniform(8, 12) | {(2, 5): 9}, gpu=A100))
    assert set(fabric.ports) == {12}
    assert fabric.narrow == (Wire(2, 5, 9),)


def test_pairs_that_a_cut_report_leaves_out_are_behind_the_switch_too():
    lanes = {pair: 6 for pair in uniform(16, 6) if pair[0] < 5}
    fabric = fabric_of(machine_of(lanes))
    assert fabric.islands == (tuple(range(16)),)
    assert len(fabric.pairs) == 120


def test_groups_are_judged_each_for_itself():
    lanes = uniform(4, 12) | {(4, 5): 4}
    fabric = fabric_of(machine_of(lanes, size=7))
    assert (fabric.islands, fabric.wires) == (((0, 1, 2, 3),), (Wire(4, 5, 4),))
    assert fabric.lanes == (12, 12, 12, 12, 4, 4, 0)


def test_named_switches_are_taken_as_they_are():
    switches = (NvSwitch("s0", (5, 5, 5, 0)), NvSwitch("s1", (4, 4, 3, 0)))
    fabric = fabric_of(machine_of({(0, 3): 2}, size=4, switches=switches))
    assert fabric.ports == (9, 9, 8, 0)
    assert fabric.islands == ((0, 1, 2),)
    assert fabric.wires == (Wire(0, 3, 2),)
    assert fabric.lanes == (11, 9, 8, 2)
    assert fabric.narrow == ()


def test_gpus_of_unlike_switches_are_islands():
    switches = (NvSwitch("s0", (6, 6, 0, 0)), NvSwitch("s1", (0, 0, 6, 6)))
    fabric = fabric_of(machine_of({}, size=4, switches=switches))
    assert fabric.islands == ((0, 1), (2, 3))


def test_active_lanes_decide_where_they_are_stated():
    stated = Gpu("GPU0", lanes=6)
    assert fabric_of(machine_of(uniform(3, 5), gpu=stated)).kind is FabricKind.SWITCH
    assert fabric_of(machine_of(uniform(3, 3), gpu=stated)).kind is FabricKind.DIRECT
    # fewer than a pair shows: the list is not to be trusted, marked as cut or not
    assert fabric_of(machine_of(uniform(3, 3), gpu=Gpu("GPU0", lanes=1))).kind is FabricKind.DIRECT
    cut = (LinkStatus("GPU0", 4, is_cut=True),)
    few = Gpu("GPU0", lanes=4)
    assert fabric_of(machine_of(uniform(3, 4), gpu=few)).kind is FabricKind.SWITCH
    assert fabric_of(machine_of(uniform(3, 4), gpu=few, status=cut)).kind is FabricKind.DIRECT


def test_xgmi_is_direct_and_counts_one_link_a_hop():
    gpus = tuple(Gpu(f"GPU{at}") for at in range(3))
    xgmi = (Xgmi(0, 1, hops=1, weight=15), Xgmi(0, 2, hops=2, weight=30), Xgmi(1, 2, lanes=4))
    fabric = fabric_of(Machine("m", "by hand", gpus, xgmi=xgmi))
    assert fabric.wires == (Wire(0, 1, 1), Wire(1, 2, 4))
    assert (fabric.kind, fabric.is_xgmi) == (FabricKind.DIRECT, True)


def test_beside_nvlink_there_is_no_xgmi():
    machine = machine_of({(0, 1): 2}, xgmi=(Xgmi(0, 1, hops=1),))
    assert fabric_of(machine).generation == "nvlink2"
    assert fabric_of(machine).wires == (Wire(0, 1, 2),)


@pytest.mark.parametrize(
    ("size", "gpu", "generation"),
    [
        (4, Gpu("x"), "xgmi2"),
        (8, Gpu("x"), "xgmi3"),
        (8, Gpu("x", arch="gfx908"), "xgmi1"),
        (8, Gpu("x", model="AMD Instinct MI300X"), "xgmi3"),
        (4, Gpu("x", model="NVIDIA A100-SXM4-80GB"), "xgmi2"),  # nonsense does no harm
    ],
)
def test_generation_of_xgmi(size, gpu, generation):
    xgmi = tuple(Xgmi(*pair, hops=1) for pair in combinations(range(size), 2))
    fabric = fabric_of(Machine("m", "by hand", (gpu,) * size, xgmi=xgmi))
    assert fabric.generation == generation


def test_a_lane_is_worth_what_its_generation_achieves():
    assert lane_mb_per_s(machine_of(uniform(2, 2), gpu=V100), DEFAULT) == 23_000
    assert lane_mb_per_s(machine_of({}, size=2), DEFAULT) == 0
    assert (
        lane_mb_per_s(Machine("m", "x", (Gpu("a"), Gpu("b")), xgmi=(Xgmi(0, 1, hops=1),)), DEFAULT)
        == DEFAULT["xgmi2_lane"]
    )
    measured = DEFAULT.updated({"nvlink2_lane": 20_000}, "measured")
    assert lane_mb_per_s(machine_of(uniform(2, 2), gpu=V100), measured) == 20_000


def test_a_stated_lane_speed_scales_it_unless_it_is_merely_rounded():
    def lane(**stated):
        return lane_mb_per_s(machine_of(uniform(2, 2), gpu=Gpu("x", **stated)), DEFAULT)

    assert lane(model="Tesla V100-SXM2-16GB", lane_gb_per_s=25.0) == 23_000
    assert lane(model="Tesla V100-SXM2-16GB", lane_gb_per_s=25.781 / 2) == 11_500
    assert lane(model="Tesla V100-SXM2-16GB", lane_gb_per_s=1e-9) == 1
    assert lane(lane_gb_per_s=14.062) == DEFAULT["nvlink3_ga102_lane"]


@pytest.mark.parametrize(
    ("model", "lanes"),
    [
        ("Tesla P100-SXM2-16GB", 4),
        ("Tesla V100-SXM3-32GB", 6),
        ("NVIDIA A100-SXM4-80GB", 12),
        ("NVIDIA A800-SXM4-80GB", 8),
        ("NVIDIA H100 80GB HBM3", 18),
        ("NVIDIA H800", 8),
        ("NVIDIA H20", 18),
        ("NVIDIA H200", 18),
        ("NVIDIA GH200 480GB", 18),
        ("NVIDIA B200", 18),
        ("NVIDIA B300 SXM6 AC", 18),
        ("NVIDIA GB200", 18),
        ("NVIDIA GB300", 18),
        ("NVIDIA RTX A6000", 4),
        ("NVIDIA A40", 4),
        ("NVIDIA A30", 4),
        ("NVIDIA RTX A5000", 4),
        ("NVIDIA GeForce RTX 3090", 4),
        ("NVIDIA TITAN RTX", 2),
        ("Quadro RTX 8000", 2),
        ("Quadro RTX 6000", 2),
        ("NVIDIA RTX 6000 Ada Generation", 0),
        ("NVIDIA GeForce RTX 2080 Ti", 2),
        ("Quadro GV100", 4),
        ("NVIDIA GeForce RTX 4090", 0),
        ("NVIDIA GeForce RTX 5090", 0),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 0),
        ("NVIDIA L40S", 0),
        ("NVIDIA L4", 0),
        ("NVIDIA A10G", 0),
        ("NVIDIA A2", 0),
        ("Tesla T4", 0),
        ("Tesla K80", 0),
        ("AMD Instinct MI210", 3),
        ("AMD Instinct MI300X", 7),
        ("AMD Instinct MI250X", 8),
    ],
)
def test_lanes_of_known_models(model, lanes):
    assert kind_of(Gpu("GPU0", model=model)).lanes == lanes


def test_models_without_peer_access_over_pcie():
    def has_peer(model):
        return kind_of(Gpu("GPU0", model=model)).has_peer

    for model in ("RTX 2080 Ti", "RTX 3090", "RTX 4090", "RTX 5090"):
        assert not has_peer(f"NVIDIA GeForce {model}")
    for model in ("NVIDIA RTX 4000 Ada Generation", "Quadro RTX 5000", "NVIDIA RTX A4000"):
        assert has_peer(model)
    assert kind_of(Gpu("GPU0", model="Abacus 3000")) is None
    assert kind_of(Gpu("GPU0", arch="sm_90")) == kind_of(Gpu("GPU0", arch="9.0"))
