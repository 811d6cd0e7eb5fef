"""Few trees: from an optimum of many trees to a packing that is simple to carry out.

Every tree costs a channel with its flags, and every hop a chunk of delay. So trees are left out,
the slowest first, as long as the rest reach the wanted rate. Where none can be spared any more,
one is taken out all the same, and the others are exchanged one by one until the rate is back: the
prices of the linear program without a tree say which tree would be the best in its place. Exchanges
that gain nothing are allowed, and what was taken out stays out for a while (tabu search [1]_), so
that the search does not end at the first obstacle. Its length is a count, not a time: equal input
gives equal plans.

It starts from the trees of the optimum, from the shallowest ones if these are enough, and from
whole-number trees (see `whole`) if these are. The start that leads to fewest trees wins; then deep
trees are exchanged for shallower ones.

References
----------
.. [1] F. Glover, "Tabu search, part I", ORSA Journal on Computing 1 (1989), 190-206.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from blinkrun.planner.lp import UNIT, Master, Optimum
from blinkrun.planner.network import Column, Network
from blinkrun.planner.seeds import Packed, Rooted, arc_order, common_rate, rooted
from blinkrun.planner.spanning import cheapest_tree, layered_tree
from blinkrun.planner.whole import whole_trees
from blinkrun.types import Rank

_TOLERANCE = 1 - 1e-9
_MAX_RANKS = 16  # for whole-number trees
_MAX_HUBS = 8
_EFFORT = 20_000  # per start, in arcs looked at; a program solved counts as many, by its size
_ROOTED = 3  # Edmonds' algorithm looks at an arc about so often
_AT_SIGHT = 20  # what looking at a known tree counts as
_DROPPING = 600_000  # the same, for leaving out trees at the start
_STAYS_OUT = 6  # exchanges
_LARGE = 20_000  # trees times resources from which on no search is worth its time


@dataclass(frozen=True, slots=True)
class _Start:
    """Trees to begin with; how long, and how many of the trees on offer are looked at each time."""

    columns: Iterable[Column]
    effort: int = _EFFORT
    looked_at: int = 2


@dataclass(slots=True)
class _Search:
    """What is looked for, and how much longer."""

    network: Network
    root: Rank | None
    least: float
    empty: Master
    effort: int = 0
    looked_at: int = 2
    _orders: dict[Rank | None, list[list[int]]] = field(default_factory=dict)

    def master(self, columns: Iterable[Column]) -> Master:
        """Return the solved program of some trees."""
        master = self.empty.copy()
        for column in sorted(columns):
            master.add(column)
        master.solve()
        return master

    def root_of(self, column: Column) -> Rank | None:
        """Return where a tree hangs; None if it may hang anywhere."""
        return self.network.root_of(column) if self.network.flow.is_joint else self.root

    def hung(self, column: Column) -> Rooted:
        """Return the tree hung up at its root."""
        return rooted(self.network, self.root_of(column), column)

    def depth(self, columns: Iterable[Column]) -> int:
        """Return the hops of the deepest tree."""
        return max(self.hung(column).depth for column in columns)

    def rate(self, columns: Iterable[Column]) -> float:
        """Return the best rate of some trees."""
        return self.master(columns).solve()

    def spend(self, master: Master, times: int = 1) -> None:
        """Count a program solved so many times."""
        self.effort -= times * self.cost(master)

    def cost(self, master: Master) -> int:
        """Return what solving the program counts as."""
        return 40 + len(master) * len(self.network.capacities) // 5

    def is_enough(self, rate: float) -> bool:
        """Whether the wanted rate is reached."""
        return rate >= self.least

    def offers(self, master: Master, root: Rank | None) -> list[Column]:
        """Return trees that are cheapest at the prices of `master`."""
        if root not in self._orders:
            step = -(-self.network.size // _MAX_HUBS)
            self._orders[root] = [
                arc_order(self.network, root, hub) for hub in range(0, self.network.size, step)
            ]
        weights = self.weights(master)
        orders = self._orders[root]
        looks = len(orders) * (1 if root is None else _ROOTED) * (1 + self.network.num_relays)
        self.effort -= looks * len(self.network.arcs)
        return list(
            dict.fromkeys(cheapest_tree(self.network, root, weights, order) for order in orders)
        )

    def shallow_offers(self, master: Master, root: Rank | None) -> list[Column]:
        """Return the cheapest of the shallowest trees of every hub."""
        weights = self.weights(master)
        hubs = range(self.network.size) if root is None else (root,)
        self.effort -= len(hubs) * len(self.network.arcs)
        return list(dict.fromkeys(layered_tree(self.network, hub, weights) for hub in hubs))

    def weights(self, master: Master) -> list[int]:
        """Return what arcs cost at the prices of `master`."""
        prices, _ = master.prices()
        return self.network.weights([round(price * UNIT) for price in prices])


def few_trees(
    network: Network,
    root: Rank | None,
    optimum: Optimum,
    *,
    shallow: Sequence[Rooted],
    target: Fraction,
) -> Packed:
    """Return a packing of few trees with at least the rate `target`.

    Parameters
    ----------
    network : Network
    root : Rank or None
        Of all trees, or None if each has its own.
    optimum : Optimum
        Its trees reach the target.
    shallow : sequence of Rooted
        Trees to try as well.
    target : Fraction
        At most the optimum's rate.
    """
    rate = _common_rate(network, shallow)
    if rate * len(shallow) >= target:
        best = tuple(shallow)
        return Packed(best, (rate,) * len(best), optimum.prices, optimum.bound)
    search = _Search(network, root, float(target) * _TOLERANCE, Master(network, root))
    rates: dict[Column, Fraction] = {}
    if len(optimum.rates) * len(network.capacities) <= _LARGE:
        rates = _found(search, optimum, shallow, target)
    if sum(rates.values()) < target:  # too large to search, or floating point was too kind
        rates = dict(optimum.rates)
    trees = sorted(search.hung(column) for column in rates)
    return Packed(
        trees=tuple(trees),
        rates=tuple(rates[tree.column] for tree in trees),
        prices=optimum.prices,
        bound=optimum.bound,
    )


def _common_rate(network: Network, shallow: Sequence[Rooted]) -> Fraction:
    """Return what one-hop trees can all have at once, or two-hop ones from a root; else 0.

    They may be more than others, but no chunk waits for another, and that is worth more.
    """
    if not shallow or max(tree.depth for tree in shallow) > (2 if network.flow.is_rooted else 1):
        return Fraction(0)
    return common_rate(network, shallow)[0]


def _found(
    search: _Search, optimum: Optimum, shallow: Sequence[Rooted], target: Fraction
) -> dict[Column, Fraction]:
    """Return the fewest trees that searches find, and their best rates."""
    found = [_descend(search, start) for start in _starts(search, optimum, shallow, target)]
    best = min(
        found, key=lambda columns: (len(columns), search.depth(columns), -search.rate(columns))
    )
    best = _flatten(search, best, [*optimum.columns, *(tree.column for tree in shallow)])
    exact = search.master(best).exact()
    return exact.rates if exact is not None else {}


def _starts(
    search: _Search, optimum: Optimum, shallow: Sequence[Rooted], target: Fraction
) -> Iterator[_Start]:
    """Yield sets of trees that reach the target."""
    yield _Start(optimum.rates)
    flat = list(dict.fromkeys(tree.column for tree in shallow))
    if search.is_enough(search.rate(flat)):
        yield _Start(flat)
    network = search.network
    if network.size > _MAX_RANKS or network.num_relays or network.flow.is_joint:
        return
    whole = whole_trees(network, search.root, optimum.prices, target)
    if whole and search.is_enough(search.rate(whole)):
        yield _Start(whole, effort=3 * _EFFORT // 2, looked_at=3)


def _descend(search: _Search, start: _Start) -> list[Column]:
    """Return as few trees as the search finds from `start`."""
    search.effort, search.looked_at = start.effort, start.looked_at
    found = _drop(search, search.master(start.columns))
    while len(found) > 1:
        one_less = _repair(search, _without_one(search, found))
        if one_less is None:
            break
        found = _drop(search, one_less)
    return list(found)


def _drop(search: _Search, master: Master) -> Master:
    """Return the program without trees that can be spared, the slowest first."""
    needed: set[Column] = set()
    effort = _DROPPING
    while True:
        rates = master.rates()
        for column in [column for column, rate in rates.items() if rate <= 1e-7 * search.least]:
            master.remove(column)
        rest = [column for column in master if column not in needed]
        if not rest:
            return search.master(master)
        slowest = min(rest, key=lambda column: (rates[column], column))
        needed.add(slowest)
        effort -= search.cost(master)
        if effort < 0:
            return search.master(master)
        tried = _tried(master, slowest)
        if search.is_enough(tried.solve()):
            master = tried


def _tried(master: Master, column: Column) -> Master:
    without = master.copy()
    without.remove(column)
    return without


def _without_one(search: _Search, master: Master) -> Master:
    """Return the program without the tree that is missed least."""
    search.spend(master, len(master))
    tries = [(_tried(master, column), column) for column in master]
    return max(tries, key=lambda item: (item[0].solve(), item[1]))[0]


def _repair(search: _Search, master: Master) -> Master | None:
    """Exchange trees one by one until the rate is enough; None when the effort is spent."""
    now = search.master(master)
    out: dict[Column, int] = {}
    turn = 0
    while not search.is_enough(now.solve()):
        turn += 1
        barred = {column for column, until in out.items() if until > turn}
        exchanged = _exchange(search, now, barred)
        if exchanged is None or search.effort <= 0:
            return None
        now, taken_out = exchanged
        out[taken_out] = turn + _STAYS_OUT
    return now


def _exchange(search: _Search, master: Master, barred: set[Column]) -> tuple[Master, Column] | None:
    """Return the program with one tree for another: the first that gains, or the best of all."""
    rate = master.solve()
    rates = master.rates()
    best: tuple[float, Master, Column] | None = None
    for column in sorted(master, key=lambda column: (rates[column], column)):
        without = _tried(master, column)
        offers = search.offers(without, search.root_of(column))
        fresh = [offer for offer in offers if offer not in master and offer not in barred]
        for offer in without.promising(fresh, search.looked_at):
            tried = without.copy()
            tried.add(offer)
            search.spend(tried)
            gained = tried.solve()
            if best is None or gained > best[0]:
                best = gained, tried, column
        if best is not None and best[0] > rate / _TOLERANCE:
            break
    return None if best is None else (search.master(best[1]), best[2])


def _flatten(search: _Search, columns: list[Column], pool: Iterable[Column]) -> list[Column]:
    """Return as many trees, the deepest ones exchanged for shallower ones where that is enough."""
    search.effort = _EFFORT
    depth_of = {column: search.hung(column).depth for column in dict.fromkeys([*pool, *columns])}
    master = search.master(columns)
    while search.effort > 0:
        flatter = _flatter(search, master, depth_of)
        if flatter is None:
            break
        master = search.master(flatter)
    return list(master)


def _flatter(search: _Search, master: Master, depth_of: dict[Column, int]) -> Master | None:
    """Return the program with a shallower tree in place of the deepest for which there is one."""
    for column in sorted(master, key=lambda column: (-depth_of[column], column)):
        without = _tried(master, column)
        root = search.root_of(column)
        for offer in (*search.offers(without, root), *search.shallow_offers(without, root)):
            if offer not in depth_of:
                depth_of[offer] = search.hung(offer).depth
        shallower = [
            other
            for other, depth in depth_of.items()
            if depth < depth_of[column] and other not in master and search.root_of(other) == root
        ]
        search.effort -= _AT_SIGHT * len(shallower)
        for other in without.promising(shallower, _MAX_HUBS):
            tried = without.copy()
            tried.add(other)
            search.spend(tried)
            if search.is_enough(tried.solve()):
                return tried
        if search.effort <= 0:
            break
    return None
