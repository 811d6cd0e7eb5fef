"""Links between the devices of ranks: as wired, as far as they can be used."""

from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blinkrun.errors import TopologyError, UsageError
from blinkrun.planner.make import make_plan
from blinkrun.planner.parts import parts
from blinkrun.topology.catalog import described, machine
from blinkrun.topology.devices import DeviceLinks, Place, device_topology
from blinkrun.topology.graph import LinkKind, induce

STAGED = LinkKind.STAGED


def known(name):
    """A machine of the catalog whose GPUs have bus ids and UUIDs."""
    found = described(name)
    gpus = tuple(
        replace(gpu, bus_id=f"0000:{at + 16:02x}:00.0", uuid=f"GPU-{at}")
        for at, gpu in enumerate(found.gpus)
    )
    return replace(found, gpus=gpus)


def places(*gpus):
    return [Place(f"00000000:{at + 16:02X}:00.0", f"GPU-{at}") for at in gpus]  # as CUDA writes it


def reach(size, *cut):
    """All reach all, but for the pairs that are cut."""
    return [
        [(one, other) not in cut and (other, one) not in cut for other in range(size)]
        for one in range(size)
    ]


def kinds(topology):
    return {(link.src, link.dst): link.kind for link in topology.links}


def test_ranks_have_the_links_of_their_gpus_in_whatever_order():
    found = device_topology(known("dgx-1v"), places(3, 0, 4), reach(3))
    assert found.devices == (3, 0, 4)
    wired = ((0, 1), (1, 0), (1, 2), (2, 1))  # 3-0 and 0-4; 3-4 are not
    assert kinds(found) == dict.fromkeys(wired, LinkKind.NVLINK)


def test_the_plan_is_as_fast_as_nvlink_allows():
    found = device_topology(known("dgx-1v"), places(*range(4)), reach(4))
    in_lanes = make_plan(induce(machine("dgx-1v"), range(4)))
    assert make_plan(found).allreduce.rate == in_lanes.allreduce.rate * 23_000


def test_where_the_fabric_joins_not_all_pcie_joins_the_rest():
    found = device_topology(known("dgx-1v"), places(1, 4, 6), reach(3))
    assert kinds(found)[1, 2] is LinkKind.NVLINK  # 4 and 6
    assert kinds(found)[0, 1] is LinkKind.PCIE
    assert make_plan(found).size == 3


@settings(max_examples=20)
@given(st.sets(st.sampled_from(list(combinations(range(4), 2)))))
def test_pairs_out_of_reach_go_by_way_of_host_memory(cut):
    found = device_topology(known("dgx-1v"), places(0, 1, 4, 5), reach(4, *cut))
    for pair, kind in kinds(found).items():
        assert (tuple(sorted(pair)) in cut) <= (kind is STAGED)
    assert len(parts(found)) == 1  # whatever is cut, all are joined
    everything = device_topology(
        known("dgx-1v"), places(0, 1, 4, 5), reach(4, *cut), DeviceLinks.ALL
    )
    assert set(kinds(everything)) == set(permutations(range(4), 2))


def test_host_memory_is_a_resource_of_what_goes_through_it():
    found = device_topology(known("dgx-a100"), places(0, 1), reach(2, (0, 1)))
    assert all(
        any(name.startswith("host memory") for name in link.resources) for link in found.links
    )


def test_a_reach_one_way_is_none():
    one_way = [[True, True], [False, True]]
    found = device_topology(known("dgx-a100"), places(0, 1), one_way)
    assert set(kinds(found).values()) == {STAGED}


def test_pcie_beside_the_fabric_is_used_when_asked_for():
    usual = device_topology(known("dgx-a100"), places(0, 1), reach(2))
    everything = device_topology(known("dgx-a100"), places(0, 1), reach(2), DeviceLinks.ALL)
    assert {link.kind for link in usual.links} == {LinkKind.NVSWITCH}
    assert {link.kind for link in everything.links} == {LinkKind.NVSWITCH, STAGED}
    only = device_topology(known("dgx-a100"), places(0, 1), reach(2), DeviceLinks.PCIE)
    assert {link.kind for link in only.links} == {STAGED}


def test_what_the_driver_states_of_peers_gives_way_to_what_can_be_done():
    box = known("rtx4090-8")  # whose peers do not reach each other by the catalog
    assert kinds(device_topology(box, places(0, 1), reach(2)))[0, 1] is LinkKind.PCIE


def test_the_fabric_alone_must_join_all():
    with pytest.raises(UsageError, match="no NVLinks that can be used join all of GPUs 1 4 6"):
        device_topology(known("dgx-1v"), places(1, 4, 6), reach(3), DeviceLinks.FABRIC)
    cut = reach(2, (0, 1))
    with pytest.raises(UsageError, match="BLINKRUN_DEVICE_LINKS=auto"):
        device_topology(known("dgx-a100"), places(0, 1), cut, DeviceLinks.FABRIC)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_ranks_on_one_gpu_have_all_to_all_links_alike(size):
    found = device_topology(known("dgx-1v"), places(*[2] * size), reach(size))
    assert kinds(found) == dict.fromkeys(permutations(range(size), 2), LinkKind.SHM)
    assert make_plan(found).allreduce.depth == min(size - 1, 1)


def test_slices_of_one_gpu_do_not_reach_each_other():
    slices = [Place("0000:10:00.0", f"MIG-{at}") for at in range(2)]
    assert set(kinds(device_topology(known("dgx-a100"), slices, reach(2, (0, 1)))).values()) == {
        STAGED
    }


@pytest.mark.parametrize("host", [None, known("dgx-1v")])
def test_of_unknown_gpus_only_the_reach_counts(host):
    strange = [Place("0000:ff:00.0", "GPU-x"), *places(0), Place("0000:fe:00.0", "GPU-y")]
    found = device_topology(host, strange, reach(3, (0, 2)))
    assert kinds(found)[0, 1] is LinkKind.PCIE
    assert kinds(found)[0, 2] is STAGED
    assert make_plan(found).size == 3


def test_a_machine_that_states_no_links_has_pcie():
    silent = replace(known("t4-4"), nvlink=None, pcie=None, tree=(), p2p=())
    found = device_topology(silent, places(0, 1, 2), reach(3))
    assert set(kinds(found).values()) == {LinkKind.PCIE}


def test_all_ranks_make_the_same_topology():
    cut = reach(4, (1, 2))
    one, two = (device_topology(known("dgx-1v"), places(0, 1, 4, 5), cut) for _ in range(2))
    assert one.content_hash == two.content_hash


def test_devices_are_those_of_the_induced_machine():
    whole = machine("dgx-2")
    found = device_topology(known("dgx-2"), places(5, 9, 2), reach(3))
    assert len(found.links) == len(induce(whole, (5, 9, 2)).links)


def test_a_reach_of_another_size_is_refused():
    with pytest.raises(TopologyError, match="2 devices and a reach of 3 rows"):
        device_topology(None, places(0, 1), reach(3))
    with pytest.raises(TopologyError, match="0 devices"):
        device_topology(None, [], [])
