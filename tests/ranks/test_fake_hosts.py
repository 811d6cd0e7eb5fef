"""Fake hosts: what other tests rely on."""

import importlib.util
import json
import subprocess

import pytest
from support.fake_hosts import SCRIPT, fake_hosts, why_no_fake_hosts

from blinkrun.bench.host_runs import OnFakeHosts
from blinkrun.bench.predicted import predicted_us
from blinkrun.bench.runs import Run
from blinkrun.planner.hosts_plan import HostsPlan

LIMIT_S = 20.0


def said(command):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout.strip()


def test_hosts_have_names_and_a_network_of_their_own_and_leave_nothing():
    with fake_hosts(2) as hosts:
        assert said(hosts.command(1, ["hostname"])) == hosts.names[1]
        assert said(hosts.command(0, ["echo", "a  b", "$HOME"])) == "a  b $HOME"
        assert hosts.slots(2, 1) == f"{hosts.names[0]}:2,{hosts.names[1]}:1"
        reach = f"exec 3<>/dev/udp/{hosts.names[1]}/9; echo >&3 && echo reached"
        assert said(hosts.command(0, ["bash", "-c", reach])) == "reached"
        hosts.cut(1)
        assert "state DOWN" in said(hosts.command(1, ["ip", "link", "show", "eth0"]))
        hosts.mend(1)
        hosts.rate("10mbit", 1)
        assert "rate 10Mbit" in said(hosts.command(1, ["tc", "qdisc", "show", "dev", "eth0"]))
        assert "rate" not in said(hosts.command(0, ["tc", "qdisc", "show", "dev", "eth0"]))
        # What a test has left behind goes with the hosts.
        left = subprocess.Popen(hosts.command(0, ["sleep", "1000"]))
        while not hosts.processes(0):
            assert left.poll() is None
    assert left.wait(LIMIT_S) != 0
    assert not [name for name in said(["ip", "netns"]).split() if name.startswith(hosts.prefix)]


def test_a_run_of_the_report_is_launched_on_hosts_of_its_own():
    pytest.importorskip("mpi4py", reason="needs mpi: mpi4py is not installed")
    peers = "mpi,gloo" if importlib.util.find_spec("torch") else "mpi"
    words = ("--sizes", "4,64K", "--against", peers, "--iters", "1", "--warmup", "1")
    run = Run("tiny", 3, (*words, "--rounds", "1"), slots=(1, 2), rate="1gbit")
    if why_no_fake_hosts() is not None:
        pytest.skip(f"needs hosts: {why_no_fake_hosts()}")
    table, result = OnFakeHosts(SCRIPT)(run)
    assert "3 rank(s) on 2 hosts (1 + 2)" in table
    assert result["hosts"] == [1, 2]
    assert [row["wrong"] for row in result["rows"]] == [0, 0]
    assert set(result["rows"][0]["peers"]) == set(peers.split(","))
    assert predicted_us(HostsPlan.from_json(json.dumps(result["plan"])), 65536) > 0
