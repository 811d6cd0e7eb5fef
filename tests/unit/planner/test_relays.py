"""Idle devices that data may run through: they help, and are never needed at an end."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import all_trees, machines, mesh_of, meshes, relayed

from blinkrun.errors import InternalError, PlanError, UnreachableRankError
from blinkrun.planner.certificate import check_certificate
from blinkrun.planner.make import make_plan
from blinkrun.planner.network import MAX_RELAYS, network_of
from blinkrun.planner.packing import Edge, Flow, Packing, Tree, check_packing
from blinkrun.planner.parts import parts
from blinkrun.planner.solve import pack
from blinkrun.planner.spanning import cheapest_tree
from blinkrun.topology.catalog import machine
from blinkrun.topology.graph import induce

EXACT = Fraction(0)
FLOWS = [*((flow, None) for flow in Flow if not flow.is_rooted), (Flow.DOWN, 0), (Flow.UP, 1)]
DGX1 = machine("dgx-1v")


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@pytest.mark.parametrize("loss", [EXACT, Fraction(1, 10)])
@settings(max_examples=8)
@given(topology=relayed())
def test_packings_with_relays_fit_and_are_proven(flow, root, loss, topology):
    packing, certificate = pack(topology, flow, root, loss=loss)
    check_packing(topology, packing)
    bound = check_certificate(topology, certificate)
    assert bound * (1 - loss) <= packing.rate <= bound
    assert loss or packing.rate == bound


@pytest.mark.parametrize(("flow", "root"), FLOWS)
@settings(max_examples=8)
@given(data=st.data(), whole=meshes(min_size=3, max_size=5))
def test_relays_never_make_it_slower(flow, root, data, whole):
    count = data.draw(st.integers(2, whole.size - 1))
    ranks, relays = range(count), range(count, whole.size)
    try:
        alone, _ = pack(induce(whole, ranks), flow, root, loss=EXACT)
    except UnreachableRankError:
        return  # only relays join them
    helped, _ = pack(induce(whole, ranks, relays), flow, root, loss=EXACT)
    assert helped.rate >= alone.rate


@settings(max_examples=25)
@given(relayed(), st.data())
def test_the_cheapest_tree_is_the_cheapest_of_all(topology, data):
    flow, root = data.draw(st.sampled_from([(Flow.BOTH, None), (Flow.DOWN, 0), (Flow.UP, 1)]))
    network = network_of(topology, flow)
    weights = [data.draw(st.integers(0, 4)) for _ in network.arcs]
    found = cheapest_tree(network, root, weights)
    trees = set(all_trees(network, root))
    assert found in trees
    assert sum(weights[arc] for arc in found) == min(sum(weights[a] for a in t) for t in trees)


@pytest.mark.parametrize(
    ("gpus", "relays", "flow", "alone", "helped"),
    [
        ((0, 1, 4), (2, 3, 5), Flow.BOTH, 1, 3),
        ((0, 1, 4), (2, 3, 5), Flow.DOWN, 1, 3),
        ((0, 1, 4), (2, 3, 5), Flow.ALL_DOWN, Fraction(3, 2), Fraction(9, 2)),
    ],
)
def test_idle_neighbours_of_a_dgx1_carry_traffic(gpus, relays, flow, alone, helped):
    root = 0 if flow.is_rooted else None
    assert pack(induce(DGX1, gpus), flow, root, loss=EXACT)[0].rate == alone
    assert pack(induce(DGX1, gpus, relays), flow, root, loss=EXACT)[0].rate == helped


def test_a_relay_joins_what_was_apart():
    chain = mesh_of(3, {(0, 1): 2, (1, 0): 2, (1, 2): 2, (2, 1): 2})
    apart = induce(chain, [0, 2])
    assert parts(apart) == ((0,), (1,))
    with pytest.raises(UnreachableRankError):
        pack(apart, Flow.BOTH)
    joined = induce(chain, [0, 2], [1])
    assert parts(joined) == ((0, 1),)
    (tree,) = pack(joined, Flow.DOWN, 0)[0].trees
    assert [(edge.parent, edge.child) for edge in tree.edges] == [(0, 2), (2, 1)]


def test_a_network_in_two_has_no_cheapest_tree():
    chain = mesh_of(4, {(0, 1): 2, (1, 0): 2, (2, 3): 2, (3, 2): 2})
    network = network_of(induce(chain, [0, 2, 3], [1]), Flow.BOTH)
    with pytest.raises(InternalError, match="no tree joins all ranks"):
        cheapest_tree(network, None, [1] * len(network.arcs))


def test_a_relay_that_leads_nowhere_is_left_out():
    star = mesh_of(3, {(0, 1): 1, (1, 0): 1, (0, 2): 9, (2, 0): 9})
    packing, _ = pack(induce(star, [0, 1], [2]), Flow.BOTH, loss=EXACT)
    assert {node for tree in packing.trees for e in tree.edges for node in (e.parent, e.child)} == {
        0,
        1,
    }


# links by index: 0: 0->1, 1: 0->2, 2: 1->0, 3: 1->2, 4: 2->0, 5: 2->1
TRIANGLE = replace(
    mesh_of(3, {(a, b): 2 for a in range(3) for b in range(3) if a != b}), num_relays=1
)


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (Tree(0, (Edge(0, 1, (0,)), Edge(0, 2, (1,)))), "relay 2 leads nowhere"),
        (Tree(0, (Edge(0, 2, (1,)),)), "rank 1 is not reached"),
        (Tree(2, (Edge(2, 0, (4,)), Edge(2, 1, (5,)))), "there are 2 ranks"),
    ],
)
def test_trees_that_misuse_a_relay_are_refused(tree, text):
    through = Tree(0, (Edge(0, 2, (1,)), Edge(2, 1, (5,))))
    check_packing(TRIANGLE, Packing(Flow.DOWN, 0, (through,), (Fraction(2),)))
    wrong = Packing(Flow.DOWN, tree.root, (tree,), (Fraction(1),))
    with pytest.raises(PlanError, match=text):
        check_packing(TRIANGLE, wrong)


def test_more_relays_than_can_be_tried_are_refused():
    many = MAX_RELAYS + 1
    ring = {(a, (a + 1) % (many + 2)): 1 for a in range(many + 2)}
    topology = replace(mesh_of(many + 2, ring), num_relays=many)
    with pytest.raises(PlanError, match=f"{many} relays; .* {MAX_RELAYS} at most"):
        pack(topology, Flow.DOWN, 0)


def test_plans_that_run_have_no_relays():
    with pytest.raises(PlanError, match="dgx-1v: 2 relays; plans that run have none"):
        make_plan(induce(DGX1, (0, 1, 4), (2, 3)))


@settings(max_examples=30)
@given(meshes() | relayed(), st.data())
def test_parts_are_what_can_be_packed(topology, data):
    links = data.draw(st.lists(st.sampled_from(topology.links), unique=True))
    names = {name for link in links for name in link.resources}
    torn = replace(
        topology,
        links=tuple(links),
        resources=tuple(r for r in topology.resources if r.name in names),
    )
    for flow in (Flow.BOTH, Flow.ALL_DOWN, Flow.ALL_UP):
        found = parts(torn, flow)
        assert sorted(rank for part in found for rank in part) == list(range(torn.size))
        try:
            pack(torn, flow)
        except UnreachableRankError:
            assert len(found) > 1
        else:
            assert len(found) == 1


@settings(max_examples=10)
@given(machines(max_size=5))
def test_machines_are_one_part(topology):
    assert parts(topology) == (tuple(range(topology.size)),)
