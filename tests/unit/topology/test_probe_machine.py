"""GPUs of a host from all sources: which one counts, and what the others add to it."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_nvml import FakeNvml
from support.fake_sysfs import DGX1_GPUS, dgx1, fake_sysfs
from support.places import TESTS

from blinkrun.topology.machine import Nic, PciKind, Wire
from blinkrun.topology.probe import probe_machine

DGX1_MATRIX = (TESTS / "data/topologies/dgx1-v100-4nic/input.txt").read_text()
MI300X = (TESTS / "data/topologies/mi300x-8-low-power-warning/input.txt").read_text()
LIST = "\n".join(
    f"{at}, 0000{bus.upper()}, GPU-{at}, Tesla V100-SXM2-16GB" for at, bus in enumerate(DGX1_GPUS)
)
NAMES = "\n".join(f"GPU {at}: Tesla V100-SXM2-16GB (UUID: GPU-{at})" for at in range(8))
QUERY = "nvidia-smi --query-gpu=index,pci.bus_id,uuid,name --format=csv,noheader"
P2P = "\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n"


def probe(sysfs, outputs=None, nvml=None, environ=None, cpuinfo="vendor_id : GenuineIntel"):
    """What a host is found to be whose tools print these texts; all others are missing."""
    return probe_machine(
        sysfs,
        environ or {},
        run=lambda argv: (outputs or {}).get(" ".join(argv)),
        nvml=lambda: nullcontext(nvml),
        cpuinfo=cpuinfo,
        name="anna",
    )


def test_a_host_without_gpus_is_none(tmp_path):
    assert probe(tmp_path) is None
    assert probe(fake_sysfs(tmp_path, "pci0000:00/0000:00:03.0 eth net=eth0")) is None


def test_this_host_is_probed_without_an_error():
    machine = probe_machine()
    assert machine is None or machine.num_gpus > 0


def test_nvidia_smi_and_the_kernel_together(tmp_path):
    sysfs = fake_sysfs(tmp_path, dgx1())
    outputs = {"nvidia-smi topo -m": DGX1_MATRIX, QUERY: LIST}
    machine = probe(sysfs, outputs)
    assert (machine.name, machine.notes) == ("anna", ())
    assert Wire(0, 3, 2) in machine.nvlink
    assert tuple(gpu.bus_id for gpu in machine.gpus) == DGX1_GPUS
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {gpu.model for gpu in machine.gpus} == {"Tesla V100-SXM2-16GB"}
    assert machine.gpus[5].uuid == "GPU-5"
    assert machine.gpus[0].cpus == "0-19,40-59"  # as the report says, not the kernel
    assert machine.tree[0].vendor == "intel"
    # NICs keep the order of the report and have their place in the tree
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    assert [nic.numa for nic in machine.nics] == [0, 1, 0, 1]
    places = {nic: node.name for node in machine.tree for nic in node.nics}
    assert [places[at] for at in range(4)] == [nic.bus_id for nic in machine.nics]


def test_nvml_goes_before_the_tools(tmp_path):
    nvml = FakeNvml(DGX1_GPUS[:2], ((DGX1_GPUS[1],) * 2, (DGX1_GPUS[0],) * 2))
    machine = probe(fake_sysfs(tmp_path, dgx1()), {"nvidia-smi topo -m": DGX1_MATRIX}, nvml)
    assert machine.source == "NVML"
    assert machine.nvlink == (Wire(0, 1, 2),)
    # the kernel shows a container the GPUs of others as well: they are left out
    assert [node.gpus for node in machine.tree if node.kind is PciKind.GPU] == [(0,), (1,)]
    assert [nic.device for nic in machine.nics] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]


def test_a_library_without_gpus_leaves_it_to_the_tools(tmp_path):
    machine = probe(tmp_path, {"nvidia-smi topo -m": DGX1_MATRIX}, FakeNvml(()))
    assert (machine.source, machine.num_gpus) == ("nvidia-smi topo -m", 8)


def test_a_container_that_hides_the_tree(tmp_path):
    machine = probe(tmp_path, {"nvidia-smi topo -m": DGX1_MATRIX, QUERY: LIST})
    assert (machine.num_gpus, machine.tree) == (8, ())
    (note,) = machine.notes
    assert note.startswith("the kernel hides the PCI tree of GPU0 GPU1")


def test_a_container_that_hides_one_gpu_of_the_tree(tmp_path):
    sysfs = fake_sysfs(tmp_path, dgx1(), hidden=(DGX1_GPUS[3],))
    machine = probe(sysfs, {"nvidia-smi topo -m": DGX1_MATRIX, QUERY: LIST})
    assert (machine.tree, machine.notes) == ((), ("the kernel hides the PCI tree of GPU3",))
    assert Wire(0, 3, 2) in machine.nvlink


def test_bus_ids_that_name_one_card_twice_are_not_believed(tmp_path):
    twice = LIST.replace(DGX1_GPUS[1].upper(), DGX1_GPUS[0].upper())
    machine = probe(fake_sysfs(tmp_path, dgx1()), {"nvidia-smi topo -m": DGX1_MATRIX, QUERY: twice})
    assert (machine.tree, machine.notes) == ((), ("the kernel hides the PCI tree of the GPUs",))


def test_without_a_list_the_names_alone_are_known(tmp_path):
    outputs = {"nvidia-smi topo -m": DGX1_MATRIX, "nvidia-smi -L": NAMES}
    machine = probe(tmp_path, outputs)
    assert machine.gpus[7].uuid == "GPU-7"
    assert (machine.gpus[7].model, machine.gpus[7].bus_id) == ("Tesla V100-SXM2-16GB", "")


def test_a_list_of_other_gpus_adds_nothing(tmp_path):
    outputs = {"nvidia-smi topo -m": DGX1_MATRIX, QUERY: LIST[: LIST.rindex("\n")]}
    assert {gpu.bus_id for gpu in probe(tmp_path, outputs).gpus} == {""}


@pytest.mark.parametrize("matrix", [None, "", "No devices were found", "GPU0 GPU1\nGPU0 X NV?\n"])
def test_gpus_whose_matrix_is_missing_or_broken_are_joined_by_pcie(tmp_path, matrix):
    outputs = {"nvidia-smi topo -m": matrix, QUERY: LIST}
    machine = probe(fake_sysfs(tmp_path, dgx1()), outputs)
    assert (machine.source, machine.num_gpus, machine.nvlink) == ("nvidia-smi", 8, ())
    assert machine.notes[0].startswith("how the GPUs are joined is not told: ")
    assert len(machine.pcie) == 28


def test_tools_that_find_no_gpus_find_none(tmp_path):
    nothing = dict.fromkeys((QUERY, "nvidia-smi topo -m", "nvidia-smi -L"), "No devices were found")
    assert (
        probe(tmp_path, nothing | {"rocm-smi --showtopo": "", "amd-smi topology --json": "[]"})
        is None
    )


def test_reports_of_one_tool_are_read_as_one(tmp_path):
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
    outputs = {
        "nvidia-smi topo -m": matrix,
        "nvidia-smi topo -p2p rw": P2P.replace("OK", "CNS"),
        "nvidia-smi nvlink -s": "",
    }
    machine = probe(tmp_path, outputs)
    assert machine.p2p == ((0, 1, "CNS"),)


def test_rocm_smi_with_its_bus_ids(tmp_path):
    ways = [
        f"pci0000:{bus:02x}/0000:{bus:02x}:01.1/0000:{bus + 1:02x}:00.0" for bus in range(0, 80, 10)
    ]
    text = "\n".join(f"{way} amd numa={at // 4}" for at, way in enumerate(ways))
    cards = {f"card{at}": {"PCI Bus": way.split("/")[-1].upper()} for at, way in enumerate(ways)}
    outputs = {"rocm-smi --showtopo": MI300X, "rocm-smi --showbus --json": json.dumps(cards)}
    machine = probe(fake_sysfs(tmp_path, text), outputs, cpuinfo="vendor_id : AuthenticAMD")
    assert (machine.num_gpus, len(machine.xgmi)) == (8, 28)
    assert machine.tree[0].vendor == "amd"
    assert [gpu.numa for gpu in machine.gpus] == [0] * 4 + [1] * 4


AMD_SMI = """LINK TYPE TABLE:
             0000:03:00.0 0000:0c:00.0
