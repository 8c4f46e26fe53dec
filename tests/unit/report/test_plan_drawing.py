"""Graphs in characters: every line is there, and none that is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upshift.report.terminal import draw


def drawn(needs: Mapping[str, Sequence[str]], most: int = 40) -> list[str] | None:
    return draw(needs, dict.fromkeys(needs, "●"), most=most)


def test_a_chain_is_one_column() -> None:
    assert drawn({"a": [], "b": ["a"], "c": ["b"]}) == ["●", "●", "●"]


def test_a_diamond() -> None:
    assert drawn({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}) == [
        "●",
        "├─●",
        "● │",
        "●─╯",
    ]


def test_what_is_needed_by_many_takes_one_lane() -> None:
    assert drawn(
        {"load": [], "clean": ["load"], "score": ["clean"], "report": ["load", "clean", "score"]}
    ) == [
        "●",
        "├─●",
        "│ ├─●",
        "●─┴─╯",
    ]


def test_a_line_passes_behind_a_lane_that_it_has_nothing_to_do_with() -> None:
    needs = {"load": [], "a": ["load"], "b": ["load"], "end": ["load", "a", "b"]}
    assert drawn(needs) == ["●", "├─●", "├─│─●", "●─┴─╯"]


def test_a_lane_that_goes_on_is_not_closed() -> None:
    needs = {"a": [], "b": [], "c": ["a", "b"], "d": ["b", "c"]}
    assert drawn(needs) == ["●", "│ ●", "●─┤", "●─╯"]


def test_nodes_that_have_nothing_to_do_with_each_other_never_stand_above_each_other() -> None:
    lines = drawn({"a": [], "b": [], "c": []})
    assert lines == ["●", "  ●", "●"]


def test_what_ended_leaves_its_column_to_others() -> None:
    needs: dict[str, list[str]] = {}
    for i in range(30):
        needs[f"load_{i}"] = []
        needs[f"use_{i}"] = [f"load_{i}"]
    lines = drawn(needs)
    assert lines is not None
    assert max(map(len, lines)) <= 3


def test_a_drawing_that_would_be_too_wide_is_not_made() -> None:
    needs: dict[str, list[str]] = {f"s{i}": [] for i in range(30)}
    needs["join"] = list(needs)
    assert drawn(needs) is None
    assert drawn(needs, most=59) is not None


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn({}) == []
