"""The kernel: its source, how it is compiled, and the folder where compiled ones are kept.

Each element type is a kernel of its own, compiled when it is first needed: a few seconds, once for
every kind of device. A kept file carries the hash of its content and appears whole or not at all;
one that is broken is named and made anew.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from blinkrun import disk, env, log
from blinkrun.planner.store import cache_dir
from blinkrun.types import DType

THREADS = 512  # of a block, as kernels.cu says

_SOURCES = Path(__file__).parents[1] / "csrc"
_KERNEL = "kernels.cu"
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_ENUMERATORS = {DType.BFLOAT16: "kBFloat16"}
_said: set[Path] = set()  # what this process has warned of: once is enough


class Nvrtc(Protocol):
    """A compiler of kernels.

    Attributes
    ----------
    version : tuple of int
        Major and minor.
    """

    version: tuple[int, int]

    def compile(
        self, source: str, *, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Return the cubin of `source`; raises `errors.DeviceError` with the compiler's words."""
        ...


def entry_point(label: str) -> str:
    """Return the name of the kernel for an element type.

    >>> entry_point("float32")
    'blinkrun_run_float32'
    """
    return f"blinkrun_run_{label}"


@cache
def source() -> str:
    """Return the text of the kernel."""
    return (_SOURCES / _KERNEL).read_text()


@cache
def headers() -> Mapping[str, str]:
    """Return the texts that the kernel includes, by the names that it includes them by."""
    found: dict[str, str] = {}
    missing = _INCLUDE.findall(source())
    while missing:
        name = missing.pop()
        if name not in found:
            found[name] = (_SOURCES / name).read_text()
            missing += _INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


def options(label: str, architecture: str) -> tuple[str, ...]:
    """Return how the kernel for an element type is compiled.

    Parameters
    ----------
    label : str
        Of a `DType`.
    architecture : str
        ``sm_90`` for machine code, ``compute_90`` for PTX.

    Examples
    --------
    >>> options("bfloat16", "sm_90")[2:]
    ('--gpu-architecture=sm_90', '-DBLINKRUN_NAME=bfloat16', '-DBLINKRUN_TYPE=kBFloat16')
    """
    dtype = DType[label.upper()]
    enumerator = _ENUMERATORS.get(dtype, f"k{label.capitalize()}")
    return (
        *common_options(),
        f"--gpu-architecture={architecture}",
        f"-DBLINKRUN_NAME={label}",
        f"-DBLINKRUN_TYPE={enumerator}",
    )


def common_options() -> tuple[str, ...]:
    """Return what goes to every compiler, nvcc too; sums must be those of the CPU, bit by bit."""
    return ("--std=c++17", "--fmad=false")


def cubin(
    label: str, capability: tuple[int, int], nvrtc: Nvrtc, folder: Path | None = None
) -> bytes:
    """Return the kernel for an element type: the one that is kept, else a new one, then kept.

    Parameters
    ----------
    label : str
        Of a `DType`.
    capability : tuple of int
        Compute capability of the device.
    nvrtc : Nvrtc
        Who compiles.
    folder : Path, optional
        Where kernels are kept; by default beside the plans. Trouble with it is said and costs time.

    Raises
    ------
    DeviceError
        As `Nvrtc.compile`.
    """
    architecture = f"sm_{capability[0]}{capability[1]}"
    how = options(label, architecture)
    place = folder or kernel_dir()
    path = place / f"{label}-{architecture}-{_key(how, nvrtc.version)}.cubin"
    found = _read(path)
    if found is None:
        found = nvrtc.compile(source(), name=_KERNEL, headers=headers(), options=how)
        _write(found, path)
    return found


def kernel_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for kernels: beside the plans.

    >>> kernel_dir({"XDG_CACHE_HOME": "/home/ada/.cache"}).as_posix()
    '/home/ada/.cache/blinkrun/kernels'
    """
    return cache_dir(environ).with_name("kernels")


def _key(how: Sequence[str], version: tuple[int, int]) -> str:
    texts = (source(), *headers().values(), *how, repr(version))
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


def _read(path: Path) -> bytes | None:
    try:
        return disk.read(path)
    except ValueError:
        _say_once(path, f"kernel cache: {path} is broken; compiled anew")
    except OSError as err:
        _say_unusable(path.parent, err)
    return None


def _write(body: bytes, path: Path) -> None:
    try:
        disk.write(body, path)
    except OSError as err:
        _say_unusable(path.parent, err)


def _say_unusable(folder: Path, err: OSError) -> None:
    reason = err.strerror or str(err)
    hint = f"kernels are not kept ({env.CACHE} names another folder)"
    _say_once(folder, f"kernel cache {folder}: {reason}; {hint}")


def _say_once(about: Path, message: str) -> None:
    if about not in _said:
        _said.add(about)
        log.say(message)
