"""Lists of GPUs and of their NVLinks: what they tell, where they are cut, whose they are."""

import pytest

from blinkrun.topology.machine import LinkStatus
from blinkrun.topology.nvidia_smi import looks_like_nvidia_smi, read_nvidia_reports, read_nvidia_smi

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"


def listed(*gpus, model="NVIDIA A100-SXM4-80GB"):
    """``nvidia-smi nvlink -s`` of GPUs, each given as its links' lines."""
    lines = []
    for k, links in enumerate(gpus):
        lines.append(f"GPU {k}: {model} (UUID: GPU-00{k})")
        lines += [f"\t Link {at}: {link}" for at, link in enumerate(links)]
    return "\n".join(lines) + "\n"


def status_of(text):
    return {one.gpu: one for one in read_nvidia_smi(text).status}


def test_links_are_counted():
    text = listed(["25.781 GB/s"] * 2, ["25 GB/s", "<inactive>"], ["<inactive>"] * 2)
    assert list(status_of(text).values()) == [
        LinkStatus("GPU0", 2, 0, 25.781),
        LinkStatus("GPU1", 1, 1, 25.0),
        LinkStatus("GPU2", 0, 2, None),
    ]
    machine = read_nvidia_smi(text)
    assert [(gpu.lanes, gpu.lane_gb_per_s) for gpu in machine.gpus] == [
        (2, 25.781),
        (1, 25.0),
        (0, None),
    ]
    assert machine.notes == (
        "nvlink -s does not name peers; pair edges are unknown",
        "GPU1: 1 of 2 NVLinks inactive",
        "GPU2: 2 of 2 NVLinks inactive",
    )
    assert (machine.nvlink, machine.pcie) == (None, None)


def test_gpu_without_links_among_others_has_none():
    assert status_of(listed(["25 GB/s"], [], ["25 GB/s"]))["GPU1"] == LinkStatus("GPU1", 0, 0)


def test_slowest_link_counts_and_bits_are_bytes():
    assert status_of(listed(["50 GB/s", "25 GB/s"]))["GPU0"].gb_per_s == 25.0
    assert status_of(listed(["200 Gb/s"]))["GPU0"].gb_per_s == 25.0


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        (listed(["25 GB/s"] * 3, ["25 GB/s"] * 2), {"GPU1"}),
        (listed(["25 GB/s"] * 3, ["25 GB/s"] * 3) + "......", set()),
        (listed(["25 GB/s"] * 3, ["25 GB/s"]) + "......", {"GPU1"}),
        (listed(["25 GB/s"] * 3) + "...", {"GPU0"}),
        (listed(["25 GB/s"] * 3, []), {"GPU1"}),
        (listed(["25 GB/s"] * 2, ["25 GB/s"]) + "[...]\n", {"GPU1"}),
        (listed(["25 GB/s"] * 2, ["25 GB/s", "25.7"]), {"GPU1"}),
        (listed(["25 GB/s"] * 2, ["25 GB/s", "<inac"]), {"GPU1"}),
        (listed(["25 GB/s"] * 2, ["25 GB/s"]).rstrip() + "\n\t Link 1:", {"GPU1"}),
        (listed(["25 GB/s"] * 2, ["25 GB/s"], ["25 GB/s"] * 2), set()),  # not where it ends
        ("...\n" + listed(["25 GB/s"] * 2, ["25 GB/s"] * 2), set()),
        (listed(["25 GB/s"] * 2) + "GPU 1: NVIDIA T4\nall links are inActive", set()),
    ],
)
def test_cut_lists(text, cut):
    assert {one.gpu for one in status_of(text).values() if one.is_cut} == cut
    gpus = {gpu.name: gpu for gpu in read_nvidia_smi(text).gpus}
    assert all(gpus[name].lanes is None for name in cut)


