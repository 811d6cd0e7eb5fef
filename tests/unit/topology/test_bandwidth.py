"""The table of bandwidths, and files that change it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import ReportError, UsageError
from blinkrun.topology.bandwidth import (
    DEFAULT,
    Bandwidths,
    Figure,
    read_bandwidths,
    write_bandwidths,
)


@given(st.dictionaries(st.sampled_from(list(DEFAULT)), st.integers(1, 10**7)))
def test_what_is_written_is_read_back(values):
    table = DEFAULT.updated(values, "measured")
    again = read_bandwidths(write_bandwidths(table), "file")
    assert {name: again[name] for name in again} == {name: table[name] for name in table}


def test_every_figure_names_its_source_and_is_plausible():
    for figure in DEFAULT.figures:
        assert figure.source
        low, high = (50, 10_000) if figure.unit == "ns" else (1_000, 200_000)
        assert low <= figure.value <= high, figure


def test_newer_generations_are_faster():
    for names in (
        ["nvlink1_lane", "nvlink4_lane", "nvlink5_lane"],
        ["xgmi1_lane", "xgmi2_lane", "xgmi3_lane"],
        [f"pcie{generation}_x16" for generation in range(1, 7)],
        ["qpi", "upi", "upi2", "upi3"],
        ["epyc_socket", "epyc3_socket", "epyc5_socket"],
    ):
        values = [DEFAULT[name] for name in names]
        assert values == sorted(values)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("nvlink2_lane = 22.5 GB/s", "nvlink2_lane", 22_500),
        ("nvlink2_lane=900 MB/s # slow", "nvlink2_lane", 900),
        ("latency_nvlink = 1.5 us", "latency_nvlink", 1_500),
        ("  latency_pcie =  700  ns", "latency_pcie", 700),
        ("qpi = 1e1 GB/s", "qpi", 10_000),
    ],
)
def test_values_have_units(line, name, value):
    table = read_bandwidths(f"# mine\n\n{line}\n", "file")
    assert table[name] == value
    assert {other for other in table if table[other] != DEFAULT[other]} == {name}
    assert next(figure.source for figure in table.figures if figure.name == name) == "file"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("qpi 7", 1, "'qpi 7' is no 'name = value unit'"),
        ("\nnvlink2 = 1 GB/s", 2, "no bandwidth is called 'nvlink2'; near are nvlink2_lane"),
        ("zzzzzz = 1 GB/s", 1, "no bandwidth is called 'zzzzzz'; there are nvlink1_lane, "),
        ("qpi = 1 GB/s\nqpi = 2 GB/s", 2, "qpi is given twice, first in line 1"),
        ("qpi = 7", 1, "qpi is '7', expected a number and GB/s or MB/s"),
        ("qpi = 7 us", 1, "qpi is '7 us', expected a number and GB/s or MB/s"),
        ("latency_shm = 7 GB/s", 1, "latency_shm is '7 GB/s', expected a number and us or ns"),
        ("qpi = seven GB/s", 1, "qpi is 'seven GB/s', expected a number and GB/s or MB/s"),
        ("qpi = 1/0 GB/s", 1, "qpi is '1/0 GB/s', expected a number"),
        ("qpi = 0 GB/s", 1, "qpi is '0 GB/s', must be at least 1 MB/s"),
        ("qpi = -3 GB/s", 1, "qpi is '-3 GB/s', must be at least 1 MB/s"),
        ("latency_shm = 0.1 ns", 1, "latency_shm is '0.1 ns', must be at least 1 ns"),
        ("qpi = nan GB/s", 1, "qpi is 'nan GB/s', expected a number"),
        ("qpi = 1e999 GB/s", 1, "qpi is '1e999 GB/s', must be at most 1000000000 MB/s"),
        ("qpi = 1e999999999 GB/s", 1, "qpi is '1e999999999 GB/s', expected a number"),
    ],
)
def test_wrong_lines_are_named(text, line, problem):
    with pytest.raises(ReportError) as caught:
        read_bandwidths(text, "bw.txt")
    assert str(caught.value).startswith(f"bw.txt:{line}: {problem}")


def test_wrong_tables_are_refused():
    with pytest.raises(UsageError, match="near are qpi"):
        DEFAULT.updated({"qpii": 3}, "x")
    with pytest.raises(UsageError, match="qpi is 0"):
        DEFAULT.updated({"qpi": 0}, "x")
    with pytest.raises(UsageError, match="twice"):
        Bandwidths((Figure("a", 1, ""), Figure("a", 2, "")))
    with pytest.raises(KeyError):
        DEFAULT["abacus"]
