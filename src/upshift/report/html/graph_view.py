"""The graph of a run as a picture: what needs what, and how each step stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upshift.model.graph.model import Graph
from upshift.model.graph.order import references
from upshift.report.html.elements import Html, join, tag
from upshift.report.html.graph_layout import Layout, layered
from upshift.report.html.groups import Group, connections
from upshift.report.html.words import icon, seconds_of, status_word

_MOST_EDGES = 600
"""More than these are no picture any more."""
_WIDEST = 1100
"""Pixels: where layers from left to right take more, they go from top to bottom."""
_NODE = (172, 46)
_GAP = (54, 18)
"""Between layers, and beside each other, where layers go from left to right; turned, these are …"""
_GAP_TURNED = (34, 22)
_LETTERS = 20
_SMALL_LETTERS = 25
_MARGIN = 8
_ROUND = 7


def graph_view(groups: Sequence[Group], graph: Graph, words: Mapping[str, str]) -> Html:
    """The picture, or what is to be said instead of it.

    Parameters
    ----------
    groups
        The nodes.
    graph
        Where what they need is.
    words
        For each group its status as people read it.
    """
    needs = connections(groups, graph)
    if needs is None or sum(map(len, needs.values())) > _MOST_EDGES:
        return tag(
            "p", {"class": "quiet"}, "The graph is too large for a picture: the steps are listed below."
        )
    layout = layered(needs)
    turned = layout.layers * (_NODE[0] + _GAP[0]) > _WIDEST
    loose = _without_data(groups, graph)
    by_name = {group.name: group for group in groups}
    edges = [_edge(passed, turned, (one, other) in loose) for (one, other), passed in layout.edges.items()]
    nodes = [
        _node(by_name[name], words[name], needs[name], _corner(layout.places[name], turned)) for name in needs
    ]
    width, height = _size(layout, turned)
    note = "A dashed line is an order, or a condition, without data." if loose else ""
    picture = tag(
        "svg",
        {
            "class": "graph",
            "width": width,
            "height": height,
            "viewBox": f"0 0 {width} {height}",
            "role": "group",
            "aria-label": f"Graph of {len(groups)} steps",
        },
        tag("g", {"aria-hidden": "true"}, edges),
        nodes,
    )
    return join(
        tag("div", {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": "Graph"}, picture),
        tag("p", {"class": "quiet"}, note) if note else None,
    )


def _without_data(groups: Sequence[Group], graph: Graph) -> set[tuple[str, str]]:
    """The edges that no value takes."""
    of = {step.name: group.name for group in groups for step in group.steps}
    every, data = set(), set()
    for node in graph.nodes:
        given = {r.node for source in node.inputs.values() for r in references(source)}
        data |= {(of[name], of[node.name]) for name in given}
        conditions = {node.when.node} if node.when else set()
        every |= {(of[name], of[node.name]) for name in {*node.after, *conditions}}
    return every - data


def _steps(turned: bool) -> tuple[int, int]:
    """Pixels from one layer to the next, and from one node to the one beside it."""
    if turned:
        return _NODE[1] + _GAP_TURNED[0], _NODE[0] + _GAP_TURNED[1]
    return _NODE[0] + _GAP[0], _NODE[1] + _GAP[1]


def _corner(place: tuple[int, float], turned: bool) -> tuple[float, float]:
    along, beside = _steps(turned)
    layer, across = place[0] * along + _MARGIN, place[1] * beside + _MARGIN
    return (across, layer) if turned else (layer, across)


def _size(layout: Layout, turned: bool) -> tuple[int, int]:
    along, beside = _steps(turned)
    gap = _GAP_TURNED if turned else _GAP
    length = layout.layers * along - gap[0] + 2 * _MARGIN + 4
    breadth = round(layout.breadth * beside - gap[1] + 2 * _MARGIN + 4)
    return (breadth, length) if turned else (length, breadth)


def _edge(passed: Sequence[tuple[int, float]], turned: bool, loose: bool) -> Html:
    """A curve from the end of one node to the start of the other; straight along what it passes."""
    long, wide = (_NODE[1], _NODE[0]) if turned else _NODE
    along, beside = _steps(turned)
    path, last = "", None
    for number, (layer, across) in enumerate(passed):
        begin, level = layer * along + _MARGIN, across * beside + _MARGIN + wide / 2
        if last is not None:
            middle = (last[0] + begin) / 2
            path += (
                f"C{_xy(middle, last[1], turned)} {_xy(middle, level, turned)} {_xy(begin, level, turned)}"
            )
        else:
            path = f"M{_xy(begin + long, level, turned)}"
        if 0 < number < len(passed) - 1:
            path += f"L{_xy(begin + long, level, turned)}"
        last = (begin + long, level)
    return tag("path", {"class": "edge loose" if loose else "edge", "d": path})


def _xy(along: float, across: float, turned: bool) -> str:
    x, y = (across, along) if turned else (along, across)
    return f"{x:.1f},{y:.1f}"


def _node(group: Group, word: str, needs: Sequence[str], corner: tuple[float, float]) -> Html:
    x, y = corner
    width, height = _NODE
    box = {"width": width, "height": height, "rx": _ROUND}
    time = seconds_of(group.seconds)
    details = " · ".join(filter(None, (word, time)))
    brief = time if word == "completed" and time else details
    after = f" Needs {', '.join(needs)}." if needs else ""
    behind = tag("rect", {**box, "x": 4, "y": 4, "class": "behind"}) if group.many else None
    return tag(
        "a",
        {
            "href": f"#{group.anchor}",
            "class": f"node {status_word(word)}",
            "transform": f"translate({x:.1f} {y:.1f})",
            "aria-label": f"{group.title}: {details}.{after}",
        },
        tag("title", None, f"{group.title}: {details}"),
        behind,
        tag("rect", box),
        tag("path", {"class": "edge-of-node", "d": f"M1.5 {_ROUND}v{height - 2 * _ROUND}"}),
        tag("g", {"transform": "translate(12 13)"}, icon(status_word(word))),
        tag("text", {"x": 32, "y": 20, "class": "name"}, _short(group.title, _LETTERS)),
        tag("text", {"x": 32, "y": 36, "class": "more"}, _short(brief, _SMALL_LETTERS)),
    )


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"
