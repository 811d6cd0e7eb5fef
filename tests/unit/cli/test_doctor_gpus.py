"""What doctor makes of GPUs: each cause is one line, with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from blinkrun.cli.doctor_findings import Seen, gpus, notes
from blinkrun.cli.doctor_gpus import differences, findings, remarks, summary
from blinkrun.launcher.probe import FRAMEWORKS

MISSING = "libcuda.so.1: cannot open shared object file: No such file or directory"


def device(name: str = "NVIDIA H200", major: int = 9, minor: int = 0, mode: int = 0) -> Any:
    return {"name": name, "bus": "0000:07:00.0", "capability": [major, minor], "mode": mode}


def found(**changes: Any) -> dict[str, Any]:
    usual = {
        "packages": {"cupy-cuda13x": "14.2.0"},
        "driver": {"cuda": 13000, "devices": [device(), device()]},
        "kernel": {"seconds": 2.5, "nvrtc": "13.5"},
        "memory": {},
        "visible": None,
        "namespaces": [],
    }
    return usual | changes


def started(error: str) -> dict[str, Any]:
    return {"driver": {"cuda": 13000, "devices": [], "error": error, "text": "cuInit gave 1"}}


def driver(cuda: int, *devices: Any) -> dict[str, Any]:
    return {"driver": {"cuda": cuda, "devices": list(devices or [device()])}}


def test_a_host_that_is_well_has_no_line() -> None:
    assert list(findings("h", found())) == []
    assert list(remarks("h", found())) == []
    said = "2 x NVIDIA H200; driver for CUDA 13.0; cupy-cuda13x 14.2.0; kernel compiled in 2.5 s"
    assert summary(found()) == said


@pytest.mark.parametrize(
    ("changes", "said", "remedy"),
    [
        (
            {"driver": {"error": "OSError", "text": MISSING}},
            "h has no NVIDIA driver (libcuda.so.1: cannot open",
            "container with --gpus all",
        ),
        (
            started("CUDA_ERROR_NO_DEVICE") | {"visible": "9"},
            "does not start (CUDA_ERROR_NO_DEVICE, CUDA_VISIBLE_DEVICES=9)",
            "see CUDA_VISIBLE_DEVICES",
        ),
        (started("CUDA_ERROR_NO_DEVICE"), "does not start (CUDA_ERROR_NO_DEVICE)", "--gpus"),
        (started("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "different versions", "reboot"),
        (started("CUDA_ERROR_SYSTEM_NOT_READY"), "NVSwitches are not set up", "fabricmanager"),
        (started("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"), "cuda-compat", "remove it"),
        (started("CUDA_ERROR_UNKNOWN"), "cannot start", "modprobe nvidia-uvm"),
        (started("CUDA_ERROR_ODD"), "does not start (CUDA_ERROR_ODD)", "dmesg"),
        (
            driver(11040) | {"packages": {"cupy-cuda12x": "14.0.0"}},
            "takes CUDA 11.4, 12.0 is needed",
            "driver 525",
        ),
        ({"packages": {}}, "h has no cupy", "pip install 'blinkrun[cuda13]'"),
        (driver(12040) | {"packages": {}}, "h has no cupy", "pip install 'blinkrun[cuda12]'"),
        (
            driver(13000, device("Tesla V100", 7)) | {"packages": {}},
            "h has no cupy",
            "pip install 'blinkrun[cuda12]'",
        ),
        (
            {"packages": {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"}},
            "cupy-cuda12x and cupy-cuda13x, which hide each other",
            "pip uninstall cupy-cuda12x cupy-cuda13x, then pip install 'blinkrun[cuda13]'",
        ),
        ({"packages": {"cupy-cuda13x": "13.6.0"}}, "cupy 13.6.0 is too old", "blinkrun[cuda13]"),
        (
            driver(12040),
            "cupy-cuda13x needs a driver for CUDA 13 (580 or newer), this one takes CUDA 12.4",
            "pip install 'blinkrun[cuda12]'; or update the driver",
        ),
        (
            driver(13000, device("Tesla V100", 7)),
            "compute capability 7.0, which CUDA 13 no longer compiles for",
            "pip install 'blinkrun[cuda12]'",
        ),
        (
            driver(12040, device("Tesla P100", 6)) | {"packages": {"cupy-cuda12x": "14.2.0"}},
            "GPU 0 (Tesla P100) has compute capability 6.0, 7.0 (V100) is needed",
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            {"kernel": {"error": "nvrtc", "text": "cannot open libnvrtc.so.13"}},
            "NVRTC, which compiles the kernel, cannot be loaded (cannot open libnvrtc.so.13)",
            "pip install 'blinkrun[cuda13]'",
        ),
        (
            {"kernel": {"error": "DeviceError", "text": "kernels.cu(3): error: x"}},
            "the kernel cannot be compiled (kernels.cu(3): error: x)",
            "report",
        ),
        ({"kernel": {"error": "nvrtc", "text": "x"}, "packages": {}}, "h has no cupy", "pip"),
    ],
)
def test_each_cause_is_one_line_with_its_remedy(
    changes: dict[str, Any], said: str, remedy: str
) -> None:
    (line,) = findings("h", found(**changes))
    assert line.startswith("h")
    assert said in line
    assert remedy in line[line.index(said) :]
    assert "\n" not in line


def test_a_host_that_cannot_tell_is_named() -> None:
    (line,) = findings("h", {"error": "ModuleNotFoundError: x (exit code 1)"})
    assert "not known (ModuleNotFoundError: x (exit code 1))" in line
    assert summary({"error": "x"}) == "not known"
    assert list(remarks("h", {"error": "x"})) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"memory": {"error": "Failed", "text": "invalid device context"}},
            "cannot open each other's GPU memory (invalid device context)",
        ),
        ({"namespaces": ["pid", "ipc"]}, "a container with its own pid and ipc namespace"),
        (driver(13000, device("NVIDIA H200 MIG 1g.18gb")), "GPU 0 is a part of one (NVIDIA H200"),
        (driver(13000, device(mode=3)), "GPU 0 is in compute mode exclusive-process: `nvidia-smi"),
    ],
)
def test_what_is_worth_knowing_of_gpus(changes: dict[str, Any], said: str) -> None:
    (line,) = remarks("h", found(**changes))
    assert said in line


def test_containers_do_not_matter_without_gpus() -> None:
    assert not list(remarks("h", found(driver={"cuda": 0, "devices": []}, namespaces=["pid"])))


def test_drivers_and_gpus_of_hosts_are_compared() -> None:
    values = differences({"a": found(), "b": found(**driver(12040)), "c": {"error": "x"}})
    assert values["the driver's CUDA"] == {"a": "13.0", "b": "12.4"}
    assert values["CUDA_VISIBLE_DEVICES"] == {"a": None, "b": None}
    assert values["the GPUs"] == {"a": "2 x NVIDIA H200", "b": "1 x NVIDIA H200"}


def test_a_problem_where_gpus_are_asked_for_is_a_note_elsewhere() -> None:
    facts: dict[str, Any] = {
        "devices": found(packages={}),
        "shared": {"shm": None, "memfd": True},
        "load": 0.0,
        "cores": 4,
        "python": "3.11.7",
        "frameworks": dict.fromkeys(FRAMEWORKS),
        "interfaces": [],
    }
    here = Seen("h1", True, facts)
    (problem,) = gpus(here)
    assert problem.startswith("host h1 (this one) has no cupy")
    assert notes([here]) == [problem]
    assert notes([here], with_gpus=False) == []
    assert list(gpus(Seen("h2", False, None))) == []
