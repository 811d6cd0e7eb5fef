"""Every report of tests/data/topologies gives exactly the facts that its case.json expects."""

import json
import re

import pytest
from support.corpus import case, case_names

from blinkrun.errors import ReportError
from blinkrun.topology.read import read_machine
from blinkrun.topology.serialize import facts, machine_json, read_json

REMARKS = re.compile(r"note|order|\w+_note")  # what case.json says to people
BROKEN = {
    "dgx2-16-rows-missing": ":6: rows GPU5..GPU15 are missing",
    "rtx4090-xml-truncated": ":18: the XML breaks here (unclosed token)",
}
WARNED = {
    "a100-nvlink-status-ellipsis": "cut",
    "aws-g5-48xl-a10g-8": "taken for GPUs",
    "azure-ncv4-a100-4-self-links": "end at the GPU itself",
    "nvlink-fragment-one-inactive": "without the GPU",
}


def read(name):
    """Read a case as far as it is whole."""
    return read_machine(case(name).text, f"{name}.txt", partial=name in BROKEN)


def test_all_cases_are_here():
    assert len(case_names()) == 46


@pytest.mark.parametrize("name", case_names())
def test_a_report_states_what_its_case_expects(name):
    expected = {k: v for k, v in case(name).expected.items() if not REMARKS.fullmatch(k)}
    stated = facts(read(name))
    assert {key: stated.get(key) for key in expected} == expected
    beyond = {key for key, value in stated.items() if value and key not in expected}
    assert beyond <= {"gpu_nic"}  # of an XML file: it follows from the tree


@pytest.mark.parametrize(("name", "problem"), BROKEN.items())
def test_a_broken_report_is_refused_by_the_line(name, problem):
    with pytest.raises(ReportError, match=re.escape(f"{name}.txt{problem}")) as caught:
        read_machine(case(name).text, f"{name}.txt")
    assert caught.value.partial
    assert str(caught.value).endswith("; --partial takes what is whole")


@pytest.mark.parametrize(("name", "word"), WARNED.items())
def test_what_is_odd_is_noted(name, word):
    assert any(word in note for note in read(name).notes)


@pytest.mark.parametrize("name", case_names())
def test_a_machine_survives_json(name):
    machine = read(name)
    text = json.dumps(machine_json(machine))
    assert read_json(text, "-") == machine
    assert read_machine(text, "elsewhere") == machine
    assert machine_json(read_json(text, "-")) == json.loads(text)


@pytest.mark.parametrize("name", case_names())
def test_the_facts_alone_describe_the_machine(name):
    stated = facts(read(name))
    assert facts(read_machine(json.dumps(stated, indent=2), "facts.json")) == stated
    expected = json.dumps(case(name).expected)
    assert facts(read_machine(expected, "expected.json"))["pcie"] == stated["pcie"]


@pytest.mark.parametrize("name", case_names())
def test_line_ends_and_what_stands_around_do_not_matter(name):
    plain = facts(read(name))
    text = case(name).text.replace("\r\n", "\n")
    for other in (text.replace("\n", "\r\n"), f"$ cat topo\n\n{text}", f"\n\n{text}\n\n$ \n"):
        assert facts(read_machine(other, "-", partial=name in BROKEN)) == plain
