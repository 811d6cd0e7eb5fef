"""Ranks on (fake) devices that plan for themselves: what is wired, what is reached, who shares."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from support import threads
from support.fake_arrays import FakeArray
from support.fake_cuda import FakeMachine
from support.programs import star_plan
from support.threads import run_threads

from blinkrun.errors import LaunchError
from blinkrun.executors import device_plan
from blinkrun.topology.catalog import described

COUNTS = (1, 1003, 150_001)


@pytest.fixture
def machine_of(monkeypatch, tmp_path):
    """`machine_of(count, ...)` makes fake devices, wired as the first GPUs of a DGX-1V."""
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BLINKRUN_DEVICE_ARENA_BYTES", "4M")
    for name in ("BLINKRUN_GPUS_PER_RANK", "BLINKRUN_DEVICE_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "ARENA", 256 << 20)  # slots may have to lie in it
    box = described("dgx-1v")
    gpus = [replace(gpu, bus_id=f"0000:{at + 1:02x}:00.0") for at, gpu in enumerate(box.gpus)]
    monkeypatch.setattr(device_plan, "probe", lambda: replace(box, gpus=tuple(gpus)))
    made = []

    def make(count, **how):
        machine = FakeMachine(count, seed=3, **how)
        machine.install(monkeypatch)
        made.append(machine)
        return machine

    yield make
    gc.collect()
    for machine in made:
        machine.close()
        assert machine.leaks() == []


def summed(machine, devices, catch=False):
    """Kinds of the links that are planned on, once sums over ranks on these devices are right."""
    size = len(devices)

    def body(comm):
        device = machine.devices[devices[comm.rank]]
        stream = device.new_stream()  # kernels of ranks that share a device run side by side
        try:
            for count in COUNTS:
                values = np.arange(count, dtype=np.float64) + comm.rank
                x = device.array_of(values, stream=stream)
                comm.allreduce(x, out=x)
                comm.synchronize()
                expected = np.arange(count) * size + size * (size - 1) // 2
                np.testing.assert_array_equal(x.numpy(), expected)
                assert isinstance(x, FakeArray)
        except LaunchError as err:
            if catch:
                return str(err)
            raise
        finally:
            device.free_stream(stream)
        trees = comm.devices.plan.allreduce.trees
        return {kind for tree in trees for kind in (*tree.up, *tree.down) if kind}

    return run_threads(star_plan(size), body)


def test_ranks_run_over_nvlink_where_it_joins_them(machine_of):
    assert summed(machine_of(4), (0, 1, 2, 3)) == [{"nvlink"}] * 4


def test_ranks_may_have_devices_in_any_order(machine_of):
    assert summed(machine_of(4), (3, 0, 2)) == [{"nvlink"}] * 3


def test_devices_out_of_reach_are_planned_through_the_host(machine_of):
    found = summed(machine_of(3, cut=[(0, 1), (0, 2), (1, 2)]), (0, 1, 2))
    assert found == [{"pcie-staged"}] * 3


def test_one_pair_out_of_reach_leaves_the_others_their_links(machine_of):
    assert summed(machine_of(3, cut=[(1, 2)]), (0, 1, 2)) == [{"nvlink"}] * 3


@pytest.mark.parametrize("links", ["pcie", "all"])
def test_pcie_beside_nvlink_gives_the_same_sums(machine_of, monkeypatch, links):
    monkeypatch.setenv("BLINKRUN_DEVICE_LINKS", links)
    (found,) = {frozenset(kinds) for kinds in summed(machine_of(3), (0, 1, 2))}
    assert "pcie-staged" in found
    assert ("nvlink" in found) == (links == "all")


def test_a_shared_device_is_refused_on_all_ranks_with_the_same_line(machine_of):
    lines = summed(machine_of(2), (0, 1, 1), catch=True)
    assert len(lines) == 3
    assert all("local ranks 1 and 2 use the same GPU" in line for line in lines)
    assert all("--gpus-per-rank 1/2" in line for line in lines)


def test_a_device_is_shared_when_that_is_asked_for(machine_of, monkeypatch):
    monkeypatch.setenv("BLINKRUN_GPUS_PER_RANK", "1/3")
    assert summed(machine_of(1), (0, 0, 0)) == [{"shm"}] * 3
