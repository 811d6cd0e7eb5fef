"""Which GPU each rank of a host takes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkrun.errors import LaunchError
from blinkrun.planner.device_choice import best_gpus, choose_devices
from blinkrun.topology.catalog import described
from blinkrun.topology.machine import Gpu, Machine

NAMES = [f"0000:{at:02x}:00.0" for at in range(8)]
ONE = Fraction(1)


def first(gpus, count):
    return gpus[:count]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_no_gpu_has_more_ranks_than_may_share_it(num_ranks, num_gpus, sharing):
    seen = [NAMES[:num_gpus]] * num_ranks
    part = Fraction(1, sharing)
    if num_ranks > num_gpus * sharing:
        with pytest.raises(LaunchError, match=f"{num_ranks} ranks on this host"):
            choose_devices(seen, part, first)
        return
    found = choose_devices(seen, part, first)
    assert max(map(found.count, found)) <= sharing
    assert sorted(found) == list(found)  # by local rank


@given(st.integers(1, 4), st.integers(1, 4))
def test_ranks_with_several_gpus_have_them_apart(num_ranks, each):
    seen = [NAMES] * num_ranks
    if num_ranks * each > 8:
        with pytest.raises(LaunchError, match=f"{each} for each rank"):
            choose_devices(seen, Fraction(each), first)
        return
    assert choose_devices(seen, Fraction(each), first) == tuple(
        rank * each for rank in range(num_ranks)
    )


def test_each_rank_may_see_only_its_own():
    assert choose_devices([[name] for name in NAMES], ONE, first) == (0,) * 8
    pairs = [NAMES[at : at + 2] for at in range(0, 8, 2)]
    assert choose_devices(pairs, ONE, first) == (0, 0, 0, 0)


def test_ranks_that_see_some_in_common_take_what_is_free():
    seen = [NAMES[:2], NAMES[:1], NAMES[1:3]]
    with pytest.raises(LaunchError, match="3 ranks on this host and 3 GPUs"):
        choose_devices(seen, ONE, first)
    assert choose_devices([NAMES[:1], NAMES[:2], NAMES[1:3]], ONE, first) == (0, 1, 1)


def test_the_same_gpu_in_each_rank_is_shared_only_when_asked():
    seen = [NAMES[:1]] * 3
    with pytest.raises(LaunchError) as refused:
        choose_devices(seen, ONE, first)
    assert str(refused.value) == (
        "3 ranks on this host and 1 GPU: start 1 rank, or let ranks share a GPU with"
        " --gpus-per-rank 1/3: they then share its memory and take turns on it, which is slow"
        " without NVIDIA's MPS"
    )
    assert choose_devices(seen, Fraction(1, 3), first) == (0, 0, 0)


def test_a_rank_without_a_gpu_is_named():
    with pytest.raises(LaunchError, match="local rank 1 sees no GPU: `blinkrun doctor`"):
        choose_devices([NAMES, []], ONE, first)


def test_the_best_gpus_are_taken_in_the_order_that_is_seen():
    turned = NAMES[::-1]
    found = choose_devices([turned] * 2, ONE, lambda gpus, count: [NAMES[6], NAMES[1]])
    assert [turned[at] for at in found] == [NAMES[6], NAMES[1]]


def test_fewer_ranks_than_gpus_take_those_with_most_links():
    assert best_gpus(described("dgx-1v"), range(8), 3) == (0, 2, 3)  # 0-2 has one lane, 0-3 two
    assert best_gpus(described("dgx-1v"), (7, 5, 4, 1), 2) == (5, 1)  # two lanes, in that order
    assert best_gpus(described("dgx-1v"), range(8), 1) == (0,)


def test_where_nvlinks_join_no_such_gpus_pcie_helps():
    found = best_gpus(described("dgx-1v"), (0, 1, 6, 7), 3)
    assert len(set(found)) == 3


def test_without_nvlinks_that_join_so_many_pcie_decides():
    found = best_gpus(described("c4140-4"), range(4), 3)
    assert len(found) == 3
    assert best_gpus(described("pcie-8-two-switches"), (0, 5, 1, 6), 2) == (0, 1)


def test_where_no_links_are_known_the_first_ones_are_taken():
    silent = Machine("m", "by hand", tuple(map(Gpu, NAMES)), nvlink=None, pcie=None)
    assert best_gpus(silent, (3, 1, 2), 2) == (3, 1)
