"""The host build of the kernel, made once for this checkout."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.places import ROOT, TESTS

NATIVE = TESTS / "native"
CORE = ROOT / "blinkrun" / "csrc"
SOURCES = (NATIVE / "fake_kernel.cpp", CORE / "kernels_base.cpp")
FLAGS = ("-std=c++17", "-O2", "-fno-math-errno", "-pthread", "-fPIC", "-shared", "-Wall", "-Wextra")
BUILD_S = 300  # longest that a build may take
_MOST_PLACES = 256


class Kernel:
    """What the library offers.

    Attributes
    ----------
    call_bytes : int
        Size of a `DeviceCall`.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.fake_call_bytes.restype = ctypes.c_size_t
        self._library.fake_run.argtypes = [
            ctypes.c_char_p,
            ctypes.c_int32,
            ctypes.c_uint32,
            ctypes.c_uint64,
        ]
        self._library.fake_run.restype = None
        self._library.fake_places.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint32]
        self._library.fake_places.restype = ctypes.c_uint32
        self._library.fake_place_name.argtypes = [ctypes.c_uint32]
        self._library.fake_place_name.restype = ctypes.c_char_p
        self.call_bytes: int = self._library.fake_call_bytes()

    def places(self, call: bytes) -> Iterator[tuple[str, int, int]]:
        """Yield what the call may touch: its name, address and bytes."""
        words = (ctypes.c_uint64 * (3 * _MOST_PLACES))()
        count = self._library.fake_places(call, words, _MOST_PLACES)
        for i in range(0, 3 * count, 3):
            name = self._library.fake_place_name(words[i]).decode()
            yield name, words[i + 1], words[i + 2]

    def run(self, call: bytes, dtype: int, blocks: int, seed: int) -> None:
        """Run all blocks of the call to their end, their turns in an order drawn from `seed`."""
        self._library.fake_run(call, dtype, blocks, seed)


def _digest() -> str:
    found = hashlib.sha256(" ".join(FLAGS).encode())
    for path in (*SOURCES, *sorted(CORE.glob("*.hpp")), *sorted(NATIVE.glob("*.hpp"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


@functools.cache
def load() -> Kernel:
    """Return the kernel; builds it if the sources have changed, one process at a time."""
    folder = Path(os.environ.get("BLINKRUN_TEST_BUILD", NATIVE / "build")) / "fake"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"kernel-{_digest()}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _build(made)
    return Kernel(made)


def _build(made: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    part = made.with_suffix(".part")
    command = [compiler, *FLAGS, f"-I{CORE}", *map(str, SOURCES), "-o", str(part)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the host build of the kernel failed:\n{done.stderr[-4000:]}")
    for old in made.parent.glob("kernel-*.so"):
        old.unlink()
    part.rename(made)
