"""Affinity columns: what is damaged is repaired where something tells how, else left unstated."""

import pytest

from blinkrun.topology.nvidia_affinity import Affinity, read_affinities

THREE = ["CPU", "Affinity", "NUMA", "Affinity", "GPU", "NUMA", "ID"]


def read(headings, *rows):
    found, _ = read_affinities(headings, {f"GPU{k}": row for k, row in enumerate(rows)})
    return [(affinity.cpus, affinity.numa) for affinity in found.values()]


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        # The range of the next GPU begins where this one's ends.
        ((["0-510", "N/A"], ["52-103", "1", "N/A"]), [("0-51", 0), ("52-103", 1)]),
        # As many CPUs as another GPU has, all of them run together.
        ((["0-510", "N/A"], ["52-1031", "N/A"]), [("0-51", 0), ("52-103", 1)]),
        # Ranges of one length.
        ((["0-23,48-710", "N/A"],), [("0-23,48-71", 0)]),
        ((["0-15,128-14312", "N/A"],), [("0-15,128-143", 12)]),
        # A comma instead of a tab.
        ((["0-31,0", "N/A"],), [("0-31", 0)]),
        # One socket.
        ((["0-310", "N/A"],), [("0-31", 0)]),
        # Nothing ran together: an empty cell, CPUs of a job, cut rows.
        ((["0-47", "N/A"],), [("0-47", None)]),
        ((["0-50", "N/A"],), [("0-50", None)]),
        ((["0-23", "N/A"], ["24-47", "N/A"]), [("0-23", None), ("24-47", None)]),
        (
            (["24-31,88-95", "3", "N/A"], ["24-31,88-95"]),
            [("24-31,88-95", 3), ("24-31,88-95", None)],
        ),
        ((["9-3", "N/A"],), [("9-3", None)]),
        ((["3", "N/A"],), [("3", None)]),
        # Blanks inside of a list.
        ((["0-31", "64-95", "0", "N/A"],), [("0-31,64-95", 0)]),
        ((["N/A", "0-3", "0", "N/A"],), [("", None)]),
        # Nothing at all, or none of ours.
        (([],), [("", None)]),
        ((["N/A", "N/A", "N/A"],), [("", None)]),
        ((["0-1", "0-1", "N/A"],), [("0-1", None)]),
        ((["0-3", "12345", "N/A"],), [("0-3", None)]),
        ((["0-3", "<-", "this"],), [("0-3", None)]),
        ((["1," * 600 + "1", "N/A"],), [("1," * 600 + "1", None)]),
    ],
)
def test_all_columns(rows, want):
    assert read(THREE, *rows) == want


def test_other_headers():
    assert read(["CPU", "Affinity"], ["0-3"], ["4-7", "1"]) == [("0-3", None), ("4-7,1", None)]
    assert read(["NUMA"], ["1"], []) == [("", 1), ("", None)]
    assert read(["NUMA_Affinity", "Slot"], ["1", "2"]) == [("", 1)]
    assert read([], ["0-3", "1"], ["7"], []) == [("0-3", 1), ("", None), ("", None)]
    assert read(["CPU", "Affinity", "NUMA", "Affinity"], ["0-3", "x"]) == [("0-3", None)]


def test_repairs_are_noted():
    rows = {"GPU0": ["0-310", "N/A"], "GPU1": ["0-310", "N/A"], "GPU2": ["0-31", "0", "N/A"]}
    found, notes = read_affinities(THREE, rows)
    assert set(found.values()) == {Affinity("0-31", 0)}
    assert notes == ("rows GPU0, GPU1: '0-310' read as CPUs 0-31, NUMA node 0",)
