"""Which hosts and slots are meant: ``-H``, host files, batch systems; wrong ones by their line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import UsageError
from blinkrun.launcher.allocation import HOST_FILES, expand, from_environ
from blinkrun.launcher.hosts import (
    HostTarget,
    parse_hostfile,
    parse_hosts,
    place,
    read_hostfile,
)
from blinkrun.launcher.options import parse
from blinkrun.launcher.where import hosts_of

OWN = os.uname().nodename


def pairs(targets: tuple[HostTarget, ...]) -> list[tuple[str, int]]:
    return [(target.name, target.slots) for target in targets]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", [("a", 1)]),
        ("a:2,b:3", [("a", 2), ("b", 3)]),
        ("b:1,a:2,b:4", [("b", 5), ("a", 2)]),
        (" a:2 , b ", [("a", 2), ("b", 1)]),
        ("10.0.0.7:8,gpu-3.lab.example.org.:4", [("10.0.0.7", 8), ("gpu-3.lab.example.org.", 4)]),
        ("fe80::1,[2001:db8::2]:16,[::1]", [("fe80::1", 1), ("2001:db8::2", 16), ("::1", 1)]),
        ("node_1:2", [("node_1", 2)]),
    ],
)
def test_hosts_on_the_command_line(text: str, found: list[tuple[str, int]]) -> None:
    assert pairs(parse_hosts(text)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a host is missing"),
        ("a,,b", "a host is missing"),
        ("a:0", "-H a:0: host a has 0 slots"),
        ("a:", "the number of slots is missing after 'a:'"),
        ("a:-1", "'-1' is no number of slots"),
        ("a:2:3", "'a:2' is no name or address of a host"),
        (":2", "'' is no name"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is no name"),
        ("a;b", "'a;b' is no name"),
        ("me@a:2", "'me@a' is no name.*--launch-agent 'ssh -l NAME'"),
        ("a=2", "slots are written host:8"),
        ("[fe80::1", "is no address; an example"),
        ("[a]:2", "is no address; an example"),
        ("[::1]:", "the number of slots is missing"),
        ("a:99999999999999999999", "need 1 to 65536"),
    ],
)
def test_hosts_that_are_none(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_hosts(text)


FILE = """\
# Open MPI's form
a slots=2 max_slots=4   # the fast one
b   slots = 3

