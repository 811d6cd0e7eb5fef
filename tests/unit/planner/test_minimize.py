"""Column generation and few trees: rules that the random machines do not show."""

from fractions import Fraction

import numpy as np
import pytest
from support.topologies import host_of, mesh_of

from blinkrun.errors import InternalError
from blinkrun.planner import lp
from blinkrun.planner.certificate import tree_cost
from blinkrun.planner.lp import solve_packing
from blinkrun.planner.minimize import few_trees
from blinkrun.planner.network import network_of
from blinkrun.planner.packing import Flow
from blinkrun.planner.seeds import shallow_trees, sparing_trees
from blinkrun.topology.catalog import machine
from blinkrun.topology.cpu import cpu_topology
from blinkrun.topology.graph import induce

DGX1 = network_of(machine("dgx-1v"), Flow.BOTH)


def optimum(network, root=None):
    trees = (*shallow_trees(network, root), *sparing_trees(network, root))
    return solve_packing(network, root, [tree.column for tree in trees])


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
    assert solve_packing(DGX1, None, only_one).bound == optimum(DGX1).bound == Fraction(24, 7)


@pytest.mark.parametrize("loss", [Fraction(0), Fraction(1, 20), Fraction(1, 4), Fraction(3, 4)])
def test_more_loss_takes_fewer_trees(loss):
    packed = few(DGX1, loss)
    assert packed.rate >= packed.bound * (1 - loss)
    assert len(packed.trees) <= len(few(DGX1, loss / 2).trees)


def test_a_quarter_of_the_rate_takes_one_tree():
    packed = few(DGX1, Fraction(3, 4))
    assert (len(packed.trees), packed.trees[0].depth) == (1, 2)


def test_seven_gpus_need_three_trees_for_the_full_rate():
    packed = few(network_of(induce(machine("dgx-1v"), range(7)), Flow.BOTH), Fraction(0))
    assert (packed.rate, len(packed.trees)) == (3, 3)


def test_shallow_trees_are_kept_where_they_reach_the_wanted_rate():
    network = network_of(cpu_topology(host_of(2, 8), 16), Flow.BOTH)
    stars = {tree.column for tree in shallow_trees(network, None)}
    packed = few(network, Fraction(1, 2))
    assert {tree.column for tree in packed.trees} <= stars


def test_capacities_without_a_common_measure_are_exact_too():
    lanes = {(0, 1): 1009, (1, 2): 2003, (2, 0): 3001, (0, 3): 4001, (2, 3): 997}
    mesh = mesh_of(4, lanes | {(b, a): capacity for (a, b), capacity in lanes.items()})
    packed = few(network_of(mesh, Flow.BOTH), Fraction(0))
    assert packed.rate == packed.bound


def test_what_is_not_recovered_exactly_is_still_valid_and_close(monkeypatch):
    monkeypatch.setattr(lp, "_DENOMINATORS", (3, 8))
    monkeypatch.setattr(lp, "exact_basis", lambda *_args: None)
    network = network_of(machine("dgx-1v", "all"), Flow.BOTH)
    best = optimum(network)
    exact = Fraction(592_000, 7)
    assert tree_cost(network, None, best.prices) == 1
    assert exact <= best.bound < exact * Fraction(1_000_001, 1_000_000)
    assert (
        exact * Fraction(999_999, 1_000_000) < sum(lp.exact_rates(network, best.columns)) <= exact
    )


def test_endless_rounds_are_our_own_error(monkeypatch):
    monkeypatch.setattr(lp, "_MAX_ROUNDS", 1)
    with pytest.raises(InternalError, match="not converged after 1 rounds"):
        optimum(DGX1)


def test_a_solver_that_fails_is_our_own_error(monkeypatch):
    class Failed:
        status, x, message = 4, None, "numerical difficulties"

    monkeypatch.setattr(lp, "linprog", lambda *_args, **_options: Failed)
    with pytest.raises(InternalError, match="numerical difficulties"):
        optimum(DGX1)


def test_prices_that_prove_nothing_are_our_own_error(monkeypatch):
    monkeypatch.setattr(
        lp, "solve_master", lambda network, columns: ([], [1e9] + [0.0] * (31 + 0 * len(columns)))
    )
    monkeypatch.setattr(lp, "_ENOUGH", -1)
    with pytest.raises(InternalError, match="no resource prices"):
        optimum(DGX1)


def test_use_matrix_counts_every_taking():
    network = network_of(cpu_topology(host_of(1, 3), 3), Flow.BOTH)
    star = shallow_trees(network, None)[0].column
    assert np.array_equal(lp.use_matrix(network, [star]), [[2], [1], [1]])
