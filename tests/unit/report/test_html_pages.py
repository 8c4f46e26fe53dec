"""Whole pages, and the files that they are written to, without a browser."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from benchmarks.made_up import MadeUp, definition, large, used
from recorder import Recorder
from upshift.errors import StoreError, UsageError
from upshift.model.graph import FromStep, Graph, Node
from upshift.model.spec import Failure
from upshift.report.page import report_page, write_page, write_until_over
from upshift.report.views.graph import picture
from upshift.report.views.groups import connections, grouped
from upshift.report.views.run import run_view
from upshift.runs.catalog.opening import INTERRUPTED
from upshift.runs.catalog.rows import TaskRow
from upshift.runs.history.runs import Run

ONE = Graph(pipeline="p", steps={"f": definition()}, nodes=(Node(name="f", step="f"),))


def words(page: str) -> str:
    """The text of a page that is seen at once."""
    body = re.sub(r"<(style|script|noscript)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def chain(length: int) -> Graph:
    """``add`` so many times, each after the one before, and one ``load`` before them all."""
    names = ["load", *(f"add_{n}" for n in range(length))]
    nodes = [Node(name="load", step="load")]
    for before, name in itertools.pairwise(names):
        nodes.append(Node(name=name, step="add", inputs={"x": FromStep(node=before)}))
    return Graph(pipeline="long", steps={"load": definition(), "add": definition()}, nodes=tuple(nodes))


def test_a_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    page = report_page(large(tmp_path, tasks=20, seconds=30))
    assert "default-src &#39;none&#39;" in page
    assert re.findall(r"(?:src|href)=[\"'](?!#|data:)[^\"']*", page) == []
    assert re.findall(r"url\(|@import", page) == []


def test_the_results_of_a_flow_are_the_artifacts_that_its_last_step_left(tmp_path: Path) -> None:
    view = run_view(Recorder(tmp_path).flow())
    assert [(value.name, value.text) for value in view.result] == [
        ("name", "digits"),
        ("output", "[1]"),
        ("score", "2"),
        ("best", "2"),
        ("told.best", "2"),
        ("data", "bytes, 3 KB"),
    ]
    assert view.outputs is not None
    made = {row[0].text: row[1].text for row in view.outputs.rows}
    assert made == {
        "start.name": "digits",
        "start.data": "bytes",
        "start.output": "[1]",
        "train.score": "2 × int",
        "join.score": "2",
        "join.best": "2",
        "end.told": "{'best': 2}",
    }
    assert "cache=False" not in words(report_page(Recorder(tmp_path).flow()))


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    page = report_page(MadeUp(tmp_path, Graph(pipeline="nothing")).record())
    assert "No steps: the pipeline called none." in words(page)


def test_a_run_that_has_not_begun_shows_its_steps(tmp_path: Path) -> None:
    page = report_page(MadeUp(tmp_path, ONE, status="running", ended=None).record(), every=2)
    assert "still running when this was made" in words(page)
    assert 'data-every="2"' in page


def test_a_run_that_is_over_never_loads_itself_again(tmp_path: Path) -> None:
    made = MadeUp(tmp_path, ONE)
    made.task("f", start=0, seconds=1)
    assert "data-every=" not in report_page(made.record(), every=2).partition("<script>")[0]


def test_an_interrupted_run_says_how_it_goes_on(tmp_path: Path) -> None:
    made = MadeUp(tmp_path, ONE, status="running", ended=None)
    made.other(TaskRow(task=made.id("f"), status="running"))
    run = made.record()
    text = words(report_page(Run(attrs.evolve(run.row, status=INTERRUPTED), made.catalog, made.store)))
    assert f"upshift resume {run.id}" in text
    assert text.count("interrupted") >= 3


def test_a_run_whose_records_are_gone_says_so(tmp_path: Path) -> None:
    run = MadeUp(tmp_path, ONE).record()
    (tmp_path / "store" / "runs" / run.id / "graph.json").unlink()
    with pytest.raises(StoreError, match="has no graph"):
        report_page(run)


def test_files_that_are_gone_or_torn_leave_the_rest(tmp_path: Path) -> None:
    made = MadeUp(tmp_path, ONE)
    card = made.card("gone", "image/png", b"x")
    made.store.blob_path(card.digest).unlink()
    task = made.task("f", start=0, seconds=30, used=used(30, 1, 1), cards=[card])
    made.file(task, "series", b'{"version":1,"columns":["time","cpu"]}\n[1,0.5]\n[2')
    made.file(task, "metrics", b"\xff\xfe{torn")
    page = report_page(made.record())
    assert "too large, or not in the store any more" in page
    assert "mean 0.5 CPUs" in page


def test_many_calls_of_one_function_are_told_together(tmp_path: Path) -> None:
    graph = chain(400)
    made = MadeUp(tmp_path, graph)
    for number, node in enumerate(graph.nodes):
        made.task(node.name, start=number, seconds=1, why="first run")
    run = made.record()
    groups = grouped(run, run.graph)
    assert [(group.title, group.status) for group in groups] == [
        ("load", "completed"),
        ("add ×400", "completed"),
    ]
    assert connections(groups, run.graph) == {"load": [], "add": ["load"]}
    page = report_page(run)
    assert len(page) < 200_000


def test_steps_that_need_each_other_in_turn_once_they_are_told_together_have_no_picture(
    tmp_path: Path,
) -> None:
    nodes = [Node(name="a_0", step="a")]
    for number in range(1, 200):
        nodes.append(
            Node(name=f"n_{number}", step="ab"[number % 2], inputs={"x": FromStep(node=nodes[-1].name)})
        )
    graph = Graph(pipeline="p", steps={"a": definition(), "b": definition()}, nodes=tuple(nodes))
    run = MadeUp(tmp_path, graph).record()
    assert connections(grouped(run, run.graph), run.graph) is None
    assert "too large for a picture" in words(report_page(run))


def test_what_failed_in_the_same_place_is_told_once(tmp_path: Path) -> None:
    graph = Graph(pipeline="p", steps={"f": definition()}, nodes=(Node(name="f", step="f", over=("x",)),))
    made = MadeUp(tmp_path, graph, status="failed")
    for index in range(30):
        where = "p.py:3" if index else "p.py:9"
        failure = Failure(reason="user-error", message=f"ValueError: {index}", where=where)
        made.task("f", index, start=0, seconds=1, failure=failure)
    run = made.record()
    drawn = picture(grouped(run, run.graph), run.graph)
    assert drawn is not None
    assert [node.more for node in drawn.nodes] == ["30/30 · 30 failed"]  # and no time: it is full
    page = report_page(run)
    failures = page.partition('<section id="failures"')[2].partition("</section>")[0]
    assert failures.count("<article") == 2
    assert "In the same place: " in failures and "f[2], f[3]" in failures and "and 16 more" in failures


def test_what_was_cancelled_while_it_waited_is_no_failure(tmp_path: Path) -> None:
    cancelled = Failure(reason="cancelled", message="cancelled while it waited for devices")
    made = MadeUp(tmp_path, ONE, status="cancelled")
    made.task("f", start=0, seconds=0, failure=cancelled)
    assert "Failures" not in words(report_page(made.record()))


def test_what_was_cancelled_while_it_ran_is_told_with_what_it_used(tmp_path: Path) -> None:
    cancelled = Failure(reason="cancelled", message="cancelled while it ran")
    made = MadeUp(tmp_path, ONE, status="cancelled")
    made.task("f", start=0, seconds=3, failure=cancelled, used=used(3, 0.5, 10**8))
    assert "cancelled while it ran" in words(report_page(made.record())).partition("Failures")[2]


def test_a_retry_that_helped_is_told(tmp_path: Path) -> None:
    made = MadeUp(tmp_path, ONE)
    lost = Failure(reason="out-of-memory", message="it grew to 2 GB")
    made.task("f", start=0, seconds=1, failure=lost)
    made.task("f", start=2, seconds=1, attempt=2)
    text = words(report_page(made.record()))
    assert "f: attempt 1 failed (out-of-memory): it grew to 2 GB" in text
    assert "Failures" not in text


def test_a_page_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_page(file, "one")
    write_page(file, "two \N{GREEK SMALL LETTER ALPHA}")
    assert file.read_text(encoding="utf-8") == "two \N{GREEK SMALL LETTER ALPHA}"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_page_that_cannot_be_written_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder") as refused:
        write_page(tmp_path, "page")
    assert "report.html" in (refused.value.fix or "")
    with pytest.raises(UsageError, match="cannot be written") as refused:
        write_page(tmp_path / "no" / "report.html", "page")
    assert refused.value.why == "No such file or directory"


def test_a_page_is_written_again_until_the_run_is_over(tmp_path: Path) -> None:
    made = MadeUp(tmp_path, ONE, status="running", ended=None)
    run = made.record()
    over = Run(attrs.evolve(run.row, status="completed", ended=run.row.started + 5), made.catalog, made.store)
    runs = iter([run, run, over])
    file = tmp_path / "report.html"
    seen: list[bool] = []

    def look() -> tuple[Run, Sequence[Run]]:
        return next(runs), ()

    def wait(seconds: float) -> None:
        seen.append(f'data-every="{seconds}"' in file.read_text(encoding="utf-8"))

    told: list[bool] = []
    assert write_until_over(file, look, wait, written=lambda: told.append(file.exists()), every=1.5) is over
    assert seen == [True, True]
    assert told == [True]
    assert 'data-every="1.5"' not in file.read_text(encoding="utf-8")


def test_a_page_that_nobody_writes_any_more_does_not_load_itself_again(tmp_path: Path) -> None:
    run = MadeUp(tmp_path, ONE, status="running", ended=None).record()
    file = tmp_path / "report.html"

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_until_over(file, lambda: (run, ()), interrupt)
    page = file.read_text(encoding="utf-8")
    assert "data-every=" not in page.partition("<script>")[0]
    assert "still running when this was made" in page
