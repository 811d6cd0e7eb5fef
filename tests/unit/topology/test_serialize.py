"""Machines as JSON: all of it comes back, and what is wrong in it is told by key and line."""

import json
import random
import re
from itertools import combinations, product

import pytest

from blinkrun.errors import ReportError
from blinkrun.topology.json_text import read_entries
from blinkrun.topology.machine import (
    Gpu,
    LinkStatus,
    Machine,
    Nic,
    NicPath,
    NvSwitch,
    PciKind,
    PciNode,
    PciPath,
    Wire,
    Xgmi,
)
from blinkrun.topology.serialize import facts, machine_json, read_json

NAMES = ("GPU0", "NIC0", "a", "a#0", "a#1", "0", "", "é\x00\n", '"', "0000:f3:00.0", "0000:f3:1.0")


def random_machine(rng):
    """A machine with anything in every field, names that repeat above all."""
    gpus, nics = range(rng.randrange(5)), range(rng.randrange(4))
    pairs = list(combinations(gpus, 2))

    def name():
        return rng.choice(NAMES)

    def count():
        return rng.choice((0, 1, 2, 2**40))

    def maybe():
        return rng.choice((None, 0, 1, 7))

    def rate():
        return rng.choice((None, 0.0, 25.781, 1e6))

    def some(items):
        return [item for item in items if rng.random() < 0.5]

    def few(make):
        return tuple(make() for _ in range(rng.randrange(4)))

    def node(at):
        return PciNode(
            rng.choice(list(PciKind)), name(), rng.randrange(-1, at), rate(), maybe(), maybe(),
            name(), name(), tuple(some(gpus)), tuple(some(nics)),
        )  # fmt: skip

    return Machine(
        name=name(),
        source=name(),
        gpus=tuple(
            Gpu(name(), name(), name(), name(), name(), maybe(), name(), maybe(), rate(), maybe())
            for _ in gpus
        ),
        nics=tuple(Nic(name(), name(), name(), maybe(), maybe()) for _ in nics),
        nvlink=rng.choice((None, tuple(Wire(*pair, count() + 1) for pair in some(pairs)))),
        xgmi=tuple(Xgmi(*pair, maybe(), maybe(), maybe()) for pair in some(pairs)),
        pcie=rng.choice((None, tuple(PciPath(*pair, name(), maybe()) for pair in some(pairs)))),
        gpu_nic=tuple(NicPath(*place, name()) for place in some(product(gpus, nics))),
        p2p=tuple((*pair, name()) for pair in some(pairs)),
        switches=few(lambda: NvSwitch(name(), tuple(count() for _ in gpus))) if gpus else (),
        status=few(lambda: LinkStatus(name(), count(), maybe(), rate(), rng.random() < 0.5)),
        tree=tuple(node(at) for at in range(rng.randrange(4))),
        self_links=tuple((gpu, count() + 1) for gpu in some(gpus)),
        missing=few(name),
        is_identified=rng.random() < 0.7,
        notes=few(name),
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_machine_comes_back(seed):
    rng = random.Random(seed)
    for _ in range(25):
        machine = random_machine(rng)
        told = machine_json(machine)
        assert read_json(json.dumps(told), "-") == machine
        assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize("seed", range(20))
def test_facts_are_part_of_the_whole(seed):
    rng = random.Random(seed)
    for _ in range(25):
        machine = random_machine(rng)
        stated = facts(machine)
        assert stated.items() <= machine_json(machine).items()
        assert facts(read_json(json.dumps(stated), "-")) == stated


MACHINE = {
    "gpu_names": ["GPU0", "GPU1", "GPU2"],
    "nics": ["NIC0"],
    "nvlink": [[0, 1, 4], [1, 2, 4]],
    "pcie": {"0-2": "PIX"},
}


def text_of(**changes):
    """JSON with a line for every key: gpu_names on line 2, then nics, nvlink, pcie, changes."""
    entries = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in (MACHINE | changes).items()]
    return "{\n" + ",\n".join(entries) + "\n}"


def test_facts_make_a_machine():
    machine = read_json(text_of(), "m.json")
    assert (machine.name, machine.source) == ("m.json", "JSON")
    assert machine.nvlink == (Wire(0, 1, 4), Wire(1, 2, 4))
    assert machine.pcie == (PciPath(0, 2, "PIX"),)
    assert machine.nics == (Nic("NIC0"),)


def test_what_is_not_told_stays_so():
    machine = read_json(text_of(nvlink=None, pcie=None), "-")
    assert (machine.nvlink, machine.pcie) == (None, None)
    bare = read_json('{"gpu_names": ["A"]}', "-")
    assert (bare.nvlink, bare.pcie) == ((), ())