0000:03:00.0 SELF         XGMI
0000:0c:00.0 XGMI         SELF
"""


def test_amd_smi_names_gpus_by_their_bus_ids(tmp_path):
    text = """
        pci0000:00/0000:00:01.1/0000:03:00.0 amd
        pci0000:08/0000:08:01.1/0000:0c:00.0 amd
    """
    outputs = {"amd-smi topology --json": AMD_SMI, "rocm-smi --showtopo": MI300X}
    machine = probe(fake_sysfs(tmp_path, text), outputs)
    assert [gpu.bus_id for gpu in machine.gpus] == ["0000:03:00.0", "0000:0c:00.0"]
    assert (len(machine.xgmi), machine.notes) == (1, ())
    assert [node.gpus for node in machine.tree if node.gpus] == [(0,), (1,)]


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.sampled_from([QUERY, "nvidia-smi -L", "nvidia-smi topo -m", "nvidia-smi nvlink -s"])
        | st.sampled_from(["rocm-smi --showtopo", "amd-smi topology --json"]),
        st.text(max_size=40)
        | st.sampled_from([LIST, NAMES, DGX1_MATRIX, MI300X, AMD_SMI, P2P])
        | st.tuples(st.sampled_from([LIST, DGX1_MATRIX, MI300X]), st.integers(0, 4000)).map(
            lambda cut: cut[0][: cut[1]]
        ),
    )
)
def test_whatever_tools_print_ends_in_a_machine_or_none(outputs):
    machine = probe(Path("/no/such/sysfs"), outputs)
    assert machine is None or machine.num_gpus > 0


@pytest.mark.parametrize("bus", [None, "", "[]", "{}", '{"card0": 3}', '{"cardx": {"PCI Bus": 1}}'])
def test_rocm_smi_without_bus_ids(tmp_path, bus):
    machine = probe(tmp_path, {"rocm-smi --showtopo": MI300X, "rocm-smi --showbus --json": bus})
    assert (machine.num_gpus, machine.gpus[0].bus_id) == (8, "")
    assert machine.notes[-1].startswith("the kernel hides the PCI tree of ")


def test_the_kernel_alone_knows_pcie_and_says_so(tmp_path):
    text = dgx1() + "\npci0000:f0/0000:f0:00.0 nvswitch\npci0000:f1/0000:f1:00.0 nvswitch"
    machine = probe(fake_sysfs(tmp_path, text))
    assert (machine.source, machine.num_gpus, machine.nvlink) == ("sysfs", 8, ())
    assert machine.gpus[0].model == "NVIDIA 0x1db1"
    assert machine.gpus[0].cpus == "0-19"
    levels = {(path.low, path.high): path.level for path in machine.pcie}
    assert (levels[0, 1], levels[0, 2], levels[0, 4]) == ("PIX", "PHB", "SYS")
    assert machine.nics[0] == Nic("mlx5_0", "mlx5_0", machine.nics[0].bus_id, 0, 100_000)
    assert len(machine.gpu_nic) == 32
    tools, switches = machine.notes
    assert "only the kernel" in tools
    assert switches.startswith("there are 2 NVSwitches")


def test_a_link_that_has_lost_lanes_is_named(tmp_path):
    machine = probe(fake_sysfs(tmp_path, "pci0000:00/0000:00:05.0 gpu width=4of16"))
    assert machine.notes[-1] == "GPU 0000:00:05.0: its PCIe link runs at x4 of x16"


def test_a_nic_that_only_the_report_has_stays(tmp_path):
    sysfs = fake_sysfs(tmp_path, dgx1().replace("rdma=mlx5_3", "rdma=mlx5_9"))
    machine = probe(sysfs, {"nvidia-smi topo -m": DGX1_MATRIX, QUERY: LIST})
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3", "mlx5_9"]
    assert machine.nics[3].bus_id == ""
    assert {path.level for path in machine.gpu_nic if path.nic == 4} == {"PIX", "PHB", "SYS"}


def test_what_a_job_sees_of_the_gpus_is_a_note(tmp_path):
    outputs = {"nvidia-smi topo -m": DGX1_MATRIX, QUERY: LIST}
    machine = probe(tmp_path, outputs, environ={"CUDA_VISIBLE_DEVICES": "GPU-4,GPU-5"})
    assert machine.num_gpus == 8
    assert machine.notes[-1].endswith("a job sees of these GPUs: 4 5")


def test_a_part_of_a_gpu_is_looked_up(tmp_path):
    listed = f"a line\n{NAMES}\n  MIG 3g.20gb     Device  0: (UUID: MIG-c738)\n"
    outputs = {"nvidia-smi topo -m": DGX1_MATRIX, "nvidia-smi -L": listed}
    machine = probe(tmp_path, outputs, environ={"CUDA_VISIBLE_DEVICES": "MIG-c738"})
    assert machine.notes[-1].endswith("a job sees of these GPUs: 7")
    del outputs["nvidia-smi -L"]
    machine = probe(tmp_path, outputs, environ={"CUDA_VISIBLE_DEVICES": "MIG-c738"})
    assert "MIG-c738 is a part of a GPU" in machine.notes[-1]
