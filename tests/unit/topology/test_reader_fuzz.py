"""Whatever text comes, there is a machine or a ReportError, and soon."""

import json
import random
import time
from contextlib import suppress

import pytest
from support.corpus import case, case_names, mutate

from blinkrun.errors import ReportError, TopologyError, UsageError
from blinkrun.topology.graph import Topology
from blinkrun.topology.machine import Machine
from blinkrun.topology.model import topology_of
from blinkrun.topology.nccl_xml_out import write_nccl_xml
from blinkrun.topology.read import read_machine
from blinkrun.topology.serialize import machine_json, read_json


@pytest.fixture(scope="module")
def texts():
    """All reports, some machines as our JSON, and one as XML of ours."""
    reports = [case(name).text for name in case_names()]
    machines = [read_machine(report, partial=True) for report in reports[::5]]
    written = [write_nccl_xml(machines[0])]
    return reports + [json.dumps(machine_json(machine), indent=1) for machine in machines] + written


def check(text, seen, *, partial):
    """Read a text and carry what comes of it as far as it goes; return whether it gave a machine.

    Time is that of this process, which cores that are shared make longer too.
    """
    began_s = time.process_time()
    machine, message = attempt(text, partial=partial)
    assert time.process_time() - began_s < 5
    if machine is None:
        assert message.startswith("f:")
        return False
    assert isinstance(machine, Machine)
    if machine in seen:
        return True
    seen.add(machine)
    assert read_json(json.dumps(machine_json(machine)), "j") == machine
    with suppress(UsageError, TopologyError):  # where nothing of it can be planned
        assert isinstance(topology_of(machine), Topology)
    return True


def attempt(text, *, partial):
    try:
        return read_machine(text, "f", partial=partial), ""
    except ReportError as err:
        return None, str(err)


def check_many(texts, seed, count):
    rng = random.Random(seed)
    seen = set()
    read = sum(check(mutate(rng, texts), seen, partial=at % 3 > 0) for at in range(count))
    assert 0 < read < count  # the damage is neither fatal nor harmless throughout


@pytest.mark.parametrize("seed", range(25))
def test_damaged_reports_give_a_machine_or_an_error(texts, seed):
    check_many(texts, f"quick {seed}", 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_five_thousand_damaged_reports_give_a_machine_or_an_error(texts, seed):
    check_many(texts, f"slow {seed}", 1000)


@pytest.mark.parametrize("name", case_names())
def test_a_report_cut_anywhere_gives_a_machine_or_an_error(name):
    text = case(name).text
    rng = random.Random(name)
    for end in rng.sample(range(len(text)), 5):
        check(text[:end], set(), partial=bool(end % 2))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n" * 5_000,
        "\x00\ud800\ufeff",
        "[" * 5_000,
        '{"gpu_names": ' + "[" * 5_000,
        '{"gpu_names": ["A"], "nvlink": [[0, 1, ' + "9" * 5_000 + "]]}",
        "<system><cpu>" + '<pci busid="0000:00:00.0">' * 2_000,
        "<system>" * 500,
        "<system" * 2_000,
        "<cpu numaid" * 2_000,
        "<!--" * 2_000 + "<system>",
        "Link Type between two GPUs\n" * 500,
        "Link Type between two GPUs\n" + "GPU0 " * 5_000,
        "WEIGHT TABLE:\n" + "GPU0 GPU1\n" * 2_000,
        "GPU0 " * 5_000,
        "GPU0 X NV4\n" * 2_000,
        "\t".join(f"GPU{gpu}" for gpu in range(1_000)),
    ],
    ids=lambda text: repr(text[:24]),
)
def test_bombs_are_defused(text):
    for partial in (False, True):
        check(text, set(), partial=partial)
