"""Running the vendors' tools and loading NVIDIA's library: missing, broken, slow."""

import os
import sys
import time
from types import ModuleType

import pytest
from support.fake_nvml import FakeNvml, NVMLError

from blinkrun.topology import probe
from blinkrun.topology.probe import Tools, cpu_vendor, open_nvml, probe_here


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """`tool("echo hello")` makes a tool of that shell script."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(script, head="#!/bin/sh"):
        path = tmp_path / "some-smi"
        path.write_text(f"{head}\n{script}\n")
        path.chmod(0o755)

    return make


def test_a_tool_gives_what_it_prints(tool):
    tool('echo "$1 $LC_ALL"; echo noise >&2; read line || echo no input')
    assert Tools()(["some-smi", "-L"]) == "-L C\nno input\n"


def test_odd_bytes_are_borne(tool):
    tool(r"printf 'a\377b'")
    assert Tools()(["some-smi"]) == "a�b"


def test_a_tool_that_fails_says_nothing(tool):
    tool("echo half; exit 9")
    assert Tools()(["some-smi"]) is None


def test_a_tool_that_is_missing_or_cannot_run_says_nothing(tool):
    assert Tools()(["no-such-smi"]) is None
    tool("", head="#!/no/such/shell")
    assert Tools()(["some-smi"]) is None


def test_a_tool_that_hangs_is_ended_with_its_children_and_not_asked_again(tool, tmp_path):
    tool(f"echo >> {tmp_path}/runs; sleep 100 & echo $! > {tmp_path}/child; wait")
    tools = Tools(timeout_s=0.1)
    started_s = time.monotonic()
    assert tools(["some-smi"]) is None
    assert tools(["some-smi", "-L"]) is None
    assert time.monotonic() - started_s < 5
    assert (tmp_path / "runs").read_text() == "\n"
    child = (tmp_path / "child").read_text().strip()
    deadline_s = time.monotonic() + 5
    while _is_alive(child) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not _is_alive(child)


def _is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_tools_beside_the_path_are_found(tool, tmp_path, monkeypatch):
    tool("echo here")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(probe, "_TOOL_FOLDERS", (str(tmp_path),))
    assert Tools()(["some-smi"]) == "here\n"


@pytest.fixture
def pynvml(monkeypatch):
    """`pynvml(fake)` puts a stand-in in the module's place."""

    def put(fake):
        module = ModuleType("pynvml")
        for name in ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "NVMLError"):
            setattr(module, name, getattr(fake, name))
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return put


def test_the_library_is_open_as_long_as_it_is_used(pynvml):
    fake = FakeNvml(("0000:07:00.0",))
    pynvml(fake)
    with open_nvml() as library:
        assert fake.is_open
        assert library.nvmlDeviceGetCount() == 1
    assert not fake.is_open


def test_without_the_package_or_a_driver_there_is_no_library(monkeypatch, pynvml):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with open_nvml() as library:
        assert library is None
    fake = FakeNvml(())

    def refuse():
        raise NVMLError("Driver Not Loaded")

    fake.nvmlInit = refuse
    pynvml(fake)
    with open_nvml() as library:
        assert library is None


def test_a_library_that_cannot_be_closed_is_left(pynvml):
    fake = FakeNvml(())

    def refuse():
        raise NVMLError("Unknown Error")

    fake.nvmlShutdown = refuse
    pynvml(fake)
    with open_nvml() as library:
        assert library is not None


def test_here_are_gpus_or_none_and_processors():
    machine, host = probe_here({})
    assert machine is None or machine.num_gpus
    assert host.num_cores() >= 1


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("vendor_id\t: GenuineIntel\n", "intel"),
        ("vendor_id\t: AuthenticAMD\n", "amd"),
        ("vendor_id\t: HygonGenuine\n", "amd"),
        ("vendor_id\t: CentaurHauls\n", "zhaoxin"),
        ("vendor_id\t:   Shanghai  \n", "zhaoxin"),
        ("CPU implementer\t: 0x41\n", "arm"),
        ("cpu\t\t: POWER9, altivec supported\n", "power"),
        ("", ""),
    ],
)
def test_makers_of_cpus(text, vendor):
    assert cpu_vendor(text) == vendor
