"""Plans of ranks on devices, and how many ranks a device may have."""

import pytest

from blinkrun import env
from blinkrun.errors import LaunchError, UsageError
from blinkrun.executors.device_api import DeviceInfo
from blinkrun.executors.device_plan import check_sharing, device_topology, plan_devices
from blinkrun.topology import probe as topology_probe
from blinkrun.topology.machine import Gpu, Machine, Wire


def info(gpu, uuid=None):
    return DeviceInfo(
        index=0,
        name="Tesla V100",
        uuid=f"GPU-{gpu}" if uuid is None else uuid,
        pci_bus_id=f"0000:0{gpu}:00.0",
        capability=(7, 0),
        multiprocessors=80,
        total_bytes=1 << 34,
        driver=13000,
        runtime=13000,
    )


def host():
    gpus = tuple(Gpu(f"GPU{at}", "Tesla V100", f"0000:0{at}:00.0", f"GPU-{at}") for at in range(4))
    wires = (Wire(0, 1, 2), Wire(1, 2, 1), Wire(2, 3, 2))
    return Machine("four", "by hand", gpus, nvlink=wires)


def whole(size):
    return [[True] * size for _ in range(size)]


@pytest.fixture(autouse=True)
def plans(monkeypatch, tmp_path):
    monkeypatch.setenv(env.CACHE, str(tmp_path))
    return tmp_path


def test_a_chain_of_nvlinks_is_one_tree(plans):
    plan = plan_devices([info(at) for at in range(4)], whole(4), machine=host)
    assert plan.allreduce.rate == 23_000  # its narrowest link
    assert set(plan.allreduce.trees[0].up) == {"", "nvlink"}
    assert list(plans.rglob("*.plan"))  # the next job need not plan


def test_the_machine_is_not_asked_where_it_does_not_matter():
    def never():
        raise AssertionError("asked")

    assert plan_devices([info(0)], whole(1), machine=never).size == 1
    plan = plan_devices([info(0)] * 3, whole(3), machine=never, sharing=3)
    assert plan.allreduce.depth == 1


def test_the_machine_is_this_one_unless_it_is_given(monkeypatch):
    monkeypatch.setattr(topology_probe, "probe_machine", host)
    assert device_topology([info(0), info(1)], whole(2)).name == "four"


def test_more_ranks_than_allowed_on_a_gpu_are_refused():
    with pytest.raises(LaunchError) as refused:
        plan_devices([info(0), info(1), info(0)], whole(3), machine=host)
    line = str(refused.value)
    assert "local ranks 0 and 2 use the same GPU 0000:00:00.0 (Tesla V100)" in line
    assert "--gpus-per-rank 1/2" in line
    assert "\n" not in line
    with pytest.raises(LaunchError, match=r"ranks 0, 1 and 2 use .* and 2 may.*1/3"):
        check_sharing([info(0)] * 3, 2)
    check_sharing([info(0)] * 3, 3)


def test_slices_of_a_gpu_are_devices_of_their_own():
    slices = [info(0, "MIG-a"), info(0, "MIG-b")]
    cut = [[True, False], [False, True]]
    check_sharing(slices, 1)
    assert {link.kind.value for link in device_topology(slices, cut).links} == {"pcie-staged"}


def test_the_links_can_be_named():
    infos = [info(0), info(1)]
    kinds = {link.kind.value for link in device_topology(infos, whole(2), machine=host).links}
    assert kinds == {"nvlink"}
    staged = device_topology(infos, whole(2), links="pcie", machine=host)
    assert {link.kind.value for link in staged.links} == {"pcie-staged"}
    with pytest.raises(UsageError, match="no NVLinks"):
        device_topology([info(0), info(3)], whole(2), links="fabric", machine=host)


@pytest.mark.parametrize(("text", "ranks"), [("", 1), ("1", 1), ("2", 2), ("1/2", 0.5)])
def test_gpus_per_rank_are_whole_or_a_part(text, ranks):
    assert env.gpus_per_rank({env.GPUS_PER_RANK: text}) == ranks


@pytest.mark.parametrize("text", ["0", "1/0", "2/3", "half", "-1", "0.5", "1/", "1/2/3", "٣"])
def test_other_numbers_of_gpus_are_refused(text):
    with pytest.raises(UsageError, match=r"BLINKRUN_GPUS_PER_RANK=.*1/2"):
        env.gpus_per_rank({env.GPUS_PER_RANK: text})
