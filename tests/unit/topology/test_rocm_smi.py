"""Tables of rocm-smi and amd-smi, whole and torn, and their JSON."""

import json
import random
import re

import pytest
from support.corpus import case

from blinkrun.errors import ReportError
from blinkrun.topology.amd_smi import read_amd_smi
from blinkrun.topology.machine import PciPath, Xgmi
from blinkrun.topology.read import read_machine
from blinkrun.topology.rocm_smi import read_rocm_smi
from blinkrun.topology.serialize import facts

HIVES = case("amd-8-two-xgmi-hives").text
NUMA = case("amd-4-pcie-weight52").text


def table(title, rows, names=None):
    names = names or [f"GPU{at}" for at in range(len(rows))]
    lines = [f"===== {title} between two GPUs =====", "  ".join(["      ", *names])]
    lines += [f"{name}   {'  '.join(row.split())}" for name, row in zip(names, rows, strict=True)]
    return "\n".join(lines) + "\n\n"


TYPES = table("Link Type", ["0 XGMI PCIE", "XGMI 0 PCIE", "PCIE PCIE 0"])
HOPS = table("Hops", ["0 1 2", "1 0 2", "2 2 0"])
WEIGHTS = table("Weight", ["0 15 40", "15 0 40", "40 40 0"])


def read(text, **options):
    return read_rocm_smi(text, "topo.txt", **options)


@pytest.mark.parametrize("order", range(6))
def test_tables_may_come_in_any_order(order):
    tables = [TYPES, HOPS, WEIGHTS]
    random.Random(order).shuffle(tables)
    machine = read("".join(tables))
    assert machine.xgmi == (Xgmi(0, 1, hops=1, weight=15),)
    assert machine.pcie == (PciPath(0, 2, "PCIE", 2, 40), PciPath(1, 2, "PCIE", 2, 40))
    assert (machine.nvlink, machine.notes, machine.missing) == ((), (), ())


def test_types_alone_tell_the_pairs():
    machine = read(TYPES)
    assert facts(machine)["pcie"] == {"0-2": "PCIE", "1-2": "PCIE"}
    assert facts(machine)["xgmi"] == [[0, 1, {}]]


def test_without_types_the_pairs_are_not_told():
    machine = read(HOPS + WEIGHTS)
    assert (machine.nvlink, machine.xgmi, machine.pcie) == (None, (), None)
    assert "no link type table" in machine.notes[0]


def test_numa_nodes_are_taken():
    assert [gpu.numa for gpu in read(NUMA).gpus] == [0, 1, 3, 2]
    assert read(NUMA.replace("Numa Node: 3", "Numa Node: -1")).gpus[2].numa is None
    assert [gpu.numa for gpu in read(TYPES).gpus] == [None] * 3


@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "".join(f"# {line}\n" for line in text.splitlines()),
        lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
        lambda text: "```\n" + text + "```\n",
        lambda text: "\x1b[32m" + text.replace("XGMI", "\x1b[1mXGMI\x1b[0m"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("=", ""),
        lambda text: text.lower(),
        lambda text: re.sub(" +", "\t", text),
        lambda text: re.sub(r"\n(GPU\d.*?)  (\S+) *(?=\n)", r"\n\1\n   \2", text),
        lambda text: text.replace("Hops between", "WARNING: low-power state\n\nHops between"),
    ],
)
def test_what_a_paste_does_to_tables_is_undone(dress):
    assert facts(read_machine(dress(HIVES))) == facts(read(HIVES))


def test_a_wrapped_header_is_joined():
    text = TYPES.replace("GPU1  GPU2\n", "GPU1\n        GPU2\n", 1)
    assert read(text).num_gpus == 3


def test_a_single_gpu_has_no_pairs():
    machine = read(table("Link Type", ["0"]))
    assert (machine.num_gpus, machine.pcie) == (1, ())


def test_gpus_that_are_chosen_keep_their_numbers():
    machine = read(table("Link Type", ["0 XGMI", "XGMI 0"], ["GPU2", "GPU5"]))
    assert [gpu.name for gpu in machine.gpus] == ["GPU2", "GPU5"]


def test_a_link_that_is_not_told_is_left_out():
    machine = read(TYPES.replace("PCIE", "N/A"))
    assert machine.pcie == ()
    assert machine.notes == ("of 2 pairs it is not told what joins them",)


