"""The host build of the kernel, made once for this checkout."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.places import ROOT, TESTS

NATIVE = TESTS / "native"
CORE = ROOT / "blinkrun" / "csrc"
SOURCE = NATIVE / "fake_kernel.cpp"
FLAGS = (
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-pthread",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
)
BUILD_S = 300  # longest that a build may take
_MOST_PLACES = 256
_WORD = struct.Struct("=I")


class Kernel:
    """What the library offers."""

    def __init__(self, path: Path) -> None:
        self._library = library = ctypes.CDLL(str(path))
        call, word = ctypes.c_char_p, ctypes.c_uint32
        for name, result, arguments in (
            ("fake_call_bytes", ctypes.c_size_t, []),
            ("fake_dtype_at", ctypes.c_size_t, []),
            ("fake_place_name", ctypes.c_char_p, [word]),
            ("fake_places", word, [call, word, ctypes.c_void_p, word]),
            ("fake_run", None, [call, word, ctypes.c_uint64]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._call = ctypes.c_char * library.fake_call_bytes()
        self._dtype_at: int = library.fake_dtype_at()

    def call_at(self, address: int) -> bytes:
        """Return a copy of the `DeviceCall` at `address`."""
        words: bytes = self._call.from_address(address).raw
        return words

    def places(self, call: bytes) -> Iterator[tuple[str, int, int]]:
        """Yield name, address and bytes of what the call may touch; what tells of others first."""
        for rest in (0, 1):
            words = (ctypes.c_uint64 * (3 * _MOST_PLACES))()
            count = self._library.fake_places(call, rest, words, _MOST_PLACES)
            for i in range(0, 3 * count, 3):
                name = self._library.fake_place_name(words[i]).decode()
                yield name, words[i + 1], words[i + 2]

    def dtype(self, call: bytes) -> int:
        """Return the element type that the call says."""
        number: int = _WORD.unpack_from(call, self._dtype_at)[0]
        return number

    def run(self, call: bytes, blocks: int, seed: int) -> None:
        """Run all blocks of the call to their end, their turns in an order drawn from `seed`."""
        self._library.fake_run(call, blocks, seed)


def _digest() -> str:
    found = hashlib.sha256(" ".join(FLAGS).encode())
    for path in (SOURCE, *sorted(CORE.glob("*.hpp")), *sorted(NATIVE.glob("*.hpp"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


@functools.cache
def load() -> Kernel:
    """Return the kernel; builds it if the sources have changed, one process at a time."""
    folder = NATIVE / "build" / "fake"
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
    command = [compiler, *FLAGS, f"-I{CORE}", str(SOURCE), "-o", str(part)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the host build of the kernel failed:\n{done.stderr[-4000:]}")
    for old in made.parent.glob("kernel-*.so"):
        old.unlink()
    part.rename(made)
