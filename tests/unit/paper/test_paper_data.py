"""The paper's numbers, and what links of its machines are taken to achieve."""

from __future__ import annotations

import pytest

from blinkrun.errors import InternalError
from blinkrun.paper import data
from blinkrun.paper.links import BANDWIDTHS, allocation, fabric_alone, lane_of
from blinkrun.planner.compare import compare
from blinkrun.planner.packing import Flow
from blinkrun.topology.bandwidth import DEFAULT


def test_the_allocations_are_all_that_nvlink_joins_up_to_symmetry():
    """46 on a DGX-1V and 14 on a DGX-1P; no two alike, so their bounds tell them apart."""
    assert len(data.rows("fig14_16_dgx1v")) == 46
    assert len(data.rows("fig15_dgx1p_broadcast")) == 14
    sets = [data.gpus_of(row["gpus"]) for row in data.rows("fig14_16_dgx1v")]
    assert len(set(sets)) == 46
    assert {len(gpus) for gpus in sets} == set(range(3, 9))


@pytest.mark.parametrize(
    ("machine", "file"), [("dgx-1v", "fig14_16_dgx1v"), ("dgx-1p", "fig15_dgx1p_broadcast")]
)
def test_bounds_and_rings_follow_from_the_wiring(machine, file):
    """What the files say was computed is what the planner finds."""
    for row in data.rows(file)[::5]:
        links = fabric_alone(allocation(machine, data.gpus_of(row["gpus"])))
        lane = lane_of(machine)
        down = compare(links, Flow.DOWN, lane=lane)
        both = compare(links, Flow.BOTH, lane=lane)
        assert down.rate == lane * int(row["min_cut_lanes"])
        assert float(both.rate / lane) == pytest.approx(
            float(row["partition_bound_lanes"]), abs=0.006
        )
        assert len(both.ring.rings) == int(row["nvlink_rings"])


def test_sizes_double_from_a_kilobyte_to_a_gigabyte():
    sizes = [data.size_of(row["size"]) for row in data.rows("fig18_27_dgx2_allreduce")]
    assert sizes == [1 << power for power in range(10, 31)]


def test_a_file_that_is_missing_is_named():
    with pytest.raises(InternalError, match=r"lacks blinkrun/paper/data/fig99\.csv"):
        data.rows("fig99")


def test_no_link_of_a_machine_is_better_than_its_line_rate():
    """A lane of NVLink 1 and 2 is 20 and 25 GB/s, a gen3 slot 15.75."""
    for table in BANDWIDTHS.values():
        assert table["nvlink1_lane"] <= 20_000
        assert table["nvlink2_lane"] <= 25_000
        assert table["pcie3_x16"] <= 15_750
        assert table["nvlink5_lane"] == DEFAULT["nvlink5_lane"]  # others stay as they are


def test_pcie_of_a_dgx1p_is_narrower_between_its_sockets():
    def widest(machine, src, dst):
        part = allocation(machine, [src, dst])
        capacity = {resource.name: resource.capacity for resource in part.resources}
        return max(min(capacity[name] for name in link.resources) for link in part.links)

    assert widest("dgx-1p", 0, 5) == 6_000
    assert widest("dgx-1v", 0, 5) == 10_200
