"""GPUs and NVLinks as NVIDIA's library tells of them, through a stand-in for its module."""

import pytest
from support.fake_nvml import NPU, SWITCH, UNKNOWN, FakeNvml

from blinkrun.topology.machine import Gpu, LinkStatus, NvSwitch, Wire
from blinkrun.topology.probe_nvml import read_nvml

BUSES = tuple(f"0000:{bus:02x}:00.0" for bus in (0x06, 0x07, 0x0A, 0x0B))
A, B, C, D = BUSES
# as in the half of a DGX-1V: pairs with one and two lanes
MESH = ((B, C, D, D), (A, C, C, D), (A, B, B, D, D), (A, A, B, C, C))


def test_gpus_are_named_with_what_is_known_of_them():
    machine = read_nvml(FakeNvml(BUSES, MESH), "anna")
    assert (machine.name, machine.source) == ("anna", "NVML")
    assert machine.gpus[1] == Gpu(
        "GPU1",
        model="Tesla V100-SXM2-16GB",
        bus_id=B,
        uuid="GPU-1",
        arch="70",
        lanes=4,
        lane_gb_per_s=25.781,
    )


def test_links_between_gpus_are_counted_by_pair():
    machine = read_nvml(FakeNvml(BUSES, MESH), "")
    assert machine.nvlink == (
        *(Wire(0, 1, 1), Wire(0, 2, 1), Wire(0, 3, 2)),
        *(Wire(1, 2, 2), Wire(1, 3, 1), Wire(2, 3, 2)),
    )
    assert (machine.switches, machine.self_links, machine.notes) == ((), (), ())
    assert machine.status[0] == LinkStatus("GPU0", 4, 0, 25.781)


def test_behind_switches_every_pair_has_what_both_have():
    via = (("0000:f3:00.0", SWITCH),) * 5 + (("0000:f4:00.0", SWITCH),) * 4
    machine = read_nvml(FakeNvml(BUSES[:3], (via, via, (*via[:8], None))), "")
    assert machine.nvlink == (Wire(0, 1, 9), Wire(0, 2, 8), Wire(1, 2, 8))
    assert machine.switches == (
        NvSwitch("0000:f3:00.0", (5, 5, 5)),
        NvSwitch("0000:f4:00.0", (4, 4, 3)),
    )
    assert machine.notes == ("GPU2: NVLinks that are down: 1 of 9",)


def test_gpus_that_switches_do_not_join_have_no_lanes():
    """A fabric that is parted between tenants: NVML says so of the pair."""
    via = (("0000:f3:00.0", SWITCH),) * 6
    parted = {(0, 1, 2): 5}
    assert read_nvml(FakeNvml(BUSES[:2], (via, via), p2p=parted), "").nvlink == ()
    told = FakeNvml(BUSES[:2], (via, via), p2p=parted, refused=("nvmlDeviceGetP2PStatus",))
    assert read_nvml(told, "").nvlink == (Wire(0, 1, 6),)


def test_switches_of_a_virtual_machine_have_no_names():
    nameless = (("", SWITCH),) * 6
    machine = read_nvml(FakeNvml(BUSES[:2], (nameless, nameless)), "")
    assert (machine.nvlink, machine.switches) == ((Wire(0, 1, 6),), ())
    old = FakeNvml(
        BUSES[:2], (nameless, nameless), refused=("nvmlDeviceGetNvLinkRemoteDeviceType",)
    )
    assert read_nvml(old, "").nvlink == (Wire(0, 1, 6),)


def test_links_to_gpus_that_a_container_hides_are_named():
    machine = read_nvml(FakeNvml(BUSES[:2], ((B, C, D), (A, ("", UNKNOWN)))), "")
    assert machine.nvlink == (Wire(0, 1, 1),)
    assert machine.notes == (
        "GPU0: NVLinks to devices that are hidden here: 2",
        "GPU1: NVLinks to devices that are hidden here: 1",
    )


