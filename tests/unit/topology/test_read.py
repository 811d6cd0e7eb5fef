"""Formats are recognised by content; of several reports one is picked."""

import json
import re

import pytest
from support.corpus import case

from blinkrun.errors import ReportError
from blinkrun.topology.machine import Wire
from blinkrun.topology.nccl_xml_out import write_nccl_xml
from blinkrun.topology.paste import MAX_BYTES
from blinkrun.topology.read import KNOWN, read_machine
from blinkrun.topology.serialize import facts, machine_json

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \t{0}\nGPU1\t{0}\t X \n"
XML = case("azure-ndv2-v100-8").text
DUMP = case("rccl-mi100-8-six-links").text


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (MATRIX.format("NV4"), "nvidia-smi topo -m"),
        (XML, "NCCL topology XML"),
        (DUMP, "RCCL topology XML"),
        (case("mi210-4-xgmi-mesh").text, "rocm-smi --showtopo"),
        ('{"gpu_names": ["A"], "source": "nvidia-smi topo -m"}', "nvidia-smi topo -m"),
        ('note: cut\n{\n"gpu_names": ["A"]}', "JSON"),
    ],
)
def test_formats_are_recognised(text, source):
    assert read_machine(text).source == source


@pytest.mark.parametrize("text", ["", "hello", "<html><body>system</body></html>", "GPU", "[1]"])
def test_what_is_not_understood_lists_what_is(text):
    with pytest.raises(ReportError) as caught:
        read_machine(text, "x.txt")
    assert str(caught.value) == f"x.txt: nothing here is understood; expected {'; '.join(KNOWN)}"


def test_json_of_something_else_is_told_its_keys():
    with pytest.raises(ReportError, match="key 'devices' is unknown; expected pci_devices"):
        read_machine('{"devices": [0], "links": []}')


def test_lines_count_from_the_start_of_the_text():
    with pytest.raises(ReportError, match=re.escape("x:4: key 'nvlnk' is unknown")):
        read_machine('warning\n\n{"gpu_names": ["A"],\n"nvlnk": []}', "x")


def test_help_is_offered_where_it_helps():
    broken = MATRIX.format("NV4") + "\tGPU0\n"
    assert read_machine(broken).num_gpus == 2
    with pytest.raises(ReportError) as caught:
        read_machine(XML[: len(XML) // 2], "x")
    assert caught.value.partial
    with pytest.raises(ReportError) as caught:
        read_machine(XML[:40], "x")
    assert not caught.value.partial
    assert "--partial" not in str(caught.value)


def test_the_first_of_several_files_is_read_and_the_others_are_told():
    other = write_nccl_xml(read_machine(MATRIX.format("NV4")))
    text = f"rank 0\n{XML}\nrank 1\n{other}"
    first = read_machine(text)
    assert facts(first) == facts(read_machine(XML))
    assert first.notes == (
        "the text has 2 reports; this is the first, --report 2 takes the second",
    )
    second = read_machine(text, report=2)
    assert second.nvlink == (Wire(0, 1, 4),)
    assert second.notes == ()
    with pytest.raises(ReportError, match="x: the text has 2 reports; --report 3 asks for another"):
        read_machine(text, "x", report=3)


def test_a_broken_report_beside_the_wanted_one_does_not_matter():
    text = XML + DUMP[: len(DUMP) // 2]
    assert read_machine(text, report=1).num_gpus == 8
    with pytest.raises(ReportError) as caught:
        read_machine(text, "x", report=2)
    assert caught.value.line == text.count("\n") + 1


def test_what_repeats_is_one_report():
    indented = "\n".join(f"    {line}" for line in XML.splitlines())
    assert read_machine(f"{XML}\n{indented}\n{XML}").notes == ()
    with pytest.raises(ReportError, match="the text has one report; --report 2"):
        read_machine(XML + XML, report=2)


@pytest.mark.parametrize("count", [2, 3])
def test_matrices_of_several_machines_are_told_apart(count):
    lanes = ["NV1", "NV2", "NV3"][:count]
    text = "".join(f"node{at}:\n{MATRIX.format(lane)}\n" for at, lane in enumerate(lanes))
    notes = read_machine(text).notes
    assert f"the text has {count} reports" in notes[-1]
    assert notes[-1].endswith("and so on") == (count > 2)
    assert read_machine(text, report=count).nvlink == (Wire(0, 1, count),)


def test_longer_text_than_any_report_is_refused():
    with pytest.raises(ReportError, match="are no report of a machine"):
        read_machine("x" * (MAX_BYTES + 1))


def test_a_machine_can_be_read_again_and_again():
    machine = read_machine(DUMP, "dump.xml")
    for _ in range(2):
        machine = read_machine(json.dumps(machine_json(machine)), "ignored")
    assert machine == read_machine(DUMP, "dump.xml")