@pytest.mark.parametrize(
    ("old", "new", "line", "problem", "left"),
    [
        ("GPU1   XGMI  0  PCIE\n", "", 1, "row GPU1 of the link type table is missing", 3),
        ("XGMI  0  PCIE", "XGMI  0", 4, "row GPU1 of the link type table has 2 cells", 3),
        ("XGMI  0  PCIE", "XGMI  0  PCIE PCIE", 4, "has 4 cells; expected 3 cells", 3),
        ("GPU1   XGMI  0  PCIE", "GPU7   XGMI  0  PCIE", 1, "row GPU1", 3),
        ("XGMI  0  PCIE", "PCIE  0  PCIE", 4, "of GPU0 and GPU1 'PCIE', the other row 'XGMI'", 2),
        ("PCIE  PCIE  0", "SLOW  SLOW  0", 5, "of GPU0 and GPU2 'SLOW', the other row 'PCIE'", 1),
        ("PCIE", "SLOW", 3, "of GPU0 and GPU2 'SLOW'; expected XGMI or PCIE", 1),
        ("GPU0  GPU1  GPU2\n", "GPU0  GPU0  GPU2\n", 1, "no header that names each GPU once", 0),
        ("        GPU0  GPU1  GPU2\n", "", 1, "no header that names each GPU once", 0),
    ],
)
def test_a_torn_table_is_refused_by_its_line(old, new, line, problem, left):
    assert old in TYPES
    text = TYPES.replace(old, new)
    with pytest.raises(ReportError, match=re.escape(problem)) as caught:
        read(text)
    assert caught.value.line == line
    if left == 0:
        with pytest.raises(ReportError, match="no GPU in the report"):
            read(text, partial=True)
        return
    machine = read(text, partial=True)
    assert len(machine.xgmi) + len(machine.pcie) == left
    assert any(problem in note for note in machine.notes)


def test_a_missing_row_is_named():
    text = TYPES.replace("GPU1   XGMI  0  PCIE\n", "") + HOPS.replace("GPU1   1  0  2\n", "")
    machine = read(text, partial=True)
    assert machine.missing == ("GPU1",)
    assert facts(machine)["missing_rows"] == ["GPU1"]
    assert machine.xgmi == (Xgmi(0, 1, hops=1),)


def test_a_count_is_a_number():
    with pytest.raises(ReportError, match="'FEW'; expected a whole number"):
        read(TYPES + HOPS.replace("  2", "  few"))
    assert read(TYPES + HOPS.replace("  2", "  few"), partial=True).pcie[0].hops is None
    assert read(TYPES + HOPS.replace("  2", "  N/A")).pcie[0].hops is None


def test_tables_that_name_other_gpus_do_not_go_together():
    other = table("Hops", ["0 1", "1 0"], ["GPU8", "GPU9"])
    with pytest.raises(ReportError, match="the hops table has no header"):
        read(TYPES + other)
    assert read(TYPES + other, partial=True).xgmi == (Xgmi(0, 1),)


def test_more_gpus_than_any_machine_has_are_refused():
    header = " ".join(f"GPU{at}" for at in range(1025))
    with pytest.raises(ReportError, match="1025 GPUs; expected at most 1024"):
        read(f"Weight between two GPUs\n{header}\n", partial=True)


def test_several_reports_are_told_apart():
    second = TYPES.replace("XGMI", "PCIE")
    text = f"node a\n{TYPES}{HOPS}node b\n{second}{HOPS}"
    first = read_machine(text)
    assert first.xgmi == (Xgmi(0, 1, hops=1),)
    assert first.notes == (
        "the text has 2 reports; this is the first, --report 2 takes the second",
    )
    assert len(read_machine(text, report=2).pcie) == 3
    assert read_machine(TYPES + HOPS + TYPES + HOPS).notes == ()


ROCM_JSON = {
    "system": {
        "(Topology) Weight between DRM devices 0 and 1": "15",
        "(Topology) Hops between DRM devices 0 and 1": "1",
        "(Topology) Link type between DRM devices 0 and 1": "XGMI",
        "(Topology) Link type between DRM devices 0 and 2": "PCIE",
        "(Topology) Link type between DRM devices 1 and 2": "PCIE",
        "(Topology) Link accessibility between DRM devices 0 and 1": "True",
        "Driver version": "6.8.5",
    },
    "card0": {"(Topology) Numa Node": "1", "(Topology) Numa Affinity": "1"},
    "card1": {"(Topology) Numa Node": "-1"},
    "card2": {},
}


def test_json_of_rocm_smi_is_read():
    text = "WARNING: AMD GPU device(s) is/are in a low-power state.\n\n" + json.dumps(ROCM_JSON)
    for machine in (read(text), read_machine(text), read_machine(json.dumps(ROCM_JSON))):
        assert machine.xgmi == (Xgmi(0, 1, hops=1, weight=15),)
        assert machine.pcie == (PciPath(0, 2, "PCIE"), PciPath(1, 2, "PCIE"))
        assert [gpu.numa for gpu in machine.gpus] == [1, None, None]
        assert machine.p2p == ((0, 1, "OK"),)


