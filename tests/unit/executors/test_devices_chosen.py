"""How the ranks of hosts agree on their GPUs."""

import threading
from dataclasses import replace
from fractions import Fraction

import pytest

from blinkrun import runtime
from blinkrun.comm import world as world_module
from blinkrun.comm.loopback import LoopbackControl
from blinkrun.comm.threads import thread_controls
from blinkrun.comm.world import World
from blinkrun.errors import LaunchError, NotInitializedError, UsageError
from blinkrun.executors import device_choice
from blinkrun.executors.device_choice import Sight, choose, sight
from blinkrun.topology.catalog import described
from blinkrun.topology.machine import Gpu, Machine

BUSES = [f"0000:0{at}:00.0" for at in range(8)]


def host():
    gpus = described("dgx-1v").gpus
    named = [replace(gpu, bus_id=bus) for gpu, bus in zip(gpus, BUSES, strict=True)]
    return replace(described("dgx-1v"), gpus=tuple(named))


def chosen(monkeypatch, sights, per_rank=Fraction(1), groups=None):
    """What each rank gets, an error in place of those that raise."""
    size = len(sights)
    groups = groups or (tuple(range(size)),)
    mine = threading.local()
    results = [None] * size
    controls = thread_controls(size, 20.0)

    def look():
        found = sights[mine.rank]
        if isinstance(found, Exception):
            raise found
        return found

    def run(rank):
        mine.rank = rank
        try:
            world = World(rank, size, ("h",) * size, groups)
            results[rank] = choose(controls[rank], world, per_rank)
        except LaunchError as err:
            results[rank] = err

    monkeypatch.setattr(device_choice, "sight", look)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_three_ranks_of_eight_gpus_take_the_best_three(monkeypatch):
    assert chosen(monkeypatch, [Sight(host(), tuple(BUSES))] * 3) == [0, 2, 3]


def test_ranks_that_see_one_gpu_each_take_it(monkeypatch):
    sights = [Sight(host(), (bus,)) for bus in BUSES[:4]]
    assert chosen(monkeypatch, sights) == [0, 0, 0, 0]


def test_every_host_chooses_for_itself(monkeypatch):
    here, there = Sight(host(), tuple(BUSES[:2])), Sight(None, ("x", "y"))
    found = chosen(monkeypatch, [here, there, here, there], groups=((0, 2), (1, 3)))
    assert found == [0, 0, 1, 1]


def test_too_few_gpus_are_an_error_on_all_ranks_of_that_host(monkeypatch):
    few, enough = Sight(None, ("x",)), Sight(None, ("x", "y"))
    found = chosen(monkeypatch, [few, few, enough, enough], groups=((0, 1), (2, 3)))
    assert found[2:] == [0, 1]
    assert all("2 ranks on this host and 1 GPU: start 1 rank" in str(each) for each in found[:2])


def test_a_variable_that_makes_no_sense_is_an_error_on_all_ranks(monkeypatch):
    wrong = UsageError("CUDA_VISIBLE_DEVICES=0,0 names GPU 0 twice; a job then sees none")
    found = chosen(monkeypatch, [Sight(None, ("x", "y")), wrong])
    assert [str(each) for each in found] == [f"local rank 1: {wrong}"] * 2


def test_a_process_sees_what_the_variable_leaves_in_its_order(monkeypatch):
    monkeypatch.setattr(device_choice, "probe", host)
    assert sight({}).names == tuple(BUSES)
    assert sight({"CUDA_VISIBLE_DEVICES": "3,1"}).names == (BUSES[3], BUSES[1])
    assert sight({"CUDA_VISIBLE_DEVICES": ""}).names == ()
    monkeypatch.setattr(device_choice, "probe", lambda: None)
    assert sight({}) == Sight(None, ())


@pytest.mark.parametrize("machine", [None, Machine("m", "by hand", (Gpu("GPU0"),))])
def test_of_several_parts_of_a_gpu_a_process_sees_the_first(monkeypatch, machine):
    monkeypatch.setattr(device_choice, "probe", lambda: machine)
    assert sight({"CUDA_VISIBLE_DEVICES": "MIG-a1,MIG-b2"}).names == ("MIG-a1",)


def test_the_choice_is_made_once_by_the_world(monkeypatch, tmp_path):
    monkeypatch.setattr(world_module, "connect", LoopbackControl)
    monkeypatch.setattr(runtime, "_state", runtime._State(hooked=True))
    monkeypatch.setenv("BLINKRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("BLINKRUN_GPUS_PER_RANK", raising=False)
    looked = []
    monkeypatch.setattr(device_choice, "sight", lambda: looked.append(1) or Sight(None, ("x",)))
    with pytest.raises(NotInitializedError):
        runtime.local_device()
    runtime.init()
    assert runtime.local_device() == runtime.local_device() == 0
    assert looked == [1]
    monkeypatch.setattr(runtime._state, "device", None)
    monkeypatch.setenv("BLINKRUN_GPUS_PER_RANK", "none")
    with pytest.raises(UsageError, match="BLINKRUN_GPUS_PER_RANK=none"):
        runtime.local_device()
    runtime.shutdown()
    assert runtime._state.device is None
