"""A packing with its certificate as text and back, to keep it: exact, in the topology's indices."""

from __future__ import annotations

import json
from fractions import Fraction

from blinkrun.errors import PlanError
from blinkrun.planner.certificate import Certificate
from blinkrun.planner.packing import Edge, Flow, Packing, Tree


def packing_to_json(proven: tuple[Packing, Certificate]) -> str:
    """Return a packing and its certificate as JSON text."""
    packing, certificate = proven
    return json.dumps(
        {
            "flow": packing.flow.value,
            "root": packing.root,
            "rates": [str(rate) for rate in packing.rates],
            "trees": [
                [tree.root, [[edge.parent, edge.child, list(edge.links)] for edge in tree.edges]]
                for tree in packing.trees
            ],
            "prices": {name: str(price) for name, price in certificate.prices},
        },
        separators=(",", ":"),
    )


def packing_from_json(text: str) -> tuple[Packing, Certificate]:
    """Return what `packing_to_json` wrote; whether it fits a topology is not checked here.

    Raises
    ------
    PlanError
        If `text` is nothing like it.

    Examples
    --------
    >>> from blinkrun.planner.solve import pack
    >>> from blinkrun.topology.catalog import machine
    >>> proven = pack(machine("dgx-1p"), Flow.DOWN, 0)
    >>> packing_from_json(packing_to_json(proven)) == proven
    True
    """
    try:
        data = json.loads(text)
        flow, root = Flow(data["flow"]), data["root"]
        trees = tuple(
            Tree(top, tuple(Edge(parent, child, tuple(links)) for parent, child, links in edges))
            for top, edges in data["trees"]
        )
        rates = tuple(map(Fraction, data["rates"]))
        prices = tuple((name, Fraction(price)) for name, price in data["prices"].items())
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as err:
        raise PlanError(f"text is no packing: {type(err).__name__}: {err}") from err
    return Packing(flow, root, trees, rates), Certificate(flow, root, prices)
