"""Where the nodes of a graph go: in layers, each node after what it needs, with few crossings.

The way of Sugiyama, Tagawa and Toda (1981): layers by the longest way from a start, a stand-in node in
each layer that an edge passes through, order within layers by the median of the neighbours, then places
as near to the neighbours as the order leaves room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import attrs

_SWEEPS = 12
_EDGE = 0.3
"""Units that an edge takes beside nodes."""


@attrs.frozen
class Layout:
    """Places, in units of one node and the gap beside it."""

    # for each node its layer, from 0, and where it is across the layer, from 0
    places: Mapping[str, tuple[int, float]]
    # for each edge, from the node that is needed, the places that it passes, both ends included
    edges: Mapping[tuple[str, str], Sequence[tuple[int, float]]]
    layers: int  # how many layers, and how many units the widest takes
    breadth: float


def layered(needs: Mapping[str, Sequence[str]]) -> Layout:
    """The layout of a graph."""
    depth: dict[str, int] = {}
    for node, needed in needs.items():
        depth[node] = 1 + max((depth[other] for other in needed), default=-1)
    chains = {
        (other, node): [other, *_stand_ins(other, node, depth), node]
        for node in needs
        for other in needs[node]
    }
    layers: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for node in needs:
        layers[depth[node]].append(node)
    for chain in chains.values():
        for passed in range(1, len(chain) - 1):
            layers[depth[chain[0]] + passed].append(chain[passed])
    before, after = _neighbours(chains.values())
    _order(layers, before, after)
    across = _across(layers, before, after)
    level = {node: number for number, layer in enumerate(layers) for node in layer}
    return Layout(
        {node: (level[node], across[node]) for node in needs},
        {ends: [(level[node], across[node]) for node in chain] for ends, chain in chains.items()},
        len(layers),
        1 + max(across.values(), default=0.0),
    )


def _stand_ins(first: str, last: str, depth: Mapping[str, int]) -> list[str]:
    # A name of the user's has no NUL.
    return [f"{first}\0{last}\0{layer}" for layer in range(depth[first] + 1, depth[last])]


_Neighbours = Mapping[str, Sequence[str]]


def _neighbours(chains: Iterable[Sequence[str]]) -> tuple[_Neighbours, _Neighbours]:
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for chain in chains:
        for one, other in pairwise(chain):
            after.setdefault(one, []).append(other)
            before.setdefault(other, []).append(one)
    return before, after


def _order(layers: list[list[str]], before: _Neighbours, after: _Neighbours) -> None:
    """Put each layer into the order that crosses least, as far as sweeps to and fro find it."""
    best, fewest = [list(layer) for layer in layers], _crossings(layers, after)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        numbers = range(1, len(layers)) if down else range(len(layers) - 2, -1, -1)
        for number in numbers:
            fixed = {node: place for place, node in enumerate(layers[number - 1 if down else number + 1])}
            nearby = before if down else after
            keys = {
                node: _median([fixed[other] for other in nearby.get(node, ())], place)
                for place, node in enumerate(layers[number])
            }
            layers[number].sort(key=keys.__getitem__)
        crossings = _crossings(layers, after)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _crossings(layers: Sequence[Sequence[str]], after: _Neighbours) -> int:
    total = 0
    for layer, following in pairwise(layers):
        place = {node: number for number, node in enumerate(following)}
        ends = [end for node in layer for end in sorted(place[other] for other in after.get(node, ()))]
        total += _inversions(ends, len(following))
    return total


def _inversions(numbers: Sequence[int], size: int) -> int:
    """How many pairs stand in the wrong order; counted in a Fenwick tree."""
    tree, total = [0] * (size + 1), 0
    for seen, number in enumerate(numbers):
        at, smaller = number + 1, 0
        while at:
            smaller += tree[at]
            at &= at - 1
        total += seen - smaller
        at = number + 1
        while at <= size:
            tree[at] += 1
            at += at & -at
    return total


def _median(places: Sequence[float], otherwise: float) -> float:
    if not places:
        return otherwise
    found = sorted(places)
    middle = len(found) // 2
    return found[middle] if len(found) % 2 else (found[middle - 1] + found[middle]) / 2


def _across(layers: Sequence[Sequence[str]], before: _Neighbours, after: _Neighbours) -> dict[str, float]:
    """Places within the layers: near the middle of the neighbours, in order, one unit apart."""
    widest = max(map(len, layers), default=0)
    across = {node: place + (widest - len(layer)) / 2 for layer in layers for place, node in enumerate(layer)}
    for sweep in range(_SWEEPS):
        nearby = before if sweep % 2 == 0 else after
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = [_mean([across[o] for o in nearby.get(node, ())], across[node]) for node in layer]
            across.update(zip(layer, _apart(wanted, [_width(node) for node in layer]), strict=True))
    least = min(across.values(), default=0.0)
    return {node: place - least for node, place in across.items()}


def _width(node: str) -> float:
    return _EDGE if "\0" in node else 1.0


def _mean(places: Sequence[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The places nearest to those wanted that keep the order, and room for each.

    Less the room that those before it take, the places must not fall: the nearest such numbers are
    found by pooling neighbours that do (isotonic regression).
    """
    taken = [0.0]
    for one, other in pairwise(widths):
        taken.append(taken[-1] + (one + other) / 2)
    pools: list[tuple[float, int]] = []  # sum and number of their members
    for place, room in zip(wanted, taken, strict=True):
        total, size = place - room, 1
        while pools and pools[-1][0] / pools[-1][1] > total / size:
            before, members = pools.pop()
            total, size = before + total, members + size
        pools.append((total, size))
    level = [total / size for total, size in pools for _ in range(size)]
    return [place + room for place, room in zip(level, taken, strict=True)]
