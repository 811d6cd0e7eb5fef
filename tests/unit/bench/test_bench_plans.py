from fractions import Fraction

import pytest

from blinkrun.bench import plans
from blinkrun.bench.plans_plot import draw_histogram, in_bins
from blinkrun.errors import UsageError
from blinkrun.planner.advise import Group
from blinkrun.planner.packing import Flow
from blinkrun.topology import catalog
from blinkrun.topology.model import LinkSet


def group(rate, ring, count=1, gpus=(0, 1, 2)):
    return Group(gpus, (gpus,), count, Fraction(rate), Fraction(ring), "")


def test_a_section_of_the_page_is_replaced_and_nothing_else():
    page = (
        "a\n<!-- measured: x -->\nold\n<!-- end -->\nb\n<!-- measured: y -->\nkeep\n<!-- end -->\n"
    )
    changed = plans.replace_section(page, "x", ["new", "lines"])
    assert "new\nlines" in changed
    assert "old" not in changed
    assert "keep" in changed
    assert plans.replace_section(changed, "x", ["new", "lines"]) == changed
    with pytest.raises(UsageError, match="0 sections '<!-- measured: z -->'"):
        plans.replace_section(page, "z", [])


def test_ratios_count_allocations_and_name_those_that_are_slower():
    ratios = plans.Ratios("m", Flow.BOTH, (group(4, 2, 3), group(1, 1), group(5, 0), group(1, 2)))
    assert ratios.counted == [(0.5, 1), (1.0, 1), (2.0, 3)]
    assert [found.ring_rate for found in ratios.slower] == [2]
    table = plans.ratio_lines([ratios])
    assert table[2] == "| m | allreduce | 5 | 4 | 0.50 | 2.00 | 1.32 | 2.00 |"
    assert table[-1] == "Slower than rings: 1 of 5 allocations and collectives."


def test_a_machine_without_rings_has_a_row_too():
    row = plans.ratio_lines([plans.Ratios("m", Flow.DOWN, (group(5, 0),))])[2]
    assert "no ring" in row
    assert row.count("|") == 9


def test_no_allocation_of_a_bridged_machine_is_slower_than_rings():
    ratios = plans.ratios_of("ac922-4", catalog.machine("ac922-4", LinkSet.ALL), Flow.BOTH, 22_000)
    assert ratios.allocations == 6 + 4 + 1  # pairs, triples, all
    assert ratios.slower == []


def test_the_optima_are_those_of_the_file(tmp_path):
    bounds = tmp_path / "bounds.csv"
    bounds.write_text(
        "gpus,min_cut_lanes,partition_bound_lanes,nvlink_rings\n5 6 7,3,2.50,1\n0 1 4,2,1.00,0\n"
    )
    lines = plans.optima_lines("dgx-1v", bounds)
    assert lines[2].startswith("| 5 6 7 | 3 | 3 | 2, 2 |")
    assert lines[-1] == "At the bound, with a certificate: 1 of 2."  # the second cut is 1, not 2


def test_the_paper_stands_below_ours(tmp_path):
    text = "gpus,min_cut_lanes,partition_bound_lanes,nvlink_rings\n5 6 7,3,2.50,1\n"
    for name in ("dgx1v", "dgx1p"):
        (tmp_path / f"{name}_bounds.csv").write_text(text)
    lines = plans.paper_lines(tmp_path)
    assert len(lines) == 2 + 3 * len(plans.PAPER)
    assert all(line.count("|") == 9 for line in lines)


def test_bins_hold_every_value_once():
    values = [(1 + step / 7, step) for step in range(200)]
    assert sum(in_bins(values)) == sum(range(200))


def test_the_histogram_is_the_same_every_time(tmp_path):
    pytest.importorskip("matplotlib")
    pictures = []
    for name in ("one.svg", "two.svg"):
        draw_histogram({Flow.BOTH: [(1.0, 3), (2.5, 1)], Flow.DOWN: []}, tmp_path / name)
        pictures.append((tmp_path / name).read_text())
    assert pictures[0] == pictures[1]
    assert "allocations of 2 to 8 GPUs" in pictures[0]
