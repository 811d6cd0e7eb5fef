"""The paper's split between NVLink and PCIe."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import PlanError
from blinkrun.planner.hybrid import PEER_ACCESS_SWITCH_NS, hybrid_split

RATES = st.integers(0, 10**6).map(Fraction)


@given(st.integers(0, 10**10), RATES, RATES, st.integers(0, 10**7))
def test_all_bytes_are_carried_and_both_end_together(size, nvlink, pcie, switch_ns):
    if not nvlink + pcie:
        return
    split = hybrid_split(size, nvlink_rate=nvlink, pcie_rate=pcie, switch_ns=switch_ns)
    assert min(split.nvlink_bytes, split.pcie_bytes) >= 0
    assert split.nvlink_bytes + split.pcie_bytes == size
    if nvlink and split.pcie_bytes:
        # each kind would be later than the other by less than a byte's time
        ends = (split.nvlink_bytes * 1000 / nvlink, switch_ns + split.pcie_bytes * 1000 / pcie)
        assert abs(ends[0] - ends[1]) <= 1000 / nvlink + 1000 / pcie
        assert split.time_ns < size * 1000 / nvlink + 1


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(0, 10**6))
def test_the_second_kind_never_makes_it_slower(size, nvlink, pcie):
    alone = hybrid_split(size, nvlink_rate=Fraction(nvlink), pcie_rate=Fraction(0))
    both = hybrid_split(size, nvlink_rate=Fraction(nvlink), pcie_rate=Fraction(pcie))
    assert both.time_ns <= alone.time_ns
    assert alone.pcie_bytes == 0


def test_small_data_goes_over_nvlink_alone():
    rates = {"nvlink_rate": Fraction(50_000), "pcie_rate": Fraction(10_000)}
    edge = 50_000 * PEER_ACCESS_SWITCH_NS // 1000
    assert hybrid_split(edge, **rates).pcie_bytes == 0
    assert hybrid_split(edge + 100, **rates).pcie_bytes == 16  # a sixth of what is more


def test_without_nvlink_nothing_is_switched():
    split = hybrid_split(1_000_000, nvlink_rate=Fraction(0), pcie_rate=Fraction(10_000))
    assert (split.nvlink_bytes, split.pcie_bytes, split.time_ns) == (0, 1_000_000, 100_000)


@pytest.mark.parametrize(
    ("nvlink", "measured"),
    [(66.6, 70.5), (87.7, 90.1), (65.8, 69.7), (85.4, 89.3), (86.2, 88.5), (119.1, 120.6)],
)
def test_figure_26_of_the_paper(nvlink, measured):
    """Broadcasts of 500 MB on 3 to 8 V100, NVLink alone and with PCIe, in GB/s."""
    size = 500_000_000
    rate = Fraction(round(nvlink * 1000))
    split = hybrid_split(size, nvlink_rate=rate, pcie_rate=Fraction(9000))
    assert size / split.time_ns == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(
    ("size", "nvlink", "pcie", "switch_ns"),
    [(-1, 1, 1, 0), (1, -1, 2, 0), (1, 2, -1, 0), (1, 1, 1, -1), (1, 0, 0, 0)],
)
def test_what_makes_no_sense_is_refused(size, nvlink, pcie, switch_ns):
    with pytest.raises(PlanError, match="no split of"):
        hybrid_split(
            size, nvlink_rate=Fraction(nvlink), pcie_rate=Fraction(pcie), switch_ns=switch_ns
        )