def test_editing_a_fact_edits_the_machine():
    told = json.loads(json.dumps(machine_json(read_json(text_of(), "-"))))
    told["nvlink"][0][2] = 2
    told["gpu_names"][0] = "first"
    told["nic_legend"] = {"NIC0": "mlx5_0"}
    machine = read_json(json.dumps(told), "-")
    assert machine.nvlink[0].lanes == 2
    assert machine.gpus[0].name == "first"
    assert machine.nics[0].device == "mlx5_0"


def test_remarks_are_skipped():
    more = {"note": "x", "order": "y", "pcie_note": "z", "fingerprint": "0123", "fabric": {}}
    assert read_json(text_of(**more), "-") == read_json(text_of(), "-")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("nvlnk", [], "key 'nvlnk' is unknown; expected nvlink"),
        ("zzz", [], "key 'zzz' is unknown; expected gpu_names, nics,"),
        ("format", "other 7", "format is 'other 7', expected 'blinkrun machine 1'"),
        ("name", 3, "name is 3, expected text"),
        ("notes", "x", "notes is 'x', expected a list"),
        ("notes", [1], "notes is 1, expected text"),
        ("xgmi", 5, "xgmi is 5, expected a list"),
        ("xgmi", [[0, 1]], "xgmi[0] is [0, 1], expected two GPUs and what joins them"),
        ("xgmi", [[0, 1, {"lane": 1}]], "xgmi[0] has key 'lane', expected lanes, hops, weight"),
        ("xgmi", [[0, 1, {"lanes": -1}]], "xgmi[0] has -1, expected a whole number >= 0"),
        ("xgmi", [[0, 1, 2]], "xgmi[0] is 2, expected an object"),
        ("xgmi", [[0, 1, {}], [0, 3, {}]], "xgmi[1] names GPU 3, there are 3, from 0"),
        ("xgmi", [[1, 0, {}]], "xgmi[0] joins GPUs 1 and 0, expected the lower one first"),
        ("xgmi", [[0, 1, {}], [0, 1, {}]], "xgmi[1] is GPUs 0 and 1 a second time"),
        ("self_links", [[0, 1, 2]], "self_links[0] joins 0 and 1, expected one GPU twice"),
        ("self_links", [[0, 0, 0]], "self_links[0] has 0, expected a whole number >= 1"),
        ("p2p_status", {"0+1": "OK"}, "p2p_status['0+1'] expected a pair of GPUs such as 0-1"),
        ("p2p_status", {"0-1": 7}, "p2p_status['0-1'] is 7, expected text"),
        ("gpu_nic", {"GPU9": {}}, "gpu_nic['GPU9'] names GPU 'GPU9', expected one of GPU0,"),
        ("gpu_nic", {"GPU0": {"eth": "PIX"}}, "gpu_nic['GPU0'] names NIC 'eth', expected one of"),
        ("gpu_nic", {"GPU0": []}, "gpu_nic['GPU0'] is [], expected an object"),
        ("nic_legend", {"NIC7": "mlx5"}, "nic_legend['NIC7'] names NIC 'NIC7'"),
        ("nvlink_status", {"GPU0": {}}, "nvlink_status['GPU0'] has None, expected a whole number"),
        ("nvlink_status", [{"active": 1}], "nvlink_status[0] is None, expected text"),
        ("nvlink_status", {"G": {"active": 1, "cut": 1}}, "has 1, expected true or false"),
        ("nvlink_status", {"G": {"active": 1, "gbps": "x"}}, "has 'x', expected a number >= 0"),
        ("nvlink_status", {"G": {"active": 1, "gbps": True}}, "has True, expected a number >= 0"),
        ("nvswitch", {"switches": 1}, "nvswitch is 1, expected a list"),
        ("nvswitch", {"switches": ["s"]}, "nvswitch is None, expected an object"),
        ("nvswitch", {"switches": ["s"], "lanes_per_switch": {}}, "nvswitch has None, expected"),
        ("nvswitch", {"switches": ["s"], "lanes_per_switch": {"s": [1]}}, "nvswitch has [1], exp"),
        ("gpus", [], "gpus has 0 objects, expected 3"),
        ("gpus", [{}, {}, {"modle": "x"}], "gpus has key 'modle', expected one of name, model,"),
        ("gpus", [{}, {}, {"numa": "x"}], "gpus 'numa' has 'x', expected a whole number >= 0"),
        ("nic_details", [1], "nic_details is 1, expected an object"),
        ("tree", [{"name": "x"}], "tree has no 'kind'"),
        ("tree", [{"kind": "tpu", "name": "x"}], "tree 'kind' is 'tpu', expected one of cpu, bri"),
        ("tree", [{"kind": "cpu", "name": "x", "parent": 0}], "tree has x before what it hangs on"),
        ("tree", [{"kind": "cpu", "name": "x", "parent": -2}], "tree 'parent' has -2"),
        ("tree", [{"kind": "gpu", "name": "x", "gpus": [3]}], "tree has x with a GPU or NIC that"),
        ("tree", [{"kind": "nic", "name": "x", "nics": [1]}], "tree has x with a GPU or NIC that"),
        ("tree", [{"kind": "gpu", "name": "x", "gt_per_s": "8"}], "tree 'gt_per_s' has '8'"),
        ("tree", [{"kind": "gpu", "name": "x" * 80, "gpus": 1}], "tree 'gpus' is 1, expected a"),
    ],
)
def test_what_is_wrong_is_told_and_left_out_in_part(key, value, problem):
    text = text_of(**{key: value})
    with pytest.raises(ReportError, match=re.escape(problem)) as caught:
        read_json(text, "m.json")
    assert (caught.value.line, caught.value.partial) == (6, True)
    machine = read_json(text, "m.json", partial=True)
    assert machine.nvlink == (Wire(0, 1, 4), Wire(1, 2, 4))
    assert any(note.startswith("line 6: ") and problem in note for note in machine.notes)


