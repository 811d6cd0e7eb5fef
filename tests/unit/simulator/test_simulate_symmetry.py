"""One of many equal hosts speaks for all."""

import time
from dataclasses import replace
from fractions import Fraction

import pytest
from support.simulated import MB

from blinkrun.errors import UsageError
from blinkrun.planner.multihost import plan_equal_hosts, plan_hosts
from blinkrun.planner.packing import Flow
from blinkrun.schedule.lower import lower_packing
from blinkrun.simulator.cost import FREE, OURS
from blinkrun.simulator.engine import simulate
from blinkrun.simulator.symmetry import simulate_symmetric
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce
from blinkrun.topology.hosts import MB_PER_S_PER_GBPS, join_hosts, program_hosts
from blinkrun.types import Collective


def both(host, num_hosts, network_gbps, channels=1, **how):
    """The run of one host for all, and that of all."""
    joined = join_hosts([host] * num_hosts, network_gbps=network_gbps)
    packing = plan_hosts([host] * num_hosts, joined, Flow.BOTH)
    program = lower_packing(
        packing, Collective.ALLREDUCE, channels_per_tree=channels, hosts=program_hosts(joined)
    )
    whole = simulate(program, joined, **how)
    network = network_gbps * MB_PER_S_PER_GBPS
    local, rate = plan_equal_hosts(host, num_hosts=num_hosts, network_mb_per_s=network)
    assert abs(rate - packing.rate) <= packing.rate / 1000
    folded = simulate_symmetric(
        host,
        local,
        num_hosts=num_hosts,
        network_mb_per_s=network,
        channels_per_tree=channels,
        **how,
    )
    return folded, whole


@pytest.mark.parametrize("num_hosts", [2, 3, 4])
@pytest.mark.parametrize(("gpus", "network_gbps", "size_mb"), [(8, 40, 100), (5, 100, 200)])
def test_it_takes_as_long_as_all_hosts_do(num_hosts, gpus, network_gbps, size_mb):
    host = induce(machine("dgx-1v", "all"), range(gpus))
    how = {"size_bytes": size_mb * MB, "chunk_bytes": 2 * MB, "cost": OURS}
    folded, whole = both(host, num_hosts, network_gbps, **how)
    assert abs(folded.time_ns - whole.time_ns) <= whole.time_ns / 100
    assert folded.num_ranks == whole.num_ranks == num_hosts * gpus
    usage = {each.name: each for each in whole.usage}
    for each in folded.usage:
        assert each.capacity_mb_per_s == usage[each.name].capacity_mb_per_s
        assert abs(each.size_bytes - usage[each.name].size_bytes) <= size_mb * MB / 100


@pytest.mark.parametrize("name", ["dgx-2", "dgx-1p"])
def test_so_it_does_on_other_machines_and_with_more_channels(name):
    host = induce(machine(name, "all"), range(5))
    how = {"size_bytes": 100 * MB, "chunk_bytes": MB, "cost": FREE}
    folded, whole = both(host, 3, 100, channels=2, **how)
    assert abs(folded.time_ns - whole.time_ns) <= whole.time_ns / 100


def test_hosts_of_one_rank_are_a_star_of_hosts():
    host = induce(machine("dgx-1v", "all"), [0])
    local, rate = plan_equal_hosts(host, num_hosts=4, network_mb_per_s=1000)
    run = simulate_symmetric(
        host, local, num_hosts=4, network_mb_per_s=1000, size_bytes=4 * 64 * 1000, cost=FREE
    )
    # three blocks of a quarter in and out to be summed, and as many with the sum
    assert run.time_ns == 2 * 3 * 64 * 1000
    assert run.algbw_gb_per_s * 1000 == rate == Fraction(4000, 6)


@pytest.mark.parametrize("size_bytes", [0, 4, 1000, 100_003])
def test_small_data_takes_at_least_the_hops(size_bytes):
    host = induce(machine("dgx-1v", "all"), range(4))
    how = {"size_bytes": size_bytes, "chunk_bytes": MB, "cost": OURS}
    folded, whole = both(host, 4, 100, **how)
    # parts are rounded up to cache lines here; there most are empty
    assert whole.time_ns <= folded.time_ns * Fraction(101, 100)
    assert folded.time_ns <= 2 * whole.time_ns


def test_a_thousand_gpus_are_simulated_within_the_promised_time():
    began_s = time.process_time()
    dgx1 = machine("dgx-1v", "all")
    local, rate = plan_equal_hosts(dgx1, num_hosts=128, network_mb_per_s=5000)
    run = simulate_symmetric(
        dgx1,
        local,
        num_hosts=128,
        network_mb_per_s=5000,
        size_bytes=500 * MB,
        chunk_bytes=MB,
    )
    assert time.process_time() - began_s < 60
    assert run.num_ranks == 1024
    assert rate * Fraction(9, 10) <= run.algbw_gb_per_s * 1000 <= rate


def test_what_makes_no_sense_is_one_line():
    host = induce(machine("dgx-1v", "all"), [0, 1])
    local, _ = plan_equal_hosts(host, num_hosts=2, network_mb_per_s=1000)
    how = {"num_hosts": 2, "network_mb_per_s": 1000, "size_bytes": 4}
    with pytest.raises(UsageError, match="1 hosts at 1000 MB/s"):
        simulate_symmetric(host, local, **how | {"num_hosts": 1})
    with pytest.raises(UsageError, match="2 hosts at 0 MB/s"):
        simulate_symmetric(host, local, **how | {"network_mb_per_s": 0})
    with pytest.raises(UsageError, match="cannot move -4 bytes"):
        simulate_symmetric(host, local, **how | {"size_bytes": -4})
    with pytest.raises(UsageError, match="counts in lane"):
        simulate_symmetric(replace(host, unit="lane"), local, **how)
