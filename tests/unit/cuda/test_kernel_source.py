"""The kernel's source is whole; what is compiled is kept and read again, never half of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from blinkrun import log
from blinkrun.executors import kernel_source
from blinkrun.types import DType


class FakeCompiler:
    """Notes what it is given; what it makes is different every time."""

    def __init__(self, version: tuple[int, int] = (13, 0)) -> None:
        self.version = version
        self.asked: list[tuple[str, ...]] = []

    def compile(
        self, source: str, *, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> bytes:
        """Return bytes with a new line in them, as machine code may have."""
        assert f'#include "{next(iter(headers))}"' in source
        assert name == "kernels.cu"
        self.asked.append(tuple(options))
        return b"\x7fELF\n" + bytes([len(self.asked)]) * 100


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was said."""
    lines: list[str] = []
    monkeypatch.setattr(log, "say", lines.append)
    monkeypatch.setattr(kernel_source, "_said", set())
    return lines


def test_everything_that_is_included_is_given_to_the_compiler():
    """NVRTC has no folder to look into, and of the standard library's headers none."""
    headers = kernel_source.headers()
    assert {"device_block.hpp", "device_reduce.hpp", "portable.hpp"} <= headers.keys()
    for text in (kernel_source.source(), *headers.values()):
        without_host = re.sub(r"#if !defined\(__CUDACC_RTC__\).*?#endif", "", text, flags=re.DOTALL)
        without_host = re.sub(r"#else\n(#include <\w+>\n)+#endif", "", without_host)
        for name in re.findall(r"^#include (.+)$", without_host, re.MULTILINE):
            assert name.strip('"') in headers


def test_there_is_an_entry_point_for_each_type_and_the_threads_are_those_of_the_launch():
    source = kernel_source.source()
    assert re.findall(r"^BLINKRUN_ENTRY\((\w+), \w+\)$", source, re.MULTILINE) == [
        dtype.label for dtype in DType
    ]
    assert re.findall(r"kThreads = (\d+);", source) == [str(kernel_source.THREADS)]
    enumerators = kernel_source.headers()["types.hpp"]
    for dtype in DType:
        wanted = kernel_source.options(dtype.label, "sm_90")[-1].removeprefix("-DBLINKRUN_TYPE=")
        assert re.search(rf"\b{wanted}\b", enumerators)
        assert f"BLINKRUN_ENTRY({dtype.label}, {wanted})" in source


def test_a_kernel_is_compiled_once(tmp_path: Path):
    compiler = FakeCompiler()
    folder = tmp_path / "kernels"
    first = kernel_source.cubin("float32", (9, 0), compiler, folder)
    assert kernel_source.cubin("float32", (9, 0), compiler, folder) == first
    assert len(compiler.asked) == 1
    assert "--gpu-architecture=sm_90" in compiler.asked[0]
    assert "--fmad=false" in compiler.asked[0]
    assert not [name for name in os.listdir(folder) if name.startswith(".")]


def test_another_type_device_or_compiler_is_another_kernel(tmp_path: Path):
    compiler, newer = FakeCompiler(), FakeCompiler((13, 1))
    made = {
        kernel_source.cubin("float32", (9, 0), compiler, tmp_path),
        kernel_source.cubin("float64", (9, 0), compiler, tmp_path),
        kernel_source.cubin("float32", (10, 3), compiler, tmp_path),
    }
    kernel_source.cubin("float32", (9, 0), newer, tmp_path)
    assert len(made) == len(compiler.asked) == 3
    assert "--gpu-architecture=sm_103" in compiler.asked[-1]
    assert len(newer.asked) == 1


def test_another_source_is_another_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiler = FakeCompiler()
    kernel_source.cubin("bool", (8, 0), compiler, tmp_path)
    changed = {**kernel_source.headers(), "steps.hpp": "// other steps"}
    monkeypatch.setattr(kernel_source, "headers", lambda: changed)
    kernel_source.cubin("bool", (8, 0), compiler, tmp_path)
    assert len(compiler.asked) == 2


def test_a_broken_file_is_named_and_made_anew(tmp_path: Path, said: list[str]):
    compiler = FakeCompiler()
    kernel_source.cubin("int8", (8, 0), compiler, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    again = kernel_source.cubin("int8", (8, 0), compiler, tmp_path)
    assert len(compiler.asked) == 2
    assert said == [f"kernel cache: {path} is broken; compiled anew"]
    assert kernel_source.cubin("int8", (8, 0), compiler, tmp_path) == again


def test_a_folder_that_cannot_be_used_costs_time_only(tmp_path: Path, said: list[str]):
    (tmp_path / "file").touch()
    compiler = FakeCompiler()
    for _ in range(2):
        kernel_source.cubin("int8", (8, 0), compiler, tmp_path / "file" / "kernels")
    assert len(compiler.asked) == 2
    assert len(said) == 1
    assert "BLINKRUN_CACHE_DIR" in said[0]