def test_a_wrong_pair_leaves_the_others():
    text = text_of(nvlink=[[0, 1, 4], [1, 2, 0], [0, 2, 1]])
    assert read_json(text, "-", partial=True).nvlink == (Wire(0, 1, 4), Wire(0, 2, 1))


@pytest.mark.parametrize("size", [9, 3])
def test_many_names_are_not_all_repeated(size):
    many = {"gpu_names": [f"G{at}" for at in range(size)], "gpu_nic": {"X": {}}, "nvlink": []}
    with pytest.raises(ReportError, match=r"expected one of G0.*(…|G2);"):
        read_json(text_of(**many), "-")


@pytest.mark.parametrize("entry", ['"nics": []', '"gpu_names": null', '"gpu_names": ["A"], "x": 1'])
def test_gpus_need_names(entry):
    with pytest.raises(ReportError) as caught:
        read_json("{" + entry + "}", "m.json")
    assert re.search("no gpu_names|unknown", str(caught.value))


def test_a_key_stands_once():
    text = '{"gpu_names": ["A"],\n"gpu_names": ["B"]}'
    with pytest.raises(ReportError, match="m:2: key 'gpu_names' stands twice"):
        read_json(text, "m")
    assert read_json(text, "m", partial=True).gpus[0].name == "A"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "Expecting '{' delimiter"),
        ("[]", 1, "Expecting '{' delimiter"),
        ('{"a": 1\n', 2, "Expecting ',' delimiter"),
        ('{"a"', 1, "Expecting ':' delimiter"),
        ('{"a": 1,\n', 2, "Expecting value"),
        ("{\n7: 1}", 2, "Expecting a key in double quotes"),
        ("{'a': 1}", 1, "Expecting value"),
        ('{"a": 1}\n\n}', 3, "Extra data after the object"),
        ('{\n"a": ' + "[" * 9000, 2, "nested too deeply"),
        ('{\n"a": ' + "9" * 9000 + "}", 2, "a number is too long"),
    ],
)
def test_text_that_is_no_json_breaks_in_a_line(text, line, problem):
    _, broken = read_entries(text)
    assert (broken.line, broken.problem) == (line, problem)
    with pytest.raises(ReportError, match=re.escape(f"m:{line}: not JSON: {problem}")):
        read_json(text, "m")


def test_a_cut_text_gives_its_whole_entries():
    text = text_of()
    cut = text[: text.index('"pcie"') + 12]
    machine = read_json(cut, "m", partial=True)
    assert machine.nvlink == (Wire(0, 1, 4), Wire(1, 2, 4))
    assert machine.notes[0].startswith("line 5: not JSON: ")


def test_empty_objects_are_whole():
    assert read_entries("{}") == ((), None)
    assert read_entries(' { "a" : 1 } ')[1] is None


def test_what_a_machine_refuses_is_no_traceback(monkeypatch):
    """Whatever rule `Machine` gets that is not checked here ends in the same one line."""
    text = json.dumps({"gpu_names": ["A", "B"]})
    monkeypatch.setattr("blinkrun.topology.deserialize.Machine", _refuse)
    with pytest.raises(ReportError, match="m: no such machine"):
        read_json(text, "m")


def _refuse(**_):
    from blinkrun.errors import TopologyError

    raise TopologyError("no such machine")
