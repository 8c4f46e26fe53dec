"""One attempt in full: its records, what failed, its charts, its GPUs, and what it printed last."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from upshift.model.settings.sizes import format_size
from upshift.report.gaps import in_words
from upshift.report.html.charts import Chart, chart
from upshift.report.html.elements import Html, join, name, tag
from upshift.report.html.evidence import TAIL, Evidence
from upshift.report.html.groups import records_of, since, took
from upshift.report.html.ranks_view import ranks_view
from upshift.report.html.records_view import devices_view, records_view
from upshift.report.html.scales import clock
from upshift.report.html.usage import gpu_usage, usage
from upshift.report.human import count, duration, short_image
from upshift.report.ranks import elsewhere
from upshift.runs.history import Attempt, Run, Task
from upshift.runtime.storage.series import Series


def attempt_view(
    run: Run, task: Task, attempt: Attempt, evidence: Evidence, *, records: bool, gpus: bool = True
) -> Html:
    """All that is known of an attempt.

    Parameters
    ----------
    run, task, attempt
        Which.
    evidence
        Where its files are.
    records
        Whether its four records are shown, too.
    gpus
        Whether its GPUs are.
    """
    series = evidence.series(attempt)
    return join(
        tag("p", {"class": "quiet"}, _facts(run, attempt)),
        records_view(records_of([attempt])) if records else None,
        failure_view(attempt),
        [tag("p", {"class": "warn"}, name(sentence)) for sentence in in_words(attempt.gaps)],
        ranks_view(run, task, attempt, evidence),
        tag("h4", None, _node(attempt, 0)) if _nodes(attempt) > 1 else None,
        charts_view(attempt, series, gpus=gpus),
        [_further_node(attempt, node, evidence) for node in range(1, _nodes(attempt))],
        _log(run, task, attempt, evidence),
    )


def _further_node(attempt: Attempt, node: int, evidence: Evidence) -> Html:
    """What a further node of a step was used for; its GPUs are in the table with all of them."""
    series = evidence.series(attempt, node)
    if series is None:
        return Html("")
    charts = [chart(each) for each in (*_usage(attempt, series), *gpu_usage(series))]
    return join(tag("h4", None, _node(attempt, node)), tag("div", {"class": "charts"}, charts))


def _nodes(attempt: Attempt) -> int:
    return (attempt.granted.nodes if attempt.granted is not None else None) or 1


def _node(attempt: Attempt, number: int) -> str:
    known = attempt.used.details.get("by_node", ()) if attempt.used is not None else ()
    host = next((one["host"] for one in known if one["node"] == number), "")
    return f"Node {number}" + (f", {host}" if host else "")


def charts_view(attempt: Attempt, series: Series | None, *, gpus: bool) -> Html:
    """The charts of its usage, and its GPUs."""
    if series is None:
        return tag("p", {"class": "quiet"}, "It was over before the first sample; the totals are above.")
    return join(
        tag("div", {"class": "charts"}, [chart(each) for each in _usage(attempt, series)]),
        gpu_view(attempt, series) if gpus else None,
    )


def _usage(attempt: Attempt, series: Series) -> list[Chart]:
    granted = attempt.granted
    return usage(
        series,
        cpus=granted.cpu_count if granted else None,
        memory=granted.memory if granted else None,
    )


def gpu_view(attempt: Attempt, series: Series | None) -> Html:
    """Its devices, and utilization, memory, power and temperature of each over time."""
    charts = [chart(each) for each in gpu_usage(series)] if series is not None else []
    return join(devices_view(attempt, series), tag("div", {"class": "charts"}, charts) if charts else None)


def failure_view(attempt: Attempt) -> Html:
    """Why it failed, where, and what to do; nothing where it did not."""
    failure = attempt.error
    if failure is None:
        return Html("")
    node = f" on node {failure.node}" if failure.node else ""
    places = elsewhere(failure, attempt.stacks)
    return tag(
        "div",
        {"class": "failure"},
        tag("p", {"class": "message"}, name(failure.message)),
        tag("pre", {"tabindex": 0}, failure.traceback.rstrip()) if failure.traceback else None,
        tag("p", None, tag("b", None, "Where "), tag("code", None, failure.where)) if failure.where else None,
        tag("p", None, tag("b", None, "Rank "), f"{failure.rank}{node}")
        if failure.rank is not None
        else None,
        tag("p", None, name(places)) if places else None,
        tag("p", {"class": "fix"}, tag("b", None, "What to do "), name(failure.fix)) if failure.fix else None,
    )


def _facts(run: Run, attempt: Attempt) -> str:
    seconds = took(attempt)
    facts = [
        f"attempt {attempt.number}",
        f"of run {attempt.run}, which it was reused from" if attempt.run != run.id else "",
        attempt.status + (f" ({attempt.reason})" if attempt.reason else ""),
        f"on {attempt.node}" if attempt.node else "",
        f"by {attempt.backend}",
        f"in image {short_image(attempt.image)}" if attempt.image else "",
        f"from {clock(since(attempt.started, run))}" if attempt.started and attempt.run == run.id else "",
        f"for {duration(seconds)}" if seconds is not None else "",
        *_checkpoints(attempt),
    ]
    return " · ".join(filter(None, facts))


def _checkpoints(attempt: Attempt) -> Iterator[str]:
    had = attempt.checkpoints
    if had is not None and had.resumed_from:
        yield f"went on from checkpoint {had.resumed_from}"
    if had is not None and had.newest:
        yield f"{count(had.saved, 'checkpoint')} saved, the last of {format_size(had.bytes)}"


def _log(run: Run, task: Task, attempt: Attempt, evidence: Evidence) -> Html:
    text, more = evidence.tail(attempt)
    if not text:
        return Html("")
    command = f"upshift logs {run.id} {shlex.quote(str(task.row.task))}"
    if len(task.attempts) > 1:
        command += f" --attempt {attempt.number}"
    title = f"The last {TAIL // 1024} KB of what it printed" if more else "What it printed"
    return join(
        tag("h4", None, title),
        tag("pre", {"class": "log", "tabindex": 0, "aria-label": title}, text),
        tag("p", {"class": "quiet"}, "All of it: ", tag("code", None, command)) if more else None,
    )
