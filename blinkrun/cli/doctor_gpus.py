"""What ``blinkrun doctor`` makes of a host's GPUs: a line for each cause, with the remedy.

Functions of the facts that `executors.device_facts` gathers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

OLDEST_CUDA = 12000  # that cupy has a package of ours for
OLDEST_CUPY = 14  # that finds the compiler which pip has installed
OLDEST_13 = (7, 5)  # compute capability that CUDA 13 compiles for
OLDEST_12 = (7, 0)  # that the kernel needs
_MODES = {2: "prohibited", 3: "exclusive-process"}
_DRIVERS = {12: "525", 13: "580"}

# What cuInit answers, and what to do.
_STARTS = {
    "CUDA_ERROR_NO_DEVICE": "the driver shows no GPU to this process: see CUDA_VISIBLE_DEVICES;"
    " start a container with --gpus all, a Slurm step with --gpus",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver's library and its kernel module have different"
    " versions: reboot after an update; in a container use the host's library",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "the package cuda-compat does not work with this"
    " GPU: remove it and use the driver's own library",
    "CUDA_ERROR_SYSTEM_NOT_READY": "the NVSwitches are not set up: start the service"
    " nvidia-fabricmanager, of the driver's version",
    "CUDA_ERROR_UNKNOWN": "the driver cannot start: modprobe nvidia-uvm, and give a container"
    " /dev/nvidia-uvm",
}


def findings(title: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps ranks of a host from using its GPUs.

    Parameters
    ----------
    title : str
        How lines name the host.
    found : mapping
        As `device_facts.facts` returns it.
    """
    if "driver" not in found:
        yield (
            f"{title}: what its GPUs can do is not known ({found.get('error', 'no answer')}); does"
            " it have this version of blinkrun?"
        )
        return
    yield from _of_driver(title, found["driver"], found["visible"])
    has_cupy = True
    for line in _of_cupy(title, found["packages"], found["driver"]):
        has_cupy = False
        yield line
    if has_cupy:
        yield from _of_kernel(title, found)


