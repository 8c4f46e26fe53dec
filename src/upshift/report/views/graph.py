"""The graph of a run as a picture: dependencies, statuses, progress."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs

from upshift.model.graph import Graph, references
from upshift.model.graph import needs as needs_of
from upshift.report.human import span
from upshift.report.views.groups import MOST_STEPS, Group, connections

NODE = (170, 48)
"""Pixels of a node."""
_MOST_EDGES = 600
"""More than these are no picture any more."""
_WIDEST = 1290
"""Pixels: where layers from left to right take more, they go from top to bottom."""
_GAP = (46, 18)
"""Pixels between layers, and beside each other, where layers go from left to right; turned, these are …"""
_GAP_TURNED = (26, 22)
_MARGIN = 8
_NAME, _MORE = 128, 134
"""Pixels that a node has for its name, and for the line below it."""
_END = 5
"""Letters at the end of a name that is too long."""


@attrs.frozen(kw_only=True)
class NodeView:
    """A step: its texts, and its upper left corner; ``done`` and ``failed`` are shares of its tasks."""

    anchor: str
    name: str
    title: str
    more: str
    told: str
    status: str
    many: bool
    done: float
    failed: float
    x: float
    y: float


@attrs.frozen(kw_only=True)
class EdgeView:
    """A curve, as the path of an SVG; ``loose``: an order, or a condition, without data."""

    path: str
    loose: bool


@attrs.frozen(kw_only=True)
class Picture:
    """The whole, in pixels."""

    width: int
    height: int
    nodes: Sequence[NodeView]
    edges: Sequence[EdgeView]


def picture(groups: Sequence[Group], graph: Graph) -> Picture | None:
    """The picture; None: there are too many edges, or steps told together need each other in turn."""
    needs = connections(groups, graph)
    if needs is None or sum(map(len, needs.values())) > _MOST_EDGES:
        return None
    by_name = {group.name: group for group in groups}
    of = {step.name: group.name for group in groups for step in group.steps}
    return _drawn(needs, _without_data(of, graph), lambda name: _texts(by_name[name], needs[name]))


def outline(graph: Graph) -> Picture | None:
    """The picture of what has not run yet; None: it is too large."""
    nodes = {node.name: node for node in graph.nodes}
    needed = {name: sorted(needs_of(node)) for name, node in nodes.items()}
    if len(nodes) > MOST_STEPS or sum(map(len, needed.values())) > _MOST_EDGES:
        return None

    def of(name: str) -> dict[str, Any]:
        told = ["one task per item"] if nodes[name].mapped else []
        needs = [f"Needs {', '.join(needed[name])}"] if needed[name] else []
        return {
            "anchor": "",
            "title": name,
            "more": "".join(told),
            "told": ". ".join(told + needs),
            "status": "pending",
            "many": nodes[name].mapped,
            "done": 0.0,
            "failed": 0.0,
        }

    return _drawn(needed, _without_data({name: name for name in nodes}, graph), of)


def _drawn(
    needs: Mapping[str, Sequence[str]],
    loose: Container[tuple[str, str]],
    of: Callable[[str], Mapping[str, Any]],
) -> Picture:
    layout = layered(needs)
    turned = _is_turned(layout)
    edges = [
        EdgeView(path=_path(passed, turned), loose=ends in loose) for ends, passed in layout.edges.items()
    ]
    nodes = []
    for name in needs:
        x, y = _corner(layout.places[name], turned)
        nodes.append(NodeView(name=_fitting(name, _NAME, 8.7), x=x, y=y, **of(name)))
    width, height = _size(layout, turned)
    return Picture(width=width, height=height, nodes=nodes, edges=edges)


def _is_turned(layout: Layout) -> bool:
    """From left to right where that fits; else whichever way is less wide."""
    along, across = _size(layout, False)[0], _size(layout, True)[0]
    return along > _WIDEST and across < along


def _without_data(of: Mapping[str, str], graph: Graph) -> set[tuple[str, str]]:
    """The edges that no value takes, between what the steps are told as."""
    every, data = set(), set()
    for node in graph.nodes:
        given = {r.node for source in node.inputs.values() for r in references(source)}
        data |= {(of[name], of[node.name]) for name in given}
        conditions = {node.when.node} if node.when else set()
        every |= {(of[name], of[node.name]) for name in {*node.after, *conditions}}
    return every - data


def _texts(group: Group, needs: Sequence[str]) -> dict[str, Any]:
    counts, total = group.statuses, len(group.tasks)
    ended = total - counts.get("running", 0) - counts.get("pending", 0)
    took = span(group.seconds) if group.seconds else ""
    far = f"{ended - counts.get('cancelled', 0):,}/{total:,}" if group.many and total else ""
    word = "" if group.word == "completed" else group.word
    if group.many and counts.get("failed"):
        word = f"{counts['failed']:,} failed"
    told = " · ".join(filter(None, (group.word, f"{far} tasks" if far else "", took)))
    return {
        "anchor": group.anchor,
        "title": group.title,
        "more": _first([part for part in (far, word, took) if part] or [group.word], _MORE, 6.3),
        "told": told + (f". Needs {', '.join(needs)}." if needs else ""),
        "status": group.word,
        "many": group.many,
        "done": (counts.get("completed", 0) + counts.get("reused", 0)) / total if total else 0.0,
        "failed": counts.get("failed", 0) / total if total else 0.0,
    }


def _fitting(text: str, pixels: float, each: float) -> str:
    """A name shortened to fit, at this many pixels per character; its end is kept."""
    most = int(pixels / each)
    return text if len(text) <= most else f"{text[: most - _END - 1]}…{text[-_END:]}"


def _first(parts: list[str], pixels: float, each: float) -> str:
    """As many parts as fit beside each other, and at least one."""
    while len(parts) > 1 and len(" · ".join(parts)) * each > pixels:
        parts = parts[:-1]
    return " · ".join(parts)


def _steps(turned: bool) -> tuple[int, int]:
    """Pixels from one layer to the next, and from one node to the one beside it."""
    if turned:
        return NODE[1] + _GAP_TURNED[0], NODE[0] + _GAP_TURNED[1]
    return NODE[0] + _GAP[0], NODE[1] + _GAP[1]


def _corner(place: tuple[int, float], turned: bool) -> tuple[float, float]:
    along, beside = _steps(turned)
    layer, across = place[0] * along + _MARGIN, round(place[1] * beside + _MARGIN, 1)
    return (across, layer) if turned else (layer, across)


def _size(layout: Layout, turned: bool) -> tuple[int, int]:
    along, beside = _steps(turned)
    gap = _GAP_TURNED if turned else _GAP
    length = layout.layers * along - gap[0] + 2 * _MARGIN + 4
    breadth = round(layout.breadth * beside - gap[1] + 2 * _MARGIN + 4)
    return (breadth, length) if turned else (length, breadth)


def _path(passed: Sequence[tuple[int, float]], turned: bool) -> str:
    """A curve from the end of one node to the start of the other; straight along what it passes."""
    long, wide = (NODE[1], NODE[0]) if turned else NODE
    along, beside = _steps(turned)
    path, last = "", None
    for number, (layer, across) in enumerate(passed):
        begin, level = layer * along + _MARGIN, across * beside + _MARGIN + wide / 2
        if last is None:
            path = f"M{_xy(begin + long, level, turned)}"
        else:
            middle = (last[0] + begin) / 2
            curve = ((middle, last[1]), (middle, level), (begin, level))
            path += "C" + " ".join(_xy(x, y, turned) for x, y in curve)
        if 0 < number < len(passed) - 1:
            path += f"L{_xy(begin + long, level, turned)}"
        last = (begin + long, level)
    return path


def _xy(along: float, across: float, turned: bool) -> str:
    x, y = (across, along) if turned else (along, across)
    return f"{x:.1f},{y:.1f}"


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
