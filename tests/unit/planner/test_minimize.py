"""Column generation and few trees: rules that the random machines do not show."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.topologies import host_of, machines, mesh_of

from blinkrun.errors import InternalError
from blinkrun.planner import lp, minimize
from blinkrun.planner.certificate import total_price, tree_cost
from blinkrun.planner.folding import folding_of
from blinkrun.planner.lp import Master, Optimum, fitting_rates, solve_packing
from blinkrun.planner.minimize import few_trees
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow
from blinkrun.planner.seeds import shallow_trees, sparing_trees
from blinkrun.planner.simplex import Simplex
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import cpu_topology
from blinkrun.topology.graph import induce

DGX1 = network_of(machine("dgx-1v"), Flow.BOTH)
EXACT = Fraction(0)


def starts(network, root=None):
    trees = (*shallow_trees(network, root), *sparing_trees(network, root))
    return [tree.column for tree in trees]


def optimum(network, root=None):
    return solve_packing(network, root, starts(network, root))


def few(network, loss, root=None):
    best = optimum(network, root)
    shallow = shallow_trees(network, root)
    return few_trees(network, root, best, shallow=shallow, target=best.bound * (1 - loss))


def test_stars_of_a_switch_are_optimal_without_another_column():
    network = network_of(machine("dgx-2"), Flow.BOTH)
    stars = [tree.column for tree in shallow_trees(network, None)]
    assert solve_packing(network, None, stars).columns == tuple(stars)


def test_any_start_leads_to_the_same_optimum():
    only_one = [shallow_trees(DGX1, None)[0].column]
    found = solve_packing(DGX1, None, only_one)
    assert found.bound == optimum(DGX1).bound == found.rate == Fraction(24, 7)


@pytest.mark.parametrize("loss", [EXACT, Fraction(1, 20), Fraction(1, 4)])
def test_more_loss_takes_fewer_trees(loss):
    packed = few(DGX1, loss)
    assert packed.rate >= packed.bound * (1 - loss)
    assert len(packed.trees) <= len(few(DGX1, loss / 2).trees)


def test_a_quarter_of_the_rate_takes_one_tree():
    packed = few(DGX1, Fraction(3, 4))
    assert (len(packed.trees), packed.trees[0].depth) == (1, 2)


@pytest.mark.parametrize(("name", "trees"), [("dgx-1v", 3), ("dgx-1p", 2)])
def test_seven_gpus_need_few_trees_for_the_full_rate(name, trees):
    packed = few(network_of(induce(machine(name), range(7)), Flow.BOTH), EXACT)
    assert (packed.rate, len(packed.trees)) == (trees, trees)


def test_trees_of_one_hop_are_kept_where_they_reach_the_wanted_rate():
    network = network_of(cpu_topology(host_of(2, 8), 16), Flow.BOTH)
    stars = shallow_trees(network, None)
    packed = few(network, Fraction(1, 2))
    assert packed.trees == tuple(stars)


def test_deep_trees_are_exchanged_for_shallow_ones():
    # the whole-number trees of these six GPUs are four hops deep
    packed = few(network_of(induce(machine("dgx-1v"), [1, 2, 3, 5, 6, 7]), Flow.BOTH), EXACT)
    assert (len(packed.trees), packed.trees[-1].depth) == (6, 2)


def test_capacities_without_a_common_measure_are_exact_too():
    lanes = {(0, 1): 1009, (1, 2): 2003, (2, 0): 3001, (0, 3): 4001, (2, 3): 997}
    mesh = mesh_of(4, lanes | {(b, a): capacity for (a, b), capacity in lanes.items()})
    packed = few(network_of(mesh, Flow.BOTH), EXACT)
    assert packed.rate == packed.bound


@pytest.mark.parametrize("flow", [Flow.BOTH, Flow.ALL_DOWN])
def test_what_is_not_recovered_exactly_is_still_valid_and_close(monkeypatch, flow):
    network = network_of(machine("dgx-1v", "all"), flow)
    exact = optimum(network)
    monkeypatch.setattr(Simplex, "vertex", lambda _self: None)
    close = optimum(network)
    assert tree_cost(network, None, close.prices) == 1
    assert exact.bound <= close.bound < exact.bound * Fraction(1_000_001, 1_000_000)
    assert exact.bound * Fraction(999_999, 1_000_000) < close.rate <= exact.bound
    assert fitting_rates(network, close.rates) == close.rates
    # nor are the few trees: those of the optimum are kept
    packed = few_trees(network, None, close, shallow=(), target=close.rate)
    assert packed.rate == close.rate


def test_too_many_trees_to_search_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr(minimize, "_LARGE", 0)
    packed = few(DGX1, EXACT)
    assert {tree.column for tree in packed.trees} == optimum(DGX1).rates.keys()


def test_dropping_ends_with_its_effort(monkeypatch):
    monkeypatch.setattr(minimize, "_DROPPING", 0)
    monkeypatch.setattr(minimize, "_EFFORT", 0)
    packed = few(DGX1, Fraction(1, 20))
    assert packed.rate >= packed.bound * Fraction(19, 20)


def test_endless_rounds_are_our_own_error(monkeypatch):
    monkeypatch.setattr(lp, "_MAX_ROUNDS", 1)
    with pytest.raises(InternalError, match="not converged after 1 rounds"):
        optimum(DGX1)


def test_prices_that_prove_nothing_are_our_own_error(monkeypatch):
    monkeypatch.setattr(Simplex, "vertex", lambda _self: None)
    monkeypatch.setattr(Master, "prices", lambda self: ([0.0] * 32, {None: 0.0}))
    with pytest.raises(InternalError, match="no resource prices"):
        optimum(DGX1)


@pytest.mark.parametrize("flow", [Flow.BOTH, Flow.DOWN, Flow.ALL_UP])
@pytest.mark.parametrize("name", ["dgx-h100", "dgx-2"])
def test_a_folded_program_has_the_same_optimum(name, flow):
    topology = induce(machine(name, "all"), range(6))
    network, root = network_of(topology, flow), 0 if flow.is_rooted else None
    folding = folding_of(topology, root)
    assert len(set(folding.resources)) < len(topology.resources)
    whole = optimum(network, root)
    folded = solve_packing(network, root, starts(network, root), folding=folding)
    assert folded.bound == folded.rate == whole.bound
    assert fitting_rates(network, folded.rates) == folded.rates
    assert tree_cost(network, root, folded.prices) == 1
    assert total_price(folded.prices, network.capacities) == folded.bound


def test_of_a_folded_program_trees_are_left_out_all_at_once():
    topology = machine("dgx-2", "all")
    network = network_of(topology, Flow.BOTH)
    folding = folding_of(topology, None)
    whole = solve_packing(network, None, starts(network), folding=folding)
    less = solve_packing(
        network, None, starts(network), folding=folding, enough=lambda bound: bound * 19 / 20
    )
    assert whole.bound * Fraction(19, 20) <= less.rate < whole.rate
    assert len(less.rates) < len(whole.rates)


def test_what_is_left_of_a_folded_program_is_exact_or_all(monkeypatch):
    topology = machine("dgx-2", "all")
    network = network_of(topology, Flow.BOTH)
    folding = folding_of(topology, None)
    monkeypatch.setattr(lp, "_fewer", lambda _master, _least: {})
    found = solve_packing(
        network, None, starts(network), folding=folding, enough=lambda bound: bound / 2
    )
    assert found.rate == found.bound


@settings(max_examples=15)
@given(machines(max_size=5), st.sampled_from(Flow))
def test_any_trees_are_made_to_fit(topology, flow):
    network = network_of(topology, flow)
    root = 0 if flow.is_rooted else None
    much = dict.fromkeys(starts(network, root), Fraction(10**6))
    fitting = fitting_rates(network, much)
    loads = [Fraction(0)] * len(network.capacities)
    for column, rate in fitting.items():
        for at, times in network.use(column).items():
            loads[at] += times * rate
    assert max(load / room for load, room in zip(loads, network.capacities, strict=True)) == 1
    assert fitting_rates(network, fitting) == fitting


def test_a_root_without_trees_stops_all():
    network = network_of(machine("dgx-1v"), Flow.ALL_DOWN)
    assert fitting_rates(network, {starts(network)[0]: Fraction(1)}) == {}


def test_an_optimum_says_its_rate():
    assert Optimum({(0,): Fraction(1, 2), (1,): Fraction(1)}, (), (), Fraction(2)).rate == 1.5
