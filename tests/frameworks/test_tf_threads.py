"""What a rank takes of the machine: TensorFlow's threads by its share of the cores, one GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Job
from support.needs import need

from blinkrun.tf import threads

need("tensorflow")


def test_a_rank_gets_its_share_of_the_cores() -> None:
    environ = {"TF_NUM_INTEROP_THREADS": ""}
    threads.share_cores(environ, cores=16, local_size=3)
    assert environ == {"TF_NUM_INTRAOP_THREADS": "5", "TF_NUM_INTEROP_THREADS": "5"}
    environ = {}
    threads.share_cores(environ, cores=2, local_size=4)
    assert set(environ.values()) == {"1"}


def test_what_the_user_has_set_stays() -> None:
    environ = {"TF_NUM_INTEROP_THREADS": "7"}
    threads.share_cores(environ, cores=16, local_size=2)
    assert environ == {"TF_NUM_INTEROP_THREADS": "7", "TF_NUM_INTRAOP_THREADS": "8"}


def test_a_rank_that_is_alone_on_its_host_keeps_tensorflows_own_numbers() -> None:
    environ: dict[str, str] = {}
    threads.share_cores(environ, cores=16, local_size=1)
    assert environ == {}


def test_init_tells_tensorflow_the_share_of_its_rank(
    tf_job: Job,
) -> None:
    if os.environ.get(threads.INTRA) or os.environ.get(threads.INTER):
        pytest.skip("the numbers of threads are set already")
    for rank in tf_job.of("threads_that_run_ops"):
        assert rank["told"] == [rank["share"]] * 2


def test_init_neither_imports_nor_starts_tensorflow_which_starts_as_told(tmp_path: Path) -> None:
    program = """
import os, sys
import blinkrun.tf as blink
blink.init()
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
blink.shutdown()
import tensorflow as tf
blink.init()
tf.config.threading.set_inter_op_parallelism_threads(0)  # refused once the runtime has started
from blinkrun.tf import threads
os.environ.pop(threads.INTER, None)
threads.share_cores(os.environ, cores=10, local_size=2)
tf.ones(1)
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert names.count("tf_Compute\\n") == 5, names
"""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "BLINKRUN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class FakeConfig:
    """tf.config of a machine with `num_gpus` GPUs."""

    def __init__(self, num_gpus: int, limited: bool = False) -> None:
        self.gpus = [f"gpu {number}" for number in range(num_gpus)]
        self.visible = list(self.gpus)
        self.growing: list[str] = []
        self.experimental = self
        self.limited = limited

    def list_physical_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return list(self.gpus)

    def get_visible_devices(self, kind: str) -> list[str]:
        assert kind == "GPU"
        return list(self.visible)

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        assert kind == "GPU"
        self.visible = list(devices)

    def get_logical_device_configuration(self, gpu: str) -> list[str] | None:
        return ["1 GB"] if self.limited else None

    def set_memory_growth(self, gpu: str, on: bool) -> None:
        assert on
        self.growing.append(gpu)


Pin = Any


@pytest.fixture
def pin(monkeypatch: pytest.MonkeyPatch) -> Pin:
    """``pin(config, local_rank)`` is `pin_device` on such a machine, with four ranks."""

    def run(config: FakeConfig, local_rank: int, has_cuda: bool = True) -> None:
        test = SimpleNamespace(
            is_built_with_cuda=lambda: has_cuda, is_built_with_rocm=lambda: False
        )
        world = SimpleNamespace(local_rank=local_rank, local_size=4)
        monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config, test=test))
        monkeypatch.setattr(threads.blinkrun, "is_initialized", lambda: True)
        monkeypatch.setattr(threads.blinkrun, "world", lambda: world)
        threads.pin_device()

    return run


@pytest.mark.parametrize(("local_rank", "gpu"), [(0, "gpu 0"), (1, "gpu 1"), (2, "gpu 0")])
def test_a_rank_sees_one_gpu_and_takes_its_memory_as_needed(
    pin: Pin, local_rank: int, gpu: str
) -> None:
    config = FakeConfig(2)
    pin(config, local_rank)
    assert config.visible == [gpu]
    assert config.growing == [gpu]


def test_the_gpus_that_the_user_has_chosen_stay(pin: Pin) -> None:
    config = FakeConfig(4)
    config.visible = ["gpu 3"]
    pin(config, 0)
    assert config.visible == ["gpu 3"]
    alone = FakeConfig(1)
    pin(alone, 3)
    assert alone.visible == ["gpu 0"]


def test_limits_that_the_user_has_set_stay(pin: Pin) -> None:
    config = FakeConfig(2, limited=True)
    pin(config, 1)
    assert config.growing == []


def test_no_devices_are_asked_for_where_tensorflow_was_built_for_cpus(pin: Pin) -> None:
    config = FakeConfig(2)
    pin(config, 1, has_cuda=False)
    assert config.visible == config.gpus
    assert config.growing == []


def test_nothing_changes_once_the_runtime_has_started(pin: Pin) -> None:
    class Started(FakeConfig):
        def set_visible_devices(self, devices: list[str], kind: str) -> None:
            raise RuntimeError("Visible devices cannot be modified after being initialized")

    config = Started(2)
    pin(config, 1)
    assert config.growing == []