def amd_table(title, rows, names=("0000:03:00.0", "0000:0C:00.0")):
    lines = [f"{title} TABLE:", " " * 13 + " ".join(names)]
    lines += [f"{name} {row}" for name, row in zip(names, rows, strict=True)]
    return "\n".join(lines) + "\n"


AMD = "".join(
    amd_table(*each)
    for each in (
        ("ACCESS", ["ENABLED DISABLED", "DISABLED ENABLED"]),
        ("WEIGHT", ["0 40", "40 0"]),
        ("HOPS", ["0 2", "2 0"]),
        ("LINK TYPE", ["SELF PCIE", "PCIE SELF"]),
        ("NUMA BW", ["N/A 0-0", "0-0 N/A"]),
        ("CACHE COHERANCY", ["SELF NC", "NC SELF"]),
        ("ATOMICS", ["SELF 64,32", "64,32 SELF"]),
    )
)
LEGEND = "\nLegend:\n  SELF = Current GPU\n  ENABLED / DISABLED = Link is enabled or disabled\n"


def links(*others):
    return [
        {"gpu": at, "bdf": bdf, "weight": 15, "link_status": "ENABLED", "link_type": kind,
         "num_hops": 1, "bandwidth": "N/A"}
        for at, bdf, kind in others
    ]  # fmt: skip


AMD_JSON = [
    {"gpu": 0, "bdf": "0000:03:00.0", "links": links((0, "0000:03:00.0", "SELF"),
                                                    (1, "0000:0c:00.0", "XGMI"))},
    {"gpu": 1, "bdf": "0000:0c:00.0", "links": links((0, "0000:03:00.0", "XGMI"),
                                                    (1, "0000:0c:00.0", "SELF"),
                                                    (9, "0000:99:00.0", "XGMI"))},
]  # fmt: skip
OLD_AMD_JSON = [
    {"gpu": 0, "bdf": "0000:03:00.0", "link_accessibility": {"gpu_1": "ENABLED"},
     "weight": {"gpu_0": 0, "gpu_1": 15}, "hops": {"gpu_1": 1}, "link_type": {"gpu_1": "XGMI"}},
    {"gpu": 1, "bdf": "0000:0c:00.0",
     "link_type": {"gpu_0": "XGMI", "gpu_7": "XGMI", "cpu": "PCIE"}},
]  # fmt: skip


def test_tables_of_amd_smi_are_read():
    for machine in (read_amd_smi(AMD + LEGEND, "a"), read_machine(AMD + LEGEND)):
        assert machine.source == "amd-smi topology"
        assert [gpu.bus_id for gpu in machine.gpus] == ["0000:03:00.0", "0000:0c:00.0"]
        assert [gpu.name for gpu in machine.gpus] == ["0000:03:00.0", "0000:0c:00.0"]
        assert machine.pcie == (PciPath(0, 1, "PCIE", 2, 40),)
        assert machine.p2p == ((0, 1, "NS"),)


@pytest.mark.parametrize("value", [AMD_JSON, OLD_AMD_JSON, {"gpu_data": AMD_JSON}])
def test_json_of_amd_smi_is_read(value):
    text = json.dumps(value, indent=4)
    for machine in (read_amd_smi(text, "a"), read_machine(text)):
        assert [gpu.name for gpu in machine.gpus] == ["0000:03:00.0", "0000:0c:00.0"]
        assert machine.xgmi == (Xgmi(0, 1, hops=1, weight=15),)
        assert machine.p2p == ((0, 1, "OK"),)


@pytest.mark.parametrize("bdf", ["0000:03:00.0", "", "third"])
def test_every_gpu_of_a_list_has_a_bus_id_of_its_own(bdf):
    value = [*AMD_JSON, {"gpu": 2, "bdf": bdf}]
    with pytest.raises(ReportError, match="GPU 2 of the list has bdf"):
        read_amd_smi(json.dumps(value), "a")
    assert read_amd_smi(json.dumps(value), "a", partial=True).num_gpus == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing", "no JSON; expected an object or a list"),
        ('[{"bdf": ', "not JSON: Expecting value"),
        ('[{"bdf": ' + "9" * 5000 + "}]", "not JSON that a tool prints"),
        ("[" * 9000, "not JSON that a tool prints"),
        ("[]", "no JSON; expected an object or a list"),
        ('{"gpu_data": 3}', "no GPU in the report"),
    ],
)
def test_other_json_is_refused(text, problem):
    with pytest.raises(ReportError, match=re.escape(problem)):
        read_amd_smi(text, "a")


def test_json_that_is_no_report_of_rocm_smi_is_refused():
    for value in ({"gpu_names": []}, [1], {"system": 1}):
        with pytest.raises(ReportError, match="no GPU in the report"):
            read(json.dumps([value] if isinstance(value, list) else value))
