"""Where things go: axes, curves, graphs, bars on a time axis."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from upshift.report.html.charts import Chart, Line, chart
from upshift.report.html.curves import Frame, Point, band, line, thin
from upshift.report.html.graph_layout import layered
from upshift.report.html.metrics_view import Logged, metrics_view
from upshift.report.html.scales import amount, around, clock, ticks, time_ticks
from upshift.report.html.timeline import Bar, at_once, lanes, most_at_once
from upshift.report.html.usage import gpu_usage, usage
from upshift.runtime.storage.metrics import Curve
from upshift.runtime.storage.series import Series

FINITE = st.floats(-1e12, 1e12)


def pieces(path: str) -> list[list[tuple[int, int]]]:
    """The places along a path of relative lines."""
    found = []
    for start, rest in re.findall(r"M(-?\d+ ?-?\d+)l([^M]*)", path):
        x, y = map(int, re.findall(r"-?\d+", start))
        places = [(x, y)]
        numbers = list(map(int, re.findall(r"-?\d+", rest)))
        for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
            x, y = x + dx, y + dy
            places.append((x, y))
        found.append(places)
    return found


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (87.3149, "%", "87.3 %"),
        (1639.2, "MHz", "1,639 MHz"),
        (25_300_000_000, "bytes", "25.3 GB"),
        (4.2e9, "bytes/s", "4.2 GB/s"),
        (0.0123456, "", "0.01235"),
        (12345.6, "", "12,346"),
        (1.5e-7, "", "1.5e-07"),
        (125, "s", "2:05"),
    ],
)
def test_values_have_units_and_few_figures(value: float, unit: str, words: str) -> None:
    assert amount(value, unit) == words


def logged(values: Sequence[float], steps: Sequence[float | None]) -> str:
    count = min(len(values), len(steps))
    times = [float(number) for number in range(count)]
    curve = Curve(name="loss", values=values[:count], steps=steps[:count], times=times)
    return metrics_view({"loss": [Logged("", curve)]})


NUMBERS = st.one_of(st.floats(), st.integers(), st.booleans())


@given(st.lists(NUMBERS, min_size=1), st.lists(st.none() | NUMBERS, min_size=1))
def test_whatever_numbers_are_logged_can_be_drawn(values: list[float], steps: list[float | None]) -> None:
    assert "loss" in logged(values, steps)


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([1e308, -1e308, 1.0, 2.0], [0, 1, 2, 3]),
        ([0.0, 5e-324], [0, 1]),
        ([1.0, 2.0], [2**62, 2**62]),
        ([1.0, 2.0], [1e308, -1e308]),
    ],
)
def test_numbers_at_the_ends_of_what_there_is_are_drawn(
    values: list[float], steps: list[float | None]
) -> None:
    drawn = logged(values, steps)
    assert 'class="plot"' in drawn and "nan" not in drawn
    assert ("2 values not drawn" in drawn) == (max(values) > 1e300)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.25, "0.25 s"), (42, "42 s"), (185, "3:05"), (4050, "1:07:30")]
)
def test_times_since_a_start(seconds: float, words: str) -> None:
    assert clock(seconds) == words


@given(FINITE, st.floats(1e-6, 1e12), st.integers(2, 8))
def test_ticks_are_round_and_few_and_within(low: float, extent: float, most: int) -> None:
    extent = max(extent, abs(low) * 1e-6)  # where floats still tell ticks apart
    found = ticks(low, low + extent, most)
    assert len(found) <= most + 1
    assert all(low - extent * 1e-6 <= tick <= low + extent * (1 + 1e-6) for tick in found)


def test_long_times_have_whole_minutes_and_hours() -> None:
    assert time_ticks(0, 3600, 6) == [0, 600, 1200, 1800, 2400, 3000, 3600]
    assert time_ticks(0, 0.5, 5) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert time_ticks(0, 10 * 86400, 5) == [0, 172800, 345600, 518400, 691200, 864000]


@example(values=[5e-324], from_zero=True)
@example(values=[-1e-320, 1e-320], from_zero=False)
@given(st.lists(FINITE, min_size=1, max_size=20), st.booleans())
def test_an_axis_has_room_for_all_values(values: list[float], from_zero: bool) -> None:
    low, high = around(values, from_zero=from_zero)
    margin = (high - low) * 1e-6
    assert low < high
    assert low - margin <= min(values) and max(values) <= high + margin
    assert not from_zero or low <= 0 or math.isclose(low, 0)


def test_few_samples_stay_as_they_are() -> None:
    assert thin([0, 1, 2], [5, None, math.nan]) == [Point(0, 5, 5, 5), None, None]


@given(st.lists(st.none() | FINITE, min_size=50, max_size=400))
def test_many_samples_become_few_points_with_their_least_and_most(values: list[float | None]) -> None:
    points = thin([float(i) for i in range(len(values))], values, most=20)
    assert len(points) <= 20
    known = [value for value in values if value is not None]
    drawn = [point for point in points if point is not None]
    if known:
        assert min(point.low for point in drawn) == min(known)
        assert max(point.high for point in drawn) == max(known)
        assert all(point.low - 1e-3 <= point.y <= point.high + 1e-3 for point in drawn)


def test_where_nobody_knew_a_value_the_line_has_a_gap() -> None:
    values = [1.0] * 100 + [None] * 100 + [3.0] * 100
    points = thin([float(i) for i in range(300)], values, most=30)
    assert [points[at] is None for at in (5, 15, 25)] == [False, True, False]
    assert len(pieces(line(points, Frame(0, 300, 0, 4)))) == 2


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-50, 50)), min_size=1, max_size=50))
def test_a_path_has_every_point_at_its_place(samples: list[tuple[float, float]]) -> None:
    samples.sort()
    frame = Frame(0, 100, -50, 50)
    points = [Point(x, y, y, y) for x, y in samples]
    (found,) = pieces(line(points, frame))
    for (across, down), (x, y) in zip(found, samples, strict=False):
        assert abs(across - x * 100) < 0.6 and abs(down - (50 - y) * 100) < 0.6
    assert len(found) == max(len(samples), 2)  # a single point is a line of no length
    assert band(points, frame) == ""


def test_a_band_runs_along_the_most_and_back_along_the_least() -> None:
    frame = Frame(0, 2, 0, 10, grid=100)
    points = [Point(0, 5, 4, 6), Point(1, 5, 5, 5), Point(2, 5, 1, 9)]
    assert pieces(band(points, frame)) == [[(0, 40), (50, 50), (100, 10), (100, 90), (50, 50), (0, 60)]]


def test_an_hour_of_samples_is_a_few_kilobytes() -> None:
    page = chart(
        Chart(
            title="CPU", unit="CPUs", lines=[Line("", list(range(3600)), [i % 60 / 30 for i in range(3600)])]
        )
    )
    assert 1000 < len(page) < 20_000


def test_a_chart_without_values_is_not_drawn() -> None:
    assert chart(Chart(title="CPU", unit="CPUs", lines=[Line("", [1, 2], [None, math.nan])])) == ""


def test_a_limit_far_above_the_values_is_told_and_not_drawn() -> None:
    lines = [Line("", [0, 1], [1.0, 2.0])]
    near = chart(Chart(title="CPU", unit="CPUs", lines=lines, limit=(4, "granted")))
    far = chart(Chart(title="CPU", unit="CPUs", lines=lines, limit=(400, "granted")))
    assert "granted 4 CPUs" in near and 'class="limit"' in near
    assert "granted 400 CPUs" in far and 'class="limit"' not in far


def test_what_was_never_measured_has_no_chart() -> None:
    columns = {"time": [1, 2], "cpu": [0, 0], "memory": [None, None], "read": [0, 0], "written": [0, 0]}
    assert [shown.title for shown in usage(Series(columns=columns), cpus=2, memory=None)] == ["CPU"]
    columns = {"time": [1, 2], "gpu.0.busy": [0, 0], "gpu.0.memory": [0, 9e9], "gpu.0.own_memory": [0, 1e9]}
    titles = [shown.title for shown in gpu_usage(Series(columns=columns))]
    assert titles == ["GPU busy", "GPU memory", "GPU memory of this step alone"]
    columns["gpu.0.own_memory"] = [0, 8.9e9]
    assert len(gpu_usage(Series(columns=columns))) == 2


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


TRIES = st.lists(st.tuples(st.floats(0, 90), st.floats(0, 10)), min_size=1, max_size=60)


def bars(tries: Sequence[tuple[float, float]]) -> list[Bar]:
    found = [Bar("t", "completed", start, start + seconds) for start, seconds in tries]
    return sorted(found, key=lambda bar: (bar.start, bar.end))


@given(TRIES)
def test_what_runs_at_once_has_lanes_of_its_own(tries: list[tuple[float, float]]) -> None:
    found = bars(tries)
    placed = lanes(found)
    for lane in set(placed):
        own = [bar for bar, its in zip(found, placed, strict=True) if its == lane]
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))


@given(TRIES)
def test_a_profile_holds_all_the_time_that_was_spent(tries: list[tuple[float, float]]) -> None:
    found = bars(tries)
    heights = at_once(found, 100.0, bins=50)
    assert sum(heights) * 2.0 == pytest.approx(sum(bar.end - bar.start for bar in found), abs=1e-6)
    assert max(heights) <= len(found) + 1e-9


def test_how_many_ran_at_once() -> None:
    assert most_at_once(bars([(0, 2), (1, 2), (3, 1)])) == 2  # the third begins when the second ends
