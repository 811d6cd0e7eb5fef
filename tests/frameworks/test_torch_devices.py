"""The torch adapter on two ranks with fake devices; other tests run there as ``2ranks-devices``."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import JOB_TIMEOUT_S, Job
from support.harness import RankRunner
from support.places import ROOT


@pytest.fixture(scope="module")
def device_job(tmp_path_factory: pytest.TempPathFactory, plan_cache: Path) -> Job:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")
    runner = RankRunner(
        tmp_path_factory.mktemp("devices"), environ={"BLINKRUN_CACHE_DIR": str(plan_cache)}
    )
    modules = ["torch_devices_cases"]
    how = {"modules": modules, "left_out": []}
    results = runner("torch_devices_suite:run_all", 2, timeout_s=JOB_TIMEOUT_S, **how)
    return Job(2, results)


# New tensors that are to be on the host, wherever the tensors of a call are: counts by module.
ON_THE_HOST = {
    "adasum_optimizer.py": 1,
    "autograd.py": 2,
    "check.py": 3,
    "codec.py": 1,
    "ops_call.py": 1,
    "ops_scatter.py": 1,
    "reducer.py": 3,
    "settings.py": 1,
}
MAKERS = {"empty", "zeros", "ones", "full", "tensor", "arange", "empty_strided", "rand", "eye"}


def test_new_tensors_say_where_they_are():
    """A disguise does not show it: a tensor that is made on the CPU beside one on a device."""
    found = {}
    for path in (ROOT / "blinkrun" / "torch").glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if is_maker(node)]
        vague = [
            call for call in calls if all(k.arg not in ("device", None) for k in call.keywords)
        ]
        if vague:
            found[path.name] = len(vague)
    assert found == ON_THE_HOST


def is_maker(node):
    """Whether `node` is a call such as ``torch.empty(...)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    return node.func.attr in MAKERS and isinstance(owner, ast.Name) and owner.id == "torch"


def test_training_has_the_losses_of_the_cpu(device_job):
    for rank in device_job.of("losses_are_those_of_the_cpu"):
        assert rank == [True] * 7
    assert device_job.of("losses_are_those_of_the_cpu on device") == [True, True]


def test_gradients_are_reduced_where_they_lie(device_job):
    for rank in device_job.of("gradients_lie_in_the_arena_of_the_device"):
        assert rank == {"gradients": True, "flags": True}


def test_gradients_without_room_in_the_arena_are_reduced_all_the_same(device_job):
    assert device_job.of("gradients_that_find_no_room_in_the_arena") == [True, True]


def test_adasum_of_devices_is_that_of_the_cpu(device_job):
    assert device_job.of("adasum_by_way_of_the_host") == [[True] * 3] * 2


def test_reductions_come_after_all_streams_of_backward(device_job):
    assert device_job.of("backward_on_several_streams") == [True, True]


def test_parameters_in_two_places_are_named(device_job):
    for text in device_job.of("optimizer_with_parameters_in_two_places"):
        assert "'0.weight' is on cuda:" in text
        assert "'0.bias' on the CPU" in text


def test_ranks_with_parameters_in_other_places_are_named(device_job):
    for text in device_job.of("optimizer_with_parameters_elsewhere_on_a_rank"):
        assert "parameter '0.weight'" in text
        assert "on cuda" in text


def test_ranks_with_a_tensor_in_another_place_are_named(device_job):
    for text in device_job.of("tensor_elsewhere_on_a_rank"):
        assert "'elsewhere'" in text
        assert "rank 1" in text
        assert "cuda" in text


def test_allocators_hear_of_streams_that_use_a_result(device_job):
    for rank in device_job.of("handles_on_other_streams"):
        assert rank == [False, True, True, True]


def test_nothing_waits_for_the_device(device_job):
    for rank in device_job.of("handles_do_not_wait_for_the_device"):
        assert rank == {"polled": [False, True], "seen": [1.0, 2.0, 2.0], "same": True}


def test_state_is_broadcast_in_both_places(device_job):
    one, other = device_job.of("state_of_an_optimizer")
    assert one == other
    assert one["steps"] == [3.0]
    assert one["lr"] == pytest.approx(0.2)


def test_nothing_is_left_on_the_devices(device_job):
    assert device_job.of("left") == [[], []]