def test_links_that_end_at_their_own_gpu_are_stated_apart():
    machine = read_nvml(FakeNvml(BUSES[:2], ((A,) * 12, (B,) * 12)), "")
    assert (machine.nvlink, machine.self_links) == ((), ((0, 12), (1, 12)))


def test_a_link_counts_where_both_ends_have_it():
    assert read_nvml(FakeNvml(BUSES[:2], ((B, B), (A,))), "").nvlink == (Wire(0, 1, 1),)


def test_cards_without_bridges_have_links_that_are_down():
    machine = read_nvml(FakeNvml(BUSES[:2], ((None,) * 4, (None,) * 4)), "")
    assert (machine.nvlink, machine.notes) == ((), ())
    assert machine.status == (LinkStatus("GPU0", 0, 4), LinkStatus("GPU1", 0, 4))
    assert machine.gpus[0].lanes == 0


def test_levels_in_the_words_of_nvidia_smi():
    levels = {(0, 1): 10, (0, 2): 20, (0, 3): 30, (1, 2): 40, (1, 3): 50, (2, 3): 0}
    machine = read_nvml(FakeNvml(BUSES, levels=levels), "")
    words = {(path.low, path.high): path.level for path in machine.pcie}
    assert words == {
        (0, 1): "PIX",
        (0, 2): "PXB",
        (0, 3): "PHB",
        (1, 2): "NODE",
        (1, 3): "SYS",
        (2, 3): "PIX",
    }


def test_a_level_that_is_not_told_leaves_all_open():
    assert read_nvml(FakeNvml(BUSES, levels={(1, 2): 35}), "").pcie is None
    question = "nvmlDeviceGetTopologyCommonAncestor"
    assert read_nvml(FakeNvml(BUSES, refused=(question,)), "").pcie is None
    assert read_nvml(FakeNvml(BUSES[:1]), "").pcie == ()


def test_peer_access_is_the_worse_of_reading_and_writing():
    p2p = {(0, 1, 0): 0, (0, 1, 1): 1, (0, 2, 0): 5, (1, 2, 0): 77, (1, 2, 1): 77}
    assert read_nvml(FakeNvml(BUSES[:3], p2p=p2p), "").p2p == ((0, 1, "CNS"), (0, 2, "NS"))
    refused = FakeNvml(BUSES[:3], refused=("nvmlDeviceGetP2PStatus",))
    assert read_nvml(refused, "").p2p == ()


@pytest.mark.parametrize(
    "question",
    [
        *("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo"),
        *("nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetFieldValues"),
        *("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo"),
    ],
)
def test_a_question_without_an_answer_leaves_the_rest(question):
    machine = read_nvml(FakeNvml(BUSES, MESH, refused=(question,)), "")
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert len(machine.pcie) == 6


def test_a_speed_that_is_an_error_is_not_known():
    nvml = FakeNvml(BUSES, MESH)
    right = nvml.nvmlDeviceGetFieldValues

    def odd(gpu, fields):
        (value,) = right(gpu, fields)
        value.nvmlReturn = 3
        return [value]

    nvml.nvmlDeviceGetFieldValues = odd
    assert read_nvml(nvml, "").gpus[0].lane_gb_per_s is None


def test_gpus_that_are_lost_are_left_out():
    machine = read_nvml(FakeNvml(BUSES, MESH, lost=(1,)), "")
    assert [gpu.bus_id for gpu in machine.gpus] == [A, C, D]
    assert machine.nvlink == (Wire(0, 1, 1), Wire(0, 2, 2), Wire(1, 2, 2))
    assert read_nvml(FakeNvml(BUSES, lost=(0, 1, 2, 3)), "") is None


def test_no_gpus():
    assert read_nvml(FakeNvml(()), "") is None
    assert read_nvml(FakeNvml(BUSES, refused=("nvmlDeviceGetCount",)), "") is None


def test_links_to_a_cpu_are_hidden_ends():
    """POWER9 has NVLinks to its CPUs."""
    machine = read_nvml(FakeNvml(BUSES[:1], ((("0004:04:00.0", NPU),) * 3,)), "")
    assert machine.notes == ("GPU0: NVLinks to devices that are hidden here: 3",)