def remarks(title: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what makes GPUs slower, or asks for care, and is no error."""
    devices = found.get("driver", {}).get("devices", [])
    memory = found.get("memory")
    if memory and not found["kernel"].get("error"):
        yield (
            f"{title}: processes cannot open each other's GPU memory ({memory['text']}), so that"
            " ranks exchange by way of the host's: run all ranks of a host in one container, or"
            " containers with --ipc=host --pid=host; parts of GPUs (MIG), vGPUs and WSL lack it"
        )
    elif devices and found["namespaces"]:
        yield (
            f"{title} is a container with its own {' and '.join(found['namespaces'])} namespace:"
            " ranks of a host that share GPU memory must all be in this one, or in containers with"
            " --ipc=host --pid=host"
        )
    for index, device in enumerate(devices):
        if " MIG " in device["name"]:
            yield (
                f"{title}: GPU {index} is a part of one ({device['name']}): parts do not reach each"
                " other's memory, ranks on them exchange by way of the host's"
            )
        if device["mode"] in _MODES:
            yield (
                f"{title}: GPU {index} is in compute mode {_MODES[device['mode']]}:"
                " `nvidia-smi -c DEFAULT` lets several processes use it"
            )


def differences(by_host: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str | None]]:
    """Return what may differ between hosts, by its name: each host's value."""
    known = {host: found for host, found in by_host.items() if "driver" in found}
    return {
        "the driver's CUDA": {
            host: version(found["driver"].get("cuda", 0)) for host, found in known.items()
        },
        "CUDA_VISIBLE_DEVICES": {host: found["visible"] for host, found in known.items()},
        "the GPUs": {host: models(found["driver"]) for host, found in known.items()},
    }


def models(driver: Mapping[str, Any]) -> str:
    """Return how many of which GPUs a driver shows.

    >>> models({"devices": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]})
    '2 x NVIDIA H200'
    """
    counts: dict[str, int] = {}
    for device in driver.get("devices", ()):
        counts[device["name"]] = counts.get(device["name"], 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no GPU"


def version(number: int) -> str:
    """Return a version of CUDA as people write it.

    >>> version(13020), version(0)
    ('13.2', 'none')
    """
    return f"{number // 1000}.{number % 1000 // 10}" if number else "none"


def summary(found: Mapping[str, Any]) -> str:
    """Return one line on a host's GPUs and on what uses them."""
    if "driver" not in found:
        return "not known"
    driver, kernel = found["driver"], found["kernel"]
    compiled = f"compiled in {kernel['seconds']:g} s" if "seconds" in kernel else "not compiled"
    cuda = f"driver for CUDA {version(driver.get('cuda', 0))}"
    return f"{models(driver)}; {cuda}; {_packages(found['packages'])}; kernel {compiled}"


def _of_driver(title: str, driver: Mapping[str, Any], visible: str | None) -> Iterator[str]:
    error = driver.get("error")
    if error == "OSError":
        yield (
            f"{title} has no NVIDIA driver ({driver['text']}): install it; start a container with"
            " --gpus all and NVIDIA's container toolkit"
        )
    elif error:
        hidden = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}"
        advice = _STARTS.get(error, "nvidia-smi may say more, and the kernel's log (dmesg)")
        yield f"{title}: the NVIDIA driver does not start ({error}{hidden}): {advice}"
    elif driver["cuda"] < OLDEST_CUDA:
        yield (
            f"{title}: its NVIDIA driver takes CUDA {version(driver['cuda'])}, 12.0 is needed:"
            f" install driver {_DRIVERS[12]} or newer"
        )
    for index, device in enumerate(driver.get("devices", ())):
        if tuple(device["capability"]) < OLDEST_12:
            yield (
                f"{title}: GPU {index} ({device['name']}) has compute capability"
                f" {_dotted(device['capability'])}, 7.0 (V100) is needed: hide it with"
                " CUDA_VISIBLE_DEVICES"
            )


def _of_cupy(title: str, packages: Mapping[str, str], driver: Mapping[str, Any]) -> Iterator[str]:
    extra = _extra(driver)
    if not packages:
        yield f"{title} has no cupy: pip install 'blinkrun[{extra}]' there"
        return
    if len(packages) > 1:
        yield (
            f"{title} has {' and '.join(packages)}, which hide each other: pip uninstall"
            f" {' '.join(packages)}, then pip install 'blinkrun[{extra}]'"
        )
        return
    ((name, installed),) = packages.items()
    major = _major_of(name)
    if int(installed.partition(".")[0]) < OLDEST_CUPY:
        yield f"{title}: cupy {installed} is too old: pip install 'blinkrun[{extra}]' there"
    elif OLDEST_CUDA <= driver.get("cuda", 0) < major * 1000:
        yield (
            f"{title}: {name} needs a driver for CUDA {major} ({_DRIVERS.get(major, 'newer')} or"
            f" newer), this one takes CUDA {version(driver['cuda'])}: pip uninstall {name}, then"
            f" pip install 'blinkrun[{extra}]'; or update the driver"
        )
    elif major >= 13:
        for index, device in enumerate(driver.get("devices", ())):
            if OLDEST_12 <= tuple(device["capability"]) < OLDEST_13:
                yield (
                    f"{title}: GPU {index} ({device['name']}) has compute capability"
                    f" {_dotted(device['capability'])}, which CUDA 13 no longer compiles for: pip"
                    f" uninstall {name}, then pip install 'blinkrun[cuda12]'"
                )


def _of_kernel(title: str, found: Mapping[str, Any]) -> Iterator[str]:
    kernel = found["kernel"]
    if "error" not in kernel:
        return
    text = kernel["text"]
    if kernel["error"] == "nvrtc":
        extra = _extra(found["driver"], found["packages"])
        yield (
            f"{title}: NVRTC, which compiles the kernel, cannot be loaded ({text}): pip install"
            f" 'blinkrun[{extra}]' there, which brings it"
        )
    else:
        yield f"{title}: the kernel cannot be compiled ({text}); please report this line"


def _extra(driver: Mapping[str, Any], packages: Mapping[str, str] | None = None) -> str:
    """Return the extra that fits a driver and its GPUs, or the cupy that is there."""
    if packages:
        return "cuda12" if _major_of(next(iter(packages))) == 12 else "cuda13"
    devices = driver.get("devices", ())
    is_old = any(tuple(device["capability"]) < OLDEST_13 for device in devices)
    return "cuda12" if is_old or 0 < driver.get("cuda", 0) < 13000 else "cuda13"


def _major_of(name: str) -> int:
    """Return the CUDA that a package of cupy is for; 0 for one made from source."""
    return int("".join(filter(str.isdigit, name)) or 0)


def _packages(packages: Mapping[str, str]) -> str:
    return " ".join(f"{name} {installed}" for name, installed in packages.items()) or "no cupy"


def _dotted(capability: Sequence[int]) -> str:
    return ".".join(map(str, capability))
