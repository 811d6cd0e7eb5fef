"""Fingerprint of a topology: the same however its GPUs are numbered and its resources are called.

Colours of ranks, links and resources are refined by what they touch until they no longer split
[1]_; what was seen on the way is hashed. Where equal colours are left, as on symmetric machines,
each rank of a class is singled out in turn and the hashes of all are taken, as deep as is cheap.
That tells apart, say, a ring of six from two rings of three.

References
----------
.. [1] B. Weisfeiler, A. Leman, "The reduction of a graph to canonical form and the algebra which
   appears therein", Nauchno-Technicheskaya Informatsia 2 (9), 1968, 12-16.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from blinkrun.topology.graph import Topology

_HEX_DIGITS = 16
# Links, ranks and resources looked at, times ranks singled out: some tens of milliseconds.
_MOST_WORK = 2_500


@dataclass(frozen=True, slots=True)
class _Shape:
    """A topology without names: links as (label, src, dst, shared resources)."""

    links: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    leaving: tuple[tuple[int, ...], ...]
    coming: tuple[tuple[int, ...], ...]
    takers: tuple[tuple[int, ...], ...]


def fingerprint(topology: Topology) -> str:
    """Return 16 hex digits that do not depend on the order of devices nor on any name.

    Equal machines have equal fingerprints, whatever the numbering. Different ones differ, but for
    graphs that are built to look alike from every rank.

    Examples
    --------
    >>> from blinkrun.topology.catalog import machine
    >>> from blinkrun.topology.graph import induce
    >>> dgx1 = machine("dgx-1v")
    >>> fingerprint(dgx1) == fingerprint(induce(dgx1, [6, 3, 1, 0, 7, 5, 2, 4]))
    True
    >>> fingerprint(induce(dgx1, [0, 1, 2])) == fingerprint(induce(dgx1, [0, 1, 3]))
    True
    """
    takers = Counter(name for link in topology.links for name in link.resources)
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    # a resource of one link alone is a property of that link
    labels = [
        (
            link.kind.value,
            *sorted(str(capacity[name]) for name in link.resources if takers[name] == 1),
        )
        for link in topology.links
    ]
    shared = [name for name in capacity if takers[name] > 1]
    shape = _shape(topology, labels, shared)
    ranks = [int(node >= topology.size) for node in range(topology.num_nodes)]
    resources = [capacity[name] for name in shared]
    seen = (topology.unit, topology.size, topology.num_nodes, sorted(Counter(labels).items()))
    work = len(labels) + len(ranks) + len(resources)
    return _digest(seen, _explore(shape, ranks, resources, work))[:_HEX_DIGITS]


def _shape(topology: Topology, labels: Sequence[tuple[str, ...]], shared: Sequence[str]) -> _Shape:
    number = {label: at for at, label in enumerate(sorted(set(labels)))}
    index = {name: at for at, name in enumerate(shared)}
    links = tuple(
        (
            number[label],
            link.src,
            link.dst,
            tuple(index[name] for name in link.resources if name in index),
        )
        for label, link in zip(labels, topology.links, strict=True)
    )
    leaving: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    coming: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    takers: list[list[int]] = [[] for _ in shared]
    for at, (_, src, dst, taken) in enumerate(links):
        leaving[src].append(at)
        coming[dst].append(at)
        for resource in taken:
            takers[resource].append(at)
    return _Shape(
        links, tuple(map(tuple, leaving)), tuple(map(tuple, coming)), tuple(map(tuple, takers))
    )


def _explore(shape: _Shape, ranks: list[int], resources: list[int], work: int) -> str:
    """Return the hash of the refined colours and, as far as `work` allows, of what lies below."""
    ranks, resources, seen = _refined(shape, ranks, resources)
    sizes = Counter(ranks)
    classes = sorted((size, colour) for colour, size in sizes.items() if size > 1)
    if not classes or work * classes[0][0] > _MOST_WORK:
        return _digest(seen)
    size, colour = classes[0]
    apart = len(sizes)
    below = sorted(
        _explore(
            shape,
            [apart if at == rank else other for at, other in enumerate(ranks)],
            resources,
            work * size,
        )
        for rank, own in enumerate(ranks)
        if own == colour
    )
    return _digest(seen, *below)


def _refined(
    shape: _Shape, ranks: list[int], resources: list[int]
) -> tuple[list[int], list[int], str]:
    """Return colours that no longer split, and a hash of how they came about."""
    trace = hashlib.sha256()
    num_colours = 0
    while True:
        links, words = _numbered(
            [
                (label, ranks[src], ranks[dst], *sorted([resources[at] for at in taken]))
                for label, src, dst, taken in shape.links
            ]
        )
        trace.update(words)
        resources, words = _numbered(
            [
                (own, *sorted([links[at] for at in takers]))
                for own, takers in zip(resources, shape.takers, strict=True)
            ]
        )
        trace.update(words)
        ranks, words = _numbered(
            [
                (
                    own,
                    *sorted([links[at] for at in leaving]),
                    -1,
                    *sorted([links[at] for at in coming]),
                )
                for own, leaving, coming in zip(ranks, shape.leaving, shape.coming, strict=True)
            ]
        )
        trace.update(words)
        found = len(set(links)) + len(set(resources)) + len(set(ranks))
        if found == num_colours:
            return ranks, resources, trace.hexdigest()
        num_colours = found


def _numbered(signatures: Sequence[tuple[int, ...]]) -> tuple[list[int], bytes]:
    """Return the place of every signature among all different ones, and these with their counts."""
    counts = Counter(signatures)
    ordered = sorted(counts)
    number = {signature: at for at, signature in enumerate(ordered)}
    words = repr([(signature, counts[signature]) for signature in ordered]).encode()
    return [number[signature] for signature in signatures], words


def _digest(*parts: Hashable) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
