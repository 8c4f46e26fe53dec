"""Where things go: the nodes of a graph, bars on a time axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift.report.views.graph import layered
from upshift.report.views.groups import Bar, at_once, in_lanes, marks, most_at_once


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    size = draw(st.integers(1, 25))
    names = [f"n{i}" for i in range(size)]
    return {
        name: sorted(draw(st.sets(st.sampled_from(names[:i]), max_size=4))) if i else []
        for i, name in enumerate(names)
    }


@given(graphs())
def test_each_node_comes_after_what_it_needs_and_has_room(needs: dict[str, list[str]]) -> None:
    layout = layered(needs)
    assert layout.places.keys() == needs.keys()
    layers: dict[int, list[float]] = {}
    for name, needed in needs.items():
        layer, across = layout.places[name]
        assert layer == 1 + max((layout.places[other][0] for other in needed), default=-1)
        assert 0 <= across <= layout.breadth - 1 + 1e-6
        layers.setdefault(layer, []).append(across)
    for places in layers.values():
        places.sort()
        assert all(b - a > 1 - 1e-6 for a, b in itertools.pairwise(places))
    for (one, other), passed in layout.edges.items():
        assert [layer for layer, _ in passed] == list(
            range(layout.places[one][0], layout.places[other][0] + 1)
        )


def test_a_chain_is_straight_and_a_tree_crosses_nothing() -> None:
    chain = layered({"a": [], "b": ["a"], "c": ["b"]})
    assert {across for _, across in chain.places.values()} == {0.0}
    tree = layered({"r": [], "x": ["r"], "y": ["r"], "x1": ["x"], "y1": ["y"], "x2": ["x"], "y2": ["y"]})
    leaves = {name: tree.places[name][1] for name in ("x1", "x2", "y1", "y2")}
    xs, ys = (leaves["x1"], leaves["x2"]), (leaves["y1"], leaves["y2"])
    assert max(xs) < min(ys) or max(ys) < min(xs)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (13.5, [0, 5, 10]),
        (3600, [0, 600, 1200, 1800, 2400, 3000, 3600]),
        (10 * 86400, [0, 172800, 345600, 518400, 691200, 864000]),
    ],
)
def test_the_time_axis_has_round_marks(end: float, expected: list[float]) -> None:
    assert marks(end) == pytest.approx(expected)


@given(st.floats(1e-3, 1e8))
def test_the_time_axis_never_has_too_many_marks(end: float) -> None:
    found = marks(end)
    assert 1 <= len(found) <= 7 and found[0] == 0 and found[-1] <= end * (1 + 1e-6)


TRIES = st.lists(st.tuples(st.floats(0, 90), st.floats(0, 10)), min_size=1, max_size=60)


def bars(tries: Sequence[tuple[float, float]]) -> list[Bar]:
    found = [Bar(label="t", status="completed", start=start, end=start + seconds) for start, seconds in tries]
    return sorted(found, key=lambda bar: (bar.start, bar.end))


@given(TRIES)
def test_what_runs_at_once_has_lanes_of_its_own(tries: list[tuple[float, float]]) -> None:
    placed = in_lanes(bars(tries))
    for lane in {bar.lane for bar in placed}:
        own = [bar for bar in placed if bar.lane == lane]
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))


@given(TRIES)
def test_a_profile_holds_all_the_time_that_was_spent(tries: list[tuple[float, float]]) -> None:
    found = bars(tries)
    heights = at_once(found, 100.0, bins=50)
    assert sum(heights) * 2.0 == pytest.approx(sum(bar.end - bar.start for bar in found), abs=1e-6)
    assert max(heights) <= len(found) + 1e-9


def test_how_many_ran_at_once() -> None:
    assert most_at_once(bars([(0, 2), (1, 2), (3, 1)])) == 2  # the third begins when the second ends
