"""The graph of a run as a picture: what needs what, how each step stands, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import attrs

from upshift.model.graph.model import Graph
from upshift.model.graph.order import needs as needs_of
from upshift.model.graph.order import references
from upshift.report.groups import MOST_STEPS, Group, connections
from upshift.report.human import span
from upshift.report.layered import Layout, layered

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
    """As much of a text as fits, with so many pixels a character on average; the end tells names apart."""
    most = int(pixels / each)
    return text if len(text) <= most else f"{text[: most - _END - 1]}…{text[-_END:]}"


def _first(parts: list[str], pixels: float, each: float) -> str:
    """As many of the parts as fit beside each other, the first one at least."""
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
