"""Rows side by side: columns, order, and the best of each metric."""

from __future__ import annotations

from typing import Any

import pytest

from upshift.errors import UsageError
from upshift.report.terminal import Page
from upshift.report.terminal.compare import sheet
from upshift.report.views.comparing import Comparison, Row, compare, short_names, told
from upshift.runs.history.values import best_of, mode_of, qualified


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        *[(name, "max") for name in ("accuracy", "test/acc", "val_f1", "top5-acc@5", "eval.bleu", "AUC")],
        *[(name, "min") for name in ("loss", "train/loss", "valLoss", "rmse", "word_error", "NLL")],
        *[(name, None) for name in ("lr", "loss_scale", "epoch", "grad_norm", "phase", "samples")],
    ],
)
def test_names_tell_whether_more_or_less_is_better(metric: str, mode: str | None) -> None:
    assert mode_of(metric) == mode


def test_the_best_is_a_finite_number() -> None:
    assert best_of([None, float("nan"), 3, 1.5, True, "x", float("-inf")], "min") == 3
    assert best_of([1, 2], None) is None
    assert best_of([None, "x"], "max") is None


def test_metrics_of_several_steps_are_told_apart() -> None:
    assert qualified([("fit", {"loss": 1, "acc": 2}), ("test", {"loss": 3})]) == {
        "fit.loss": 1,
        "acc": 2,
        "test.loss": 3,
    }


def row(name: str, given: dict[str, Any], metrics: dict[str, Any], **more: Any) -> Row:
    return Row(name=name, status="completed", given=given, metrics=metrics, seconds=1.0, **more)


ROWS = [
    row("a", {"c.lr": 0.1, "c.opt.k": "x", "s": 1}, {"loss": 0.5, "test/acc": 0.8}, curves={"loss": [3, 1]}),
    row("b", {"c.lr": 1.0, "c.opt.k": "y", "s": 1}, {"loss": 0.25, "test/acc": 0.8}),
    row("c", {"c.lr": "auto", "s": 1}, {"loss": float("nan"), "size": [3, 1, None]}),
]


def names(comparison: Comparison) -> list[str]:
    return [one.name for one in comparison.rows]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (None, "abc"),
        ("loss", "bac"),
        ("acc", "abc"),
        ("lr", "abc"),
        ("k", "abc"),
        ("size", "cab"),
        ("time", "abc"),
    ],
)
def test_rows_are_sorted_the_best_first_and_what_is_not_known_last(sort: str | None, order: str) -> None:
    assert names(compare(ROWS, "run", sort=sort)) == list(order)


def test_only_what_differs_has_a_column_and_short_names_tell_columns_apart() -> None:
    found = compare(ROWS, "run", by_best=True)
    assert found.sorted_by == "loss"
    assert (found.given, found.same) == (["c.lr", "c.opt.k"], {"s": 1})
    table = found.table()
    assert table.heads == ("run", "lr", "k", "loss", "test/acc", "size", "time")
    assert [cell.text for cell in table.rows[0]] == ["b", "1.0", "y", "0.25", "0.8", "–", "1.00 s"]
    assert [[cell.mark for cell in row] for row in table.rows] == [
        [None, None, None, "best", "best", None, None],
        [None, None, None, None, "best", None, None],
        [None] * 7,
    ]
    assert short_names(["a.lr", "b.lr", "c.d.x", "y"]) == {
        "a.lr": "a.lr",
        "b.lr": "b.lr",
        "c.d.x": "x",
        "y": "y",
    }


def test_a_name_that_is_unknown_or_not_enough_is_refused() -> None:
    rows = [row("a", {"x.lr": 1, "y.lr": 2}, {})]
    with pytest.raises(UsageError, match=r"several are called 'lr': x\.lr, y\.lr"):
        compare(rows, "run", sort="lr")
    with pytest.raises(UsageError, match="there is no metric 'los'"):
        compare(rows, "run", metrics=["los"])


def test_a_metric_of_several_tasks_is_told_by_its_best_and_its_range() -> None:
    assert told("loss", [0.5, None, 0.25]) == "0.25 (0.25–0.5)"
    assert told("loss", [0.5, None, 0.25], brief=True) == "0.25"
    assert told("size", [3, 1]) == "1–3"
    assert told("loss", [0.5]) == "0.5"
    assert told("loss", ["x"]) == told("loss", None) == "–"


def test_a_sheet_is_as_wide_as_the_page_and_gives_up_curves_first() -> None:
    found = compare(ROWS, "run", sort="loss")
    wide = sheet(found, Page(width=100))
    assert "0.5     █▁" in wide and "no room" not in wide
    medium = sheet(found, Page(width=45))
    assert "█" not in medium and "no room" not in medium
    narrow = sheet(found, Page(width=22))
    assert narrow.splitlines()[0].split() == ["run", "lr", "k", "loss"]
    assert "no room for: test/a…" in narrow
    assert max(map(len, sheet(found, Page(width=12)).splitlines()[:5])) <= 15  # name and what it is sorted by


def test_a_sentence_takes_the_room_that_is_left() -> None:
    rows = [because(one, "it failed because of this and that, and more") for one in ROWS]
    last = sheet(compare(rows, "run", metrics=["loss"], given=[]), Page(width=50)).splitlines()[2]
    assert last.endswith("it failed because of this an…") and len(last) <= 50


def because(one: Row, why: str) -> Row:
    return row(one.name, dict(one.given), dict(one.metrics), facts={"why": why})
