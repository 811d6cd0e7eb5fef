"""Reading a host from recorded sysfs trees, whole, partial and broken."""

import os

import pytest

from blinkrun.topology.cpu import Cpu
from blinkrun.topology.probe import probe_host


@pytest.fixture
def sysfs(tmp_path):
    """`sysfs({"cpu/online": "0-3", …})` writes a tree below devices/system."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / "devices/system" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
        return tmp_path

    return write


def recorded(place):
    """The files of a host from {cpu: (core, socket, numa)}."""
    files = {"cpu/online": ",".join(map(str, place)), "node/online": "0"}
    for cpu, (core, socket, _) in place.items():
        files[f"cpu/cpu{cpu}/topology/core_id"] = core
        files[f"cpu/cpu{cpu}/topology/physical_package_id"] = socket
    nodes = sorted({numa for _, _, numa in place.values()})
    files["node/online"] = ",".join(map(str, nodes))
    for node in nodes:
        members = [str(cpu) for cpu, (_, _, numa) in place.items() if numa == node]
        files[f"node/node{node}/cpulist"] = ",".join(members)
    return files


TWO_SOCKETS = {0: (0, 0, 0), 1: (1, 0, 0), 2: (0, 1, 1), 3: (1, 1, 1)}


def test_sockets_cores_and_numa_nodes_are_found(sysfs):
    host = probe_host(sysfs(recorded(TWO_SOCKETS)), affinity=range(4))
    assert host.complete
    assert host.cpus == tuple(Cpu(cpu, *place) for cpu, place in TWO_SOCKETS.items())
    assert (host.sockets, host.numa_nodes, host.num_cores()) == ((0, 1), (0, 1), 4)


def test_only_allowed_processors_count(sysfs):
    host = probe_host(sysfs(recorded(TWO_SOCKETS)), affinity=[2, 3, 9])
    assert (host.sockets, host.num_cores()) == ((1,), 2)


def test_ranges_as_the_kernel_writes_them(sysfs):
    files = recorded({cpu: (cpu, 0, 0) for cpu in range(6)})
    files |= {"cpu/online": "0-2,4-5", "node/node0/cpulist": "0-5"}
    assert [cpu.cpu for cpu in probe_host(sysfs(files), affinity=range(6)).cpus] == [0, 1, 2, 4, 5]


def test_firmware_that_numbers_nothing_means_one_socket(sysfs):
    host = probe_host(sysfs(recorded({0: (-1, -1, 0), 1: (-1, -1, 0)})), affinity=range(2))
    assert (host.complete, host.sockets, host.num_cores()) == (True, (0,), 2)


def test_a_host_without_numa_files_is_one_node(sysfs):
    files = {n: t for n, t in recorded(TWO_SOCKETS).items() if not n.startswith("node")}
    host = probe_host(sysfs(files), affinity=range(4))
    assert (host.complete, host.sockets, host.numa_nodes) == (True, (0, 1), (0,))


@pytest.mark.parametrize(
    "broken",
    [
        {"cpu/cpu2/topology/core_id": "second"},
        {"cpu/cpu2/topology/physical_package_id": ""},
        {"cpu/cpu2/topology/physical_package_id": b"\xff\xfe"},
    ],
)
def test_a_processor_that_hides_makes_all_share_one_socket(sysfs, broken):
    host = probe_host(sysfs(recorded(TWO_SOCKETS) | broken), affinity=range(4))
    assert (host.complete, host.sockets, host.num_cores()) == (False, (0,), 4)


@pytest.mark.parametrize("online", ["zero", "3-", "-", "1-x"])
def test_a_malformed_list_is_taken_as_hidden(sysfs, online):
    host = probe_host(sysfs({"cpu/online": online}), affinity=[0, 5])
    assert (host.complete, [cpu.cpu for cpu in host.cpus]) == (False, [0, 5])


def test_without_sysfs_the_processors_share_one_socket(tmp_path):
    assert probe_host(tmp_path, affinity=range(3)).num_cores() == 3
    assert probe_host(tmp_path, affinity=(), cpu_count=4).num_cores() == 4
    assert probe_host(tmp_path, affinity=()).num_cores() == os.cpu_count()


def test_this_machine_has_the_processors_that_it_allows():
    host = probe_host()
    assert {cpu.cpu for cpu in host.cpus} <= os.sched_getaffinity(0)
