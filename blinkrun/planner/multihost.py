"""Trees over several hosts: packed trees inside each host, joined by the network at their ports.

Blink's three phases [1]_: the data is cut into partitions; each is reduced inside every host over
one of its packed trees to that tree's root, summed between the hosts' roots, and brought back.
Here a partition is one spanning tree of all ranks: the local tree of a *root host*, one network
hop from its root to the root of every other host's local tree, and those trees below. Its phases
so overlap chunk by chunk, and it is lowered, verified and timed like any other tree.

Partitions are the common refinement of the hosts' shares (`multihost_local`), so hosts may have
different numbers of ranks, trees and rates. Each is cut for the ways from host to host
(`multihost_ways`), of allreduce into one equal part per root host: then every NIC carries the same,
2 (H - 1) / H of the data each way, which is the least for H hosts that do the same.

Allgather and reducescatter are a broadcast or a reduce of every rank's block; its own host sends it
to all others, or, where a host has many more ranks than others, to one that passes it on.

The rate is exact and proven against a bound: by the network alone, or, where a host's own links
are slower, by that host with all others drawn together to one. Where hosts are few and small and
trees that leave a host and come back are faster by more than a twentieth, the trees of the joint
optimum are taken instead.

References
----------
.. [1] G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020,
   section 3.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from blinkrun.errors import PlanError
from blinkrun.planner.certificate import Certificate, check_certificate
from blinkrun.planner.make import in_shares
from blinkrun.planner.multihost_bound import (
    local_root,
    network_bound,
    network_rates,
    outside_bounds,
)
from blinkrun.planner.multihost_joint import joint_packing
from blinkrun.planner.multihost_local import LocalTree, LocalTrees, local_trees
from blinkrun.planner.multihost_trees import Joiner
from blinkrun.planner.multihost_ways import ways_of
from blinkrun.planner.packing import Flow, Packing, fastest_rate
from blinkrun.planner.plan import PlannedPacking
from blinkrun.planner.solve import DEFAULT_LOSS, pack
from blinkrun.topology.between import Network
from blinkrun.topology.graph import Topology
from blinkrun.topology.hosts import host_of, ranks_by_host, units_per_mb_per_s
from blinkrun.types import Rank

__all__ = ["LocalTree", "LocalTrees", "local_trees", "plan_equal_hosts", "plan_hosts"]

_JOINT_RANKS = 12  # up to which the joint optimum takes well under a second


def plan_hosts(  # noqa: PLR0913 - what to plan, and how well
    hosts: Sequence[Topology],
    joined: Topology,
    flow: Flow,
    root: Rank | None = None,
    *,
    networks: Sequence[Network] = (),
    exact: bool = True,
) -> PlannedPacking:
    """Return trees over all ranks of several hosts.

    Parameters
    ----------
    hosts : sequence of Topology
        As they were given to `join_hosts`; each joins its own ranks.
    joined : Topology
        What `join_hosts` made of them.
    flow : Flow
        Of the collective.
    root : Rank, optional
        Of broadcast and reduce, among the ranks of `joined`.
    networks : sequence of Network, optional
        As they were given to `join_hosts`, if it is known which rank takes which NIC.
    exact : bool, default True
        Whether trees that leave a host and come back are tried, and hosts that are slower than the
        network get a proof of their own: with a linear program, which takes its time.

    Returns
    -------
    PlannedPacking
        For `lower_packing` and `lower_hosts`. Trees are in the order of the partitions, and of the
        root hosts for each. For equal hosts the trees of a partition are images of each other
        under a rotation of the hosts.

    Raises
    ------
    PlanError
        If `joined` is of other hosts, or flow and root do not go together.
    UnreachableRankError
        If a host's links do not join its ranks.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> from blinkrun.topology.hosts import join_hosts
    >>> dgx1 = machine("dgx-1v", "all")
    >>> hosts = [induce(dgx1, [0, 1, 2]), induce(dgx1, [3, 4, 5, 6, 7])]
    >>> packing = plan_hosts(hosts, join_hosts(hosts, network_gbps=40), Flow.BOTH)
    >>> packing.rate, packing.is_optimal  # in MB/s: a NIC sends the data once
    (Fraction(5000, 1), True)
    """
    _check(hosts, joined, flow, root)
    if len(hosts) == 1:
        return in_shares(joined, *pack(joined, flow, root))
    joiner = Joiner(hosts, joined)
    rates = network_rates(joined, len(hosts))
    proof = network_bound(hosts, joined, flow, root)
    if flow.is_joint:
        packing = _at_full_rate(joined, joint_packing(joiner, flow, rates))
        return in_shares(joined, packing, proof)
    wanted = check_certificate(joined, proof)
    local = [
        local_trees(
            host,
            flow,
            root=local_root(joined, root, number),
            wanted=wanted / units_per_mb_per_s(joined),
            network=networks[number] if networks else None,
        )
        for number, host in enumerate(hosts)
    ]
    ways = ways_of(flow, rates, None if root is None else host_of(joined)[root])
    trees, parts = zip(*joiner.trees(flow, root, local, ways), strict=True)
    packing = _at_full_rate(joined, Packing(flow, root, trees, parts))
    if exact:
        slow = [number for number, each in enumerate(local) if each.rate and each.rate < wanted]
        packing, proof = _improved(hosts, packing, joined, proof, slow)
    return in_shares(joined, packing, proof)


def plan_equal_hosts(
    host: Topology, *, num_hosts: int, network_mb_per_s: Fraction | int
) -> tuple[LocalTrees, Fraction]:
    """Return allreduce over many equal hosts without ever looking at all their ranks.

    It is the plan that `plan_hosts` makes of so many hosts, where that does not take the joint
    optimum: every local tree's part is cut into `num_hosts` equal ones; in the g-th the root of
    the tree's image on host g is the root of all, and the roots of its images on the other hosts
    are its children over the network.

    Parameters
    ----------
    host : Topology
        One of the hosts, in MB/s.
    num_hosts : int
        At least 2.
    network_mb_per_s : Fraction or int
        What a host sends, and what it receives.

    Returns
    -------
    local : LocalTrees
        Of every host.
    rate : Fraction
        Of allreduce, in MB/s.

    Raises
    ------
    PlanError
        If there are less than 2 hosts, or the network has no rate.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> dgx1 = machine("dgx-1v", "all")
    >>> _, rate = plan_equal_hosts(dgx1, num_hosts=128, network_mb_per_s=12_500)
    >>> float(rate)  # 64 / 127 of the network
    6299.212598425197
    """
    if num_hosts < 2 or network_mb_per_s <= 0:
        raise PlanError(f"{num_hosts} hosts at {network_mb_per_s} MB/s: nothing to plan between")
    wanted = network_mb_per_s * Fraction(num_hosts, 2 * (num_hosts - 1))
    local = local_trees(host, Flow.BOTH, wanted=wanted)
    return local, wanted if local.rate is None else min(wanted, local.rate)


def _check(hosts: Sequence[Topology], joined: Topology, flow: Flow, root: Rank | None) -> None:
    if (root is None) is flow.is_rooted or root not in (None, *range(joined.size)):
        raise PlanError(f"{flow} from root {root} of {joined.size} ranks")
    sizes = [len(ranks) for ranks in ranks_by_host(joined)]
    if sizes != [host.size for host in hosts]:
        raise PlanError(
            f"{joined.name} has hosts of {sizes} ranks, not of {[host.size for host in hosts]}"
        )
    if joined.size < 2:
        raise PlanError("a single rank needs no trees")


def _improved(
    hosts: Sequence[Topology],
    packing: Packing,
    joined: Topology,
    proof: Certificate,
    slow: Sequence[int],
) -> tuple[Packing, Certificate]:
    """Return the joint optimum if it is clearly faster, and the best proof; `slow` are hosts."""
    flow, root = packing.flow, packing.root
    proofs = [proof]
    if joined.size <= _JOINT_RANKS:
        optimum, joint = pack(joined, flow, root, loss=Fraction(0))
        if packing.rate < optimum.rate * (1 - DEFAULT_LOSS):
            packing = optimum
        proofs.append(joint)
    elif packing.rate < check_certificate(joined, proof):
        proofs += outside_bounds(hosts, joined, flow, root, slow)
    return packing, min(proofs, key=lambda each: check_certificate(joined, each))


def _at_full_rate(topology: Topology, packing: Packing) -> Packing:
    """Return the packing with its rates grown until a resource is full."""
    factor = fastest_rate(topology, packing) / packing.rate
    return replace(packing, rates=tuple(rate * factor for rate in packing.rates))