c:4
d
10.0.0.9 cpu=2
[fe80::7]:2
a slots=1
e max-slots=6
"""


def test_a_host_file_of_either_form(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(FILE.replace(" = ", "="))
    found = read_hostfile(str(path))
    assert pairs(found) == [
        *(("a", 3), ("b", 3), ("c", 4), ("d", 1), ("10.0.0.9", 2), ("fe80::7", 2), ("e", 6)),
    ]
    assert [target.most for target in found][:2] == [4, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=2\nb slots=two\n", "f:2: 'two' is no number of slots"),
        ("a\nb slot=2\n", "f:2: 'slot=2' is not understood; a line is: host slots=8, or host:8"),
        ("a:2 slots=3\n", "f:1: 'slots=3' gives the number of slots twice"),
        ("a slots\n", "f:1: 'slots' gives the number of slots twice or not at all"),
        ("a slots=4 max_slots=2\n", "f:1: host a has 4 slots but max_slots=2"),
        ("a:2 ifname=eth0\n", "f:1: 'ifname=eth0' is for all hosts .* --network-interface"),
        ("a user=me\n", "f:1: 'user=me' is for the launch agent"),
        ("\n\n^a\n", "f:3: '.a' is no name or address of a host"),
        ("a b\n", "f:1: 'b' is not understood"),
        ("# nothing\n\n", "f: names no host"),
        ("", "f: names no host"),
    ],
)
def test_host_files_that_are_wrong_name_the_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_hostfile(text, "f")


def test_host_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_hostfile(str(tmp_path / "no"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        read_hostfile(str(tmp_path / "bytes"))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(1, 60),
    st.booleans(),
)
def test_every_rank_has_one_place_and_slots_come_first(
    sizes: list[tuple[int, int]], num_ranks: int, oversubscribe: bool
) -> None:
    """Ranks are numbered host by host; without --oversubscribe no host has more than its slots."""
    targets = [HostTarget(f"h{i}", n, n + more) for i, (n, more) in enumerate(sizes)]
    most = sum(n + more if oversubscribe else n for n, more in sizes)
    if num_ranks > most:
        with pytest.raises(UsageError, match=f"-np {num_ranks} is more than"):
            place(targets, num_ranks, oversubscribe=oversubscribe)
        return
    placed = place(targets, num_ranks, oversubscribe=oversubscribe)
    assert [rank for host in placed for rank in host.ranks] == list(range(num_ranks))
    counts = {host.name: host.num_ranks for host in placed}
    for target in targets:
        assert counts.get(target.name, 0) <= (target.most or 0 if oversubscribe else target.slots)
    if num_ranks >= sum(target.slots for target in targets):
        assert all(counts[target.name] >= target.slots for target in targets)


SLURM = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[08-10],x"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        (SLURM, [("n08", 1), ("n09", 1), ("n10", 1), ("x", 1)]),
        (
            {**SLURM, "SLURM_TASKS_PER_NODE": "4(x2),2,1"},
            [("n08", 4), ("n09", 4), ("n10", 2), ("x", 1)],
        ),
        (
            {**SLURM, "SLURM_NTASKS_PER_NODE": "8"},
            [("n08", 8), ("n09", 8), ("n10", 8), ("x", 8)],
        ),
        (
            {**SLURM, "SLURM_JOB_CPUS_PER_NODE": "16(x4)"},
            [("n08", 16), ("n09", 16), ("n10", 16), ("x", 16)],
        ),
        ({"LSB_MCPU_HOSTS": "a 4 b 2"}, [("a", 4), ("b", 2)]),
    ],
)
def test_what_batch_systems_say(
    environ: dict[str, str], found: list[tuple[str, int]] | None
) -> None:
    allocation = from_environ(environ)
    assert (None if allocation is None else pairs(allocation.targets)) == found


@pytest.mark.parametrize("name", [*HOST_FILES, "PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_files_that_batch_systems_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "nodes"
    path.write_text("a\na\nb\n")
    allocation = from_environ({name: str(path)})
    assert allocation is not None
    assert (allocation.source, pairs(allocation.targets)) == (name, [("a", 2), ("b", 1)])
    with pytest.raises(UsageError, match=f"{name}=/nowhere cannot be read .*; name the hosts"):
        from_environ({name: "/nowhere"})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a1,b2", ["a1", "b2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[001,009-011]-ib", ["n001-ib", "n009-ib", "n010-ib", "n011-ib"]),
        ("r[1-2]n[8-9],z", ["r1n8", "r1n9", "r2n8", "r2n9", "z"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
    ],
)
def test_compressed_lists(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n1-3]", "n[3-1]", "n[a-b]", "n[]", "", "a,,b", "n[1,,2]"]
)
def test_compressed_lists_that_are_broken(text: str) -> None:
    with pytest.raises(UsageError, match="is not understood; name the hosts with -H"):
        expand(text, "SLURM_JOB_NODELIST")


@pytest.mark.parametrize(
    "environ",
    [
        {**SLURM, "SLURM_TASKS_PER_NODE": "4(x2)"},
        {**SLURM, "SLURM_TASKS_PER_NODE": "4(y4)"},
        {**SLURM, "SLURM_TASKS_PER_NODE": "4(x3),0"},
        {"LSB_MCPU_HOSTS": "a 4 b"},
        {"LSB_MCPU_HOSTS": "a b"},
    ],
)
def test_batch_systems_that_make_no_sense(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="name the hosts with -H"):
        from_environ(environ)


@pytest.mark.parametrize("name", ["localhost", OWN, "127.0.0.1", "::1"])
def test_this_host_under_any_name_needs_no_agent(name: str) -> None:
    options = parse(["-H", f"[{name}]:3" if ":" in name else f"{name}:3", "true"])
    assert hosts_of(options, {}) == (3, None)
    options = parse(["-np", "4", "-H", name, "--oversubscribe", "true"])
    assert hosts_of(options, {}) == (4, None)
    with pytest.raises(UsageError, match="-np 4 is more than the 1 slots"):
        hosts_of(parse(["-np", "4", "-H", name, "true"]), {})


def test_names_of_this_host_become_one() -> None:
    options = parse(["-H", "localhost:1,192.0.2.77:2", "-H", f"{OWN}:1", "true"])
    options.launch_agent = "true"
    num_ranks, hosts = hosts_of(options, os.environ)
    assert num_ranks == 4
    assert hosts is not None
    assert [(host.name, host.num_ranks) for host in hosts.placements] == [
        (OWN, 2),
        ("192.0.2.77", 2),
    ]
    options.num_ranks = 2  # those of this host are enough
    assert hosts_of(options, os.environ) == (2, None)


def test_the_command_line_goes_before_the_batch_system() -> None:
    environ = {**os.environ, **SLURM, "SLURM_TASKS_PER_NODE": "2(x4)"}
    num_ranks, hosts = hosts_of(parse(["--launch-agent", "true", "true"]), environ)
    assert num_ranks == 8
    assert hosts is not None
    assert [host.name for host in hosts.placements] == ["n08", "n09", "n10", "x"]
    assert hosts_of(parse(["-H", "localhost:2", "true"]), environ) == (2, None)
    here = {"SLURM_JOB_NODELIST": OWN, "SLURM_TASKS_PER_NODE": "2"}
    assert hosts_of(parse(["true"]), here) == (2, None)
    assert hosts_of(parse(["-np", "5", "true"]), here) == (5, None)  # on one host: as always
