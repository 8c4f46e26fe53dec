"""The file of what an attempt has logged, and what is known of it in short."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from upshift.model.spec import MetricSummary, TaskResult, from_json, to_json
from upshift.model.spec.task import TaskId
from upshift.runtime.storage import metrics
from upshift.runtime.storage.metrics import Summaries, first_of, header, read_by_rank, summaries_of


def written(path: Path, *lines: object) -> Path:
    path.write_bytes(b"".join(n if isinstance(n, bytes) else json.dumps(n).encode() + b"\n" for n in lines))
    return path


def test_points_come_back_by_name_with_their_steps_and_times(tmp_path: Path) -> None:
    path = written(
        tmp_path / "0.1.metrics",
        header(["loss", "accuracy"]),
        [0, 0.5, 1, 0.75, 0.5],
        [0, 1.0, 2, 0.25, 0.75],
    )
    found = first_of(read_by_rank(path))
    assert list(found) == ["loss", "accuracy"]
    loss = found["loss"]
    assert (list(loss.values), list(loss.steps), list(loss.times)) == ([0.75, 0.25], [1, 2], [0.5, 1.0])
    assert loss.summary == MetricSummary(last=0.25, step=2, min=0.25, max=0.75, count=2)
    assert found["accuracy"].last == 0.75


def test_metrics_of_several_ranks_are_those_of_the_first_and_of_each(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m",
        header(["loss", "own"], 3),
        [0, 0.1, 1, 30, 31],
        header(["loss"]),
        [1, 0.2, 1, 1],
        [0, 0.3, 2, 32, 33],
        {"version": 1, "names": ["loss"], "rank": -1},
        [2, 0.4, 3, 9],
        {"version": 1, "names": ["loss"], "rank": "x"},
        [3, 0.4, 3, 9],
    )
    by_rank = read_by_rank(path)
    assert {rank: list(curves) for rank, curves in by_rank.items()} == {0: ["loss"], 3: ["loss", "own"]}
    assert list(by_rank[3]["loss"].values) == [30, 32]
    first = first_of(read_by_rank(path))
    assert {name: (curve.rank, list(curve.values)) for name, curve in first.items()} == {
        "loss": (0, [1]),
        "own": (3, [31, 33]),
    }
    short = summaries_of(by_rank)
    assert {name: (s.last, s.rank, s.ranks) for name, s in short.items()} == {
        "loss": (1, 0, 2),
        "own": (33, 3, 1),
    }


def test_a_metric_that_is_logged_with_others_and_alone_keeps_its_order(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m",
        header(["loss"]),
        [0, 0.1, None, 3],
        header(["loss", "lr"]),
        [1, 0.1, None, 2, 0.5],
        [0, 0.1, None, 1],
    )
    assert list(first_of(read_by_rank(path))["loss"].values) == [3, 2, 1]


def test_what_is_no_finite_number_is_kept_and_not_the_least_or_the_greatest(tmp_path: Path) -> None:
    lines = [[0, 0, 0, "NaN"], [0, 0, 1, 2.5], [0, 0, 2, "-Infinity"], [0, 0, 3, "Infinity"]]
    loss = first_of(read_by_rank(written(tmp_path / "m", header(["loss"]), *lines)))["loss"]
    first, second, third, fourth = loss.values
    assert isinstance(first, float) and math.isnan(first)
    assert (second, third, fourth) == (2.5, -math.inf, math.inf)
    assert (loss.min, loss.max, loss.summary.last) == (2.5, 2.5, "Infinity")


def test_texts_and_booleans_have_neither_a_least_nor_a_greatest(tmp_path: Path) -> None:
    path = written(tmp_path / "m", header(["phase", "ok"]), [0, 0, 0, "warm-up", True])
    found = first_of(read_by_rank(path))
    assert found["phase"].summary == MetricSummary(last="warm-up", step=0)
    assert (found["ok"].last, found["ok"].min) == (True, None)


def test_a_torn_end_and_strange_lines_are_left_out(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m",
        [0, 0.0, 0, 1.0],  # before any header
        header(["loss"]),
        [0, 0.0, 1, 1.0],
        b"\n\x00\xff{\n",
        [0, 0.0, 2],
        [7, 0.0, 2, 1.0],
        "text",
        [0, 0.0, 3, 3.0],
        b"[0,0.1,4,0.2",
    )
    assert list(first_of(read_by_rank(path))["loss"].values) == [1.0, 3.0]


@pytest.mark.parametrize(
    "line",
    [
        b'{"names":5}',
        b'{"names":[5]}',
        b'{"names":["a","a"]}',
        b'{"names":{"a":1}}',
        b"[1,0.0,1]",
        b"[true,0.0,1,1.0]",
        b'[0,"now",1,1.0]',
        b"[0,null,1,1.0]",
        b'[0,0.0,"first",1.0]',
        b"[0,0.0,NaN,1.0]",
        b"[0,0.0,1,[1.0]]",
        b"[0,0.0,1,null]",
        b"[0,0.0,1,%d]" % 10**400,
        b"[0,0.0,%d,1.0]" % 10**400,
        b"[" * 100_000,
    ],
)
def test_strange_lines_do_no_harm_to_others(tmp_path: Path, line: bytes) -> None:
    path = written(
        tmp_path / "m",
        header(["loss"]),
        [0, 0.0, 1, 1.0],
        line + b"\n",
        [1, 0.5, 1, 1.0, 2.0],
        [1, 0.5, 2, 1.5, 2.0],
        [0, 1.0, 2, 3.0],
    )
    found = first_of(read_by_rank(path))
    assert list(found) == ["loss"]
    assert (list(found["loss"].values), list(found["loss"].steps)) == ([1.0, 3.0], [1, 2])
    assert found["loss"].summary.max == 3.0


def test_lines_are_whole_wherever_blocks_end(tmp_path: Path) -> None:
    rows = [[0, i / 10, i, i * 1.5] for i in range(200)]
    path = written(tmp_path / "m", header(["loss"]), *rows)
    whole = first_of(read_by_rank(path))["loss"]
    before = metrics._BLOCK
    try:
        for size in (1, 7, 64):
            metrics._BLOCK = size
            assert first_of(read_by_rank(path))["loss"] == whole
    finally:
        metrics._BLOCK = before
    assert len(whole) == 200


def test_no_file_is_no_metrics(tmp_path: Path) -> None:
    assert first_of(read_by_rank(tmp_path / "none")) == {}


def test_a_summary_that_grows_says_what_the_whole_file_says(tmp_path: Path) -> None:
    names = [["loss"], ["loss", "phase"]]
    rows = [[i % 2, i / 8, i, (i * 37) % 11, *(["a"] if i % 2 else [])] for i in range(50)]
    rows.append([0, 9.0, 50, "NaN"])
    grown = Summaries()
    for at in range(0, len(rows), 7):
        grown.add(rows[at : at + 7], names)
    curves = first_of(read_by_rank(written(tmp_path / "m", *map(header, names), *rows)))
    assert grown.by_name() == {name: curve.summary for name, curve in curves.items()}


def test_only_so_many_metrics_are_summed_up() -> None:
    found = Summaries()
    names = [[f"m{i}" for i in range(metrics.MOST + 5)]]
    found.add([[0, 0.0, None, *range(len(names[0]))]], names)
    assert len(found.by_name()) == metrics.MOST
    assert list(found.by_name(2)) == ["m0", "m1"]


def test_a_result_with_summaries_is_plain_json_and_comes_back() -> None:
    result = TaskResult(
        task=TaskId(run="r", step="s"),
        attempt=1,
        status="completed",
        metrics={"loss": MetricSummary(last="NaN", step=3, min=0.5, max=2.0, count=4)},
    )
    text = to_json(result)
    assert (
        json.loads(text, parse_constant=lambda name: f"not JSON: {name}")["metrics"]["loss"]["last"] == "NaN"
    )
    assert from_json(TaskResult, text) == result
