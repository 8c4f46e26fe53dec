"""Curves in one line of characters."""

from __future__ import annotations

import math

import pytest

from upshift.report.terminal import spark


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([1.0], ""),
        ([2, 2, 2], ""),
        (["a", True], ""),
        ([0, 1], "▁█"),
        ([8, 4, 2, 1, 0], "█▅▃▂▁"),
        ([0, math.nan, 7], "▁ █"),
        ([0, math.inf, "x", 7], "▁  █"),
        ([-1e308, 1e308, 0], "▁ ▁"),  # their difference is no number
        (list(range(32)), "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██"),
    ],
)
def test_the_shape_of_a_curve(values: list[object], drawn: str) -> None:
    assert spark(values) == drawn


def test_many_values_are_drawn_in_so_many_characters() -> None:
    drawn = spark([i % 7 for i in range(1001)], width=10)
    assert len(drawn) == 10 and set(drawn) <= set("▃▄▅▆")
