"""One attempt in full: its records, what failed, its charts, its GPUs, and what it printed last."""

from __future__ import annotations

import shlex

from upshift.report.html.charts import chart
from upshift.report.html.elements import Html, join, name, tag
from upshift.report.html.evidence import TAIL, Evidence
from upshift.report.html.groups import records_of, since, took
from upshift.report.html.records_view import devices_view, records_view
from upshift.report.html.scales import clock
from upshift.report.html.usage import gpu_usage, usage
from upshift.report.human import duration
from upshift.spec.task import Failure
from upshift.store.history import Attempt, Run, Task
from upshift.store.series import Series


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
        failure_view(attempt.error) if attempt.error is not None else None,
        charts_view(attempt, series, gpus=gpus),
        _log(run, task, attempt, evidence),
    )


def charts_view(attempt: Attempt, series: Series | None, *, gpus: bool) -> Html:
    """The charts of its usage, and its GPUs."""
    if series is None:
        return tag("p", {"class": "quiet"}, "It was over before the first sample; the totals are above.")
    granted = attempt.granted
    whole = usage(
        series,
        cpus=granted.cpu_count if granted else None,
        memory=granted.memory if granted else None,
    )
    return join(
        tag("div", {"class": "charts"}, [chart(each) for each in whole]),
        gpu_view(attempt, series) if gpus else None,
    )


def gpu_view(attempt: Attempt, series: Series | None) -> Html:
    """Its devices, and utilization, memory, power and temperature of each over time."""
    charts = [chart(each) for each in gpu_usage(series)] if series is not None else []
    return join(devices_view(attempt, series), tag("div", {"class": "charts"}, charts) if charts else None)


def failure_view(failure: Failure) -> Html:
    """Why it failed, where, and what to do."""
    return tag(
        "div",
        {"class": "failure"},
        tag("p", {"class": "message"}, name(failure.message)),
        tag("pre", {"tabindex": 0}, failure.traceback.rstrip()) if failure.traceback else None,
        tag("p", None, tag("b", None, "Where "), tag("code", None, failure.where)) if failure.where else None,
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
        f"from {clock(since(attempt.started, run))}" if attempt.started and attempt.run == run.id else "",
        f"for {duration(seconds)}" if seconds is not None else "",
    ]
    return " · ".join(filter(None, facts))


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
