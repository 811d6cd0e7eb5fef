"""What people pasted of nvidia-smi gives exactly what their case says."""

import json
from pathlib import Path

import pytest

from blinkrun.errors import ReportError
from blinkrun.topology.nvidia_smi import looks_like_nvidia_smi, read_nvidia_reports, read_nvidia_smi
from blinkrun.topology.serialize import facts

CASES = Path(__file__).parents[2] / "data" / "topologies"
ALWAYS = {"gpu_names", "nics", "nvlink", "pcie", "xgmi", "gpu_nic"}


def case_of(name):
    case = json.loads((CASES / name / "case.json").read_text(encoding="utf-8"))
    return case, (CASES / name / case["input"]).read_bytes().decode()


def is_ours(name):
    case, _ = case_of(name)
    return "nvidia-smi" in case["format"]


NAMES = sorted(path.name for path in CASES.iterdir())
OURS = [name for name in NAMES if is_ours(name)]
BROKEN = ["dgx2-16-rows-missing"]


def stated(machine):
    """Facts without those keys that are empty because a machine has no such thing."""
    return {key: value for key, value in facts(machine).items() if value or key != "xgmi"}


def expected(case):
    notes = {"note", "affinity_note"}
    return {"gpu_nic": {}} | {k: v for k, v in case["expected"].items() if k not in notes}


@pytest.mark.parametrize("name", [name for name in OURS if name not in BROKEN])
def test_case_gives_its_facts(name):
    case, text = case_of(name)
    machine = read_nvidia_smi(text, name)
    assert stated(machine) == expected(case)
    assert read_nvidia_smi(text, name, partial=True) == machine
    assert read_nvidia_reports(text, name) == (machine,)


def test_rows_that_are_missing_are_named_and_left_out_if_asked():
    case, text = case_of("dgx2-16-rows-missing")
    with pytest.raises(ReportError, match=r"^dgx2:6: rows GPU5\.\.GPU15 are missing") as caught:
        read_nvidia_smi(text, "dgx2")
    assert caught.value.partial
    assert stated(read_nvidia_smi(text, "dgx2", partial=True)) == expected(case)


@pytest.mark.parametrize("name", NAMES)
def test_format_is_recognised(name):
    _, text = case_of(name)
    assert looks_like_nvidia_smi(text) == is_ours(name)


def test_cells_that_ran_together_are_parted():
    machine = read_nvidia_smi(case_of("hgx-8-fused-affinity")[1])
    assert {(gpu.cpus, gpu.numa) for gpu in machine.gpus[:4]} == {("0-45,92-137", 0)}
    assert {(gpu.cpus, gpu.numa) for gpu in machine.gpus[4:]} == {("46-91,138-183", 1)}
    assert "'0-45,92-1370' read as" in machine.notes[0]


def test_affinities_are_those_printed():
    numas = {
        "polaris-a100-4-header-no-tab": [3, 2, 1, 0],
        "power9-ac922-v100-4": [0, 0, 8, 8],
        "h100-pcie-8-cross-numa-bridge": [0, 0, 0, 1, 1, 1, 1, 1],
        "titanrtx-2-nv2": [None, None],
        "a100-4-nv4-one-cpu-cgroup": [None] * 4,  # 0-1 is no node
    }
    for name, numa in numas.items():
        assert [gpu.numa for gpu in read_nvidia_smi(case_of(name)[1]).gpus] == numa


def test_lists_fill_models_and_links():
    machine = read_nvidia_smi(case_of("a6000-3-one-without-bridge")[1])
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA RTX A6000"] * 3
    assert [(gpu.lanes, gpu.lane_gb_per_s) for gpu in machine.gpus] == [
        (4, 14.062),
        (4, 14.062),
        (0, None),
    ]
    assert machine.gpus[1].uuid == "GPU-00000000-0000-0000-0000-000000000001"
    cut = read_nvidia_smi(case_of("a100-nvlink-status-ellipsis")[1])
    assert [gpu.lanes for gpu in cut.gpus] == [12, 12, None]
