"""`blinkrun doctor` over fake hosts: each thing that is not well is said in a line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_hosts import fake_hosts

from blinkrun.bench.fake_hosts import FakeHosts

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[FakeHosts]:
    with fake_hosts(3) as made:
        yield made


def doctor(hosts: FakeHosts, *words: str, before: str = ":") -> tuple[int, str, str]:
    """Run doctor on the first host, after the shell command `before`."""
    command = f"{before}; exec {sys.executable} -m blinkrun doctor {' '.join(words)}"
    ran = subprocess.run(
        hosts.command(0, ["bash", "-c", f"{command} --launch-agent {hosts.agent}"]),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert all(not hosts.processes(index) for index in range(hosts.count))
    return ran.returncode, ran.stdout, ran.stderr


def problems(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("problem: ")]


def test_hosts_that_are_well_as_json(hosts: FakeHosts, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    file = tmp_path / "hosts"
    file.write_text("".join(f"{name} slots=2\n" for name in hosts.names))
    words = ["--hostfile", str(file), "--json", "--network-interface", "eth0", str(script)]
    code, out, err = doctor(hosts, *words)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["problems"], found["this"]) == ([], hosts.names[0])
    assert list(found["hosts"]) == list(hosts.names)
    for index, name in enumerate(hosts.names):
        host = found["hosts"][name]
        assert host["address"] == f"10.77.0.{index + 1}"
        assert host["facts"]["host"] == name
        assert host["facts"]["loaded"]["mpi"]["threads"] == "MULTIPLE"
        assert host["facts"]["files"][str(script)]


def test_each_thing_that_is_wrong_is_one_line(hosts: FakeHosts) -> None:
    one, two = hosts.names[1:]
    script = "/dev/shm/train.py"  # a folder that each host has for itself
    stranger = f"{hosts.prefix}9"
    apart = f"ip netns exec {one} ip route add blackhole 10.77.0.3"
    named = ",".join([*hosts.names, stranger])
    code, out, err = doctor(hosts, "-H", named, script, before=f"echo pass >{script}; {apart}")
    subprocess.run(
        ["ip", "netns", "exec", one, "ip", "route", "del", "blackhole", "10.77.0.3"], check=True
    )
    assert (code, err) == (1, "")
    assert problems(out) == [
        f"problem: host {one} does not see {script}: copy it there, or start from a folder that"
        " all hosts share",
        f"problem: host {one} cannot connect to {two}: open the ports between all hosts in their"
        " firewalls, or choose another network by --network-interface",
        f"problem: host {two} does not see {script}: copy it there, or start from a folder that"
        " all hosts share",
        f"problem: host {two} cannot connect to {one}: open the ports between all hosts in their"
        " firewalls, or choose another network by --network-interface",
        f"problem: host {stranger} is unknown here: check its name, or add it to /etc/hosts or"
        f' ~/.ssh/config (Cannot open network namespace "{stranger}": No such file or directory)',
    ]


def test_a_host_that_is_cut_off_is_named(hosts: FakeHosts) -> None:
    hosts.cut(2)
    try:
        code, out, err = doctor(hosts, "-H", ",".join(hosts.names))
    finally:
        hosts.mend(2)
    assert (code, err) == (1, "")
    (line,) = problems(out)
    assert line.startswith(f"problem: host {hosts.names[2]} has no network interface that works")