def test_links_without_a_gpu():
    text = "Link 0: 25.781 GB/s\nLink 1: <inactive>\nLink 0: 25.781 GB/s\nLink 1: 25.781 GB/s"
    first, second = read_nvidia_reports(text)
    assert first.gpus == second.gpus == ()
    assert first.status == (LinkStatus("?", 1, 1, 25.781),)
    assert second.status == (LinkStatus("?", 2, 0, 25.781),)
    assert "links are listed without the GPU that they belong to" in first.notes
    (alone,) = read_nvidia_reports("Unable to retrieve: all links are inActive")
    assert alone.status == (LinkStatus("?", 0, None),)


def test_all_on_one_line():
    text = (
        "GPU 0: NVIDIA A100 Link 0: 25 GB/s Link 1: 25 GB/s "
        "GPU 1: NVIDIA A100 (UUID: GPU-ab) Link 0: <inactive>"
    )
    machine = read_nvidia_smi(text)
    assert [(gpu.model, gpu.uuid) for gpu in machine.gpus] == [
        ("NVIDIA A100", ""),
        ("NVIDIA A100", "GPU-ab"),
    ]
    assert [one.active for one in machine.status] == [2, 0]


def test_lists_of_gpus_alone():
    machine = read_nvidia_smi("GPU 0: Tesla T4 (UUID: GPU-a1)\nGPU 1: Tesla T4 (UUID: GPU-b2)\n")
    assert machine.source == "nvidia-smi -L"
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-a1", "GPU-b2"]
    assert machine.status == ()
    assert machine.notes == (
        "a list of GPUs does not tell how they are joined; add nvidia-smi topo -m",
    )


def test_messages_about_gpus_are_no_list():
    assert not looks_like_nvidia_smi("GPU 0: too hot\nGPU 1: 72%\nLink 0: Replay Errors: 0")


def test_models_of_environment_reports():
    text = "GPU models and configuration: \nGPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100\n\n"
    machine = read_nvidia_smi(text + MATRIX)
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA H100 80GB HBM3", "NVIDIA H100"]
    machine = read_nvidia_smi("GPU 0,1: NVIDIA H100\nGPU 0,1 Compute Capability: 9.0\n" + MATRIX)
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA H100", "NVIDIA H100"]


def test_lists_belong_to_the_matrix_that_they_fit():
    lists = [listed(["25 GB/s"] * n, ["25 GB/s"] * n) for n in (2, 3)]
    below = read_nvidia_reports(MATRIX + lists[0] + MATRIX.replace("NV4", "NV6") + lists[1])
    above = read_nvidia_reports(lists[0] + MATRIX + lists[1] + MATRIX.replace("NV4", "NV6"))
    for machines in (below, above):
        assert [machine.gpus[0].lanes for machine in machines] == [2, 3]
    (joined,) = read_nvidia_reports(MATRIX + listed([]) + lists[0])
    assert joined.gpus[1].lanes == 2


def test_one_gpu_after_the_other():
    text = MATRIX + listed(["25 GB/s"]) + "GPU 1: NVIDIA A100-SXM4-80GB\n Link 0: <inactive>\n"
    assert [one.gpu for one in read_nvidia_smi(text).status] == ["GPU0", "GPU1"]


def test_lists_of_other_gpus_than_the_matrix_are_noted():
    machine = read_nvidia_smi(MATRIX + listed(["25 GB/s"], ["25 GB/s"], ["25 GB/s"]))
    assert machine.notes == ("GPU2: listed, but not in the matrix",)
    assert machine.num_gpus == 2


def test_lists_that_contradict_one_another_are_of_two_machines():
    other = listed(["25 GB/s"]).replace("GPU-000", "GPU-fff")
    assert len(read_nvidia_reports(listed(["25 GB/s"]) + other)) == 2
    assert len(read_nvidia_reports(MATRIX + listed(["25 GB/s"]) + other)) == 2
    models = "GPU 0: Tesla T4\n" + "GPU 0: Tesla V100\n"
    assert len(read_nvidia_reports(models)) == 2


def test_the_same_list_three_hundred_times_is_one():
    (machine,) = read_nvidia_reports(listed(["25 GB/s"]) * 300)
    assert machine.status == (LinkStatus("GPU0", 1, 0, 25.0),)
