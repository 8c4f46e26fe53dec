"""Charts as numbers: what was measured and logged, with few points and nothing made up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift.report.page import Figures
from upshift.report.views.charts import Chart, Parts, gpu_usage, usage
from upshift.report.views.curves import Logged, chart_of
from upshift.runtime.storage.metrics import Curve
from upshift.runtime.storage.series import Series

FINITE = st.floats(-1e12, 1e12)
NUMBERS = st.one_of(st.floats(), st.integers(), st.booleans())


def curve(values: Sequence[float], steps: Sequence[float | None], name: str = "loss") -> Curve:
    count = min(len(values), len(steps))
    times = [float(number) for number in range(count)]
    return Curve(name=name, values=values[:count], steps=steps[:count], times=times)


def logged(values: Sequence[float], steps: Sequence[float | None]) -> Chart:
    return chart_of("loss", [Logged(curves=[curve(values, steps)])])


def test_few_samples_stay_as_they_are() -> None:
    line = Parts([0, 1, 2]).line("", [5, None, math.nan])
    assert (line.x, line.y, line.low, line.high) == ([0, 1, 2], [5, None, None], None, None)


@given(st.lists(st.none() | FINITE, min_size=50, max_size=400))
def test_many_samples_become_few_points_with_their_least_and_most(values: list[float | None]) -> None:
    line = Parts([float(i) for i in range(len(values))], most=20).line("", values, 12)
    assert len(line.x) == len(line.y) <= 20
    assert list(line.x) == sorted(line.x)
    known = [value for value in values if value is not None]
    if known:
        lows = [low for low in line.low or () if low is not None]
        highs = [high for high in line.high or () if high is not None]
        assert min(lows) == pytest.approx(min(known)) and max(highs) == pytest.approx(max(known))
        for y, low, high in zip(line.y, line.low or (), line.high or (), strict=True):
            assert y is None or low - 1 <= y <= high + 1  # type: ignore[operator]


def test_where_nobody_knew_a_value_the_line_has_a_gap() -> None:
    values = [1.0] * 100 + [None] * 100 + [3.0] * 100
    line = Parts([float(i) for i in range(300)], most=30).line("", values)
    assert [line.y[at] is None for at in (5, 15, 25)] == [False, True, False]


@given(st.lists(NUMBERS, min_size=1), st.lists(st.none() | NUMBERS, min_size=1))
def test_whatever_numbers_are_logged_can_be_drawn(values: list[float], steps: list[float | None]) -> None:
    (line,) = logged(values, steps).lines
    assert all(math.isfinite(x) for x in line.x)
    assert all(y is None or math.isfinite(y) for y in line.y)


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([1e308, -1e308, 1.0, 2.0], [0, 1, 2, 3]),
        ([0.0, 5e-324], [0, 1]),
        ([1.0, 2.0], [2**62, 2**62]),
        ([1.0, 2.0], [1e308, -1e308]),
    ],
)
def test_numbers_beyond_what_a_chart_can_reckon_with_are_left_out_and_told(
    values: list[float], steps: list[float | None]
) -> None:
    shown = logged(values, steps)
    assert ("2 values not drawn" in shown.summary) == (max(values) > 1e300)


def test_a_metric_is_drawn_along_its_steps_and_knows_its_times() -> None:
    shown = logged([3.0, 2.0, 1.0], [20, 0, 10])
    (line,) = shown.lines
    assert (shown.across, line.x, line.y, line.times) == ("step", [0, 10, 20], [2, 1, 3], [1, 2, 0])
    assert logged([3.0, 2.0], [None, 4]).across == "s"


def test_each_task_of_a_sweep_is_a_line_and_very_many_are_their_mean_and_range() -> None:
    def tasks(count: int) -> Chart:
        curves = [curve([number, number + 1.0], [0, 1]) for number in range(count)]
        return chart_of("loss", [Logged(label=f"fit[{n}]", curves=[c], task=n) for n, c in enumerate(curves)])

    few, many = tasks(40), tasks(101)
    assert [(line.label, line.task) for line in few.lines][3] == ("fit[3]", 3)
    assert few.summary == "last 1–40 · 40 tasks"
    (line,) = many.lines
    assert (line.y, line.low, line.high) == ([50, 51], [0, 1], [100, 101])
    assert many.summary == "last 1–101 · mean of 101 tasks"


def test_an_hour_of_samples_is_a_few_kilobytes_and_equal_columns_are_there_once() -> None:
    from upshift.report.page import as_data

    columns = {"time": list(range(3600)), "cpu": [i % 60 / 30 for i in range(3600)], "memory": [1e9] * 3600}
    figures = Figures()
    for shown in usage(Series(columns=columns), cpus=2, memory=None):
        figures.add(shown)
    assert 1000 < len(as_data(figures.all)) < 20_000
    assert len({line["x"] for shown in figures.all["charts"] for line in shown["lines"]}) == 1


def test_a_chart_says_what_was_reached_and_what_was_granted() -> None:
    columns = {"time": [1, 2, 3], "cpu": [1, 2, 3]}
    (shown,) = usage(Series(columns=columns), cpus=4, memory=None)
    assert shown.summary == "mean 2 CPUs · peak 3 CPUs · granted 4 CPUs"
    assert shown.limit == (4.0, "granted")


def test_what_was_never_measured_has_no_chart() -> None:
    columns = {"time": [1, 2], "cpu": [0, 0], "memory": [None, None], "read": [0, 0], "written": [0, 0]}
    assert [shown.title for shown in usage(Series(columns=columns), cpus=2, memory=None)] == ["CPU"]
    columns = {"time": [1, 2], "gpu.0.busy": [0, 0], "gpu.0.memory": [0, 9e9], "gpu.0.own_memory": [0, 1e9]}
    titles = [shown.title for shown in gpu_usage(Series(columns=columns))]
    assert titles == ["GPU busy", "GPU memory", "GPU memory of this step alone"]
    columns["gpu.0.own_memory"] = [0, 8.9e9]
    assert len(gpu_usage(Series(columns=columns))) == 2
