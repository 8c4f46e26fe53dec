"""The head of the page: what ran, how it went, what it took, and what a reader should know first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from upshift.model.settings.sizes import format_size
from upshift.report.gaps import of_tasks
from upshift.report.html.attempt_view import failure_view
from upshift.report.html.elements import Html, join, name, tag
from upshift.report.html.groups import Group, took
from upshift.report.html.ranks_view import stacks_view
from upshift.report.html.records_view import is_short
from upshift.report.html.tasks_view import memory_peak
from upshift.report.html.words import badge
from upshift.report.human import count, duration, moment
from upshift.report.records import RECORDS, SHORT
from upshift.runs.history import Attempt, Run, Task

_FAILURES = 20
_NAMED = 12
"""Failures that are told in full."""


def overview(run: Run, groups: Sequence[Group], *, now: str) -> Html:
    """Name, status, facts and figures."""
    return join(
        tag("p", {"class": "kicker"}, "run ", tag("code", None, run.id), " on ", name(run.target)),
        tag("h1", None, name(run.pipeline), " ", badge(run.row.status)),
        _facts(run, now),
        _figures(run, groups),
        _notices(groups),
    )


def failures(groups: Sequence[Group]) -> Html:
    """Message, traceback and remedy of what failed; what failed in the same place is told together."""
    failed = [
        (task, task.attempts[-1])
        for group in groups
        for task in group.tasks
        if task.status in ("failed", "cancelled") and task.attempts and _has_failed(task.attempts[-1])
    ]
    if not failed:
        return Html("")
    alike: dict[tuple[str, str, str | None], list[tuple[Task, Attempt]]] = {}
    for task, attempt in failed:
        assert attempt.error is not None
        alike.setdefault((task.row.task.step, attempt.error.reason, attempt.error.where), []).append(
            (task, attempt)
        )
    more = len(alike) - _FAILURES
    return join(
        [_failure(*same[0], [task for task, _ in same[1:]]) for same in list(alike.values())[:_FAILURES]],
        tag("p", {"class": "quiet"}, f"… and {count(more, 'more kind')} of failure.") if more > 0 else None,
    )


def _has_failed(attempt: Attempt) -> bool:
    """Whether there is something to tell: nothing went wrong in one that was cancelled while it waited."""
    return attempt.error is not None and not (attempt.error.reason == "cancelled" and attempt.used is None)


def outputs(groups: Sequence[Group]) -> Html:
    """Name, type, size and digest of what each step made; many of a kind together."""
    rows = [row for group in groups for row in _made(group)]
    if not rows:
        return Html("")
    head = [tag("th", {"scope": "col"}, title) for title in ("output", "type", "size", "digest")]
    body = [tag("tr", None, [tag("td", None, cell) for cell in row]) for row in rows]
    plain = tag(
        "table", {"class": "plain"}, tag("thead", None, tag("tr", None, head)), tag("tbody", None, body)
    )
    return tag("div", {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": "Outputs"}, plain)


def _facts(run: Run, now: str) -> Html:
    running = run.status in ("pending", "running")
    took = "" if run.ended is None else duration((run.ended - run.started).total_seconds())
    facts: dict[str, Html | str | None] = {
        "started": moment(run.started),
        "took": took or (f"still running when this was made, {now}" if running else None),
        "by": name(run.user) if run.user else None,
        "target": name(run.target),
        "tags": join([tag("span", {"class": "tag"}, tag_) for tag_ in run.tags]) if run.tags else None,
        "parameters": join([_parameter(key, text) for key, text in run.param_texts.items()]) or None,
    }
    pairs = [
        tag("div", None, tag("dt", None, label), tag("dd", None, told))
        for label, told in facts.items()
        if told
    ]
    resumable = run.status == "cancelled"
    hint = tag(
        "p",
        {"class": "quiet"},
        "It goes on from what is done with ",
        tag("code", None, f"upshift resume {run.id}"),
    )
    return join(tag("dl", {"class": "facts"}, pairs), hint if resumable else None)


def _parameter(key: str, text: str) -> Html:
    return tag("span", {"class": "parameter"}, name(key), " = ", tag("code", None, text))


def _figures(run: Run, groups: Sequence[Group]) -> Html:
    attempts = [
        attempt
        for group in groups
        for task in group.tasks
        for attempt in task.attempts
        if attempt.run == run.id
    ]
    tasks = [task for group in groups for task in group.tasks]
    statuses = Counter("reused" if task.cached else task.status for task in tasks)
    shares = (
        ", ".join(f"{number:,} {status}" for status, number in statuses.items()) if len(statuses) > 1 else ""
    )
    cpu = math.fsum(_detail(attempt, "cpu_seconds") for attempt in attempts)
    peak = max((memory_peak(attempt) or 0 for attempt in attempts), default=0)
    figures = [
        ("steps", f"{sum(len(group.steps) for group in groups):,}", ""),
        ("tasks", f"{len(tasks):,}", shares),
        ("CPU time", duration(cpu), "") if cpu else None,
        ("peak memory of a task", format_size(peak), "") if peak else None,
        _gpus(attempts),
    ]
    cells = [
        tag(
            "div",
            None,
            tag("dt", None, label),
            tag("dd", None, value, tag("small", None, more) if more else None),
        )
        for label, value, more in filter(None, figures)
    ]
    return tag("dl", {"class": "figures"}, cells)


def _gpus(attempts: Sequence[Attempt]) -> tuple[str, str, str] | None:
    """GPU time that was granted, and what part of it they were busy."""
    granted = busy = 0.0
    for attempt in attempts:
        seconds = took(attempt) or 0.0
        gpus = len(attempt.granted.gpus or ()) if attempt.granted else 0
        granted += gpus * seconds
        busy += _detail(attempt, "gpu_mean") * seconds
    if not granted:
        return None
    return "GPU time", duration(granted), f"{100 * busy / granted:.0f} % busy" if busy else ""


def _detail(attempt: Attempt, key: str) -> float:
    value = attempt.used.details.get(key) if attempt.used else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def _notices(groups: Sequence[Group]) -> Html:
    """What was granted less than was asked for, and what is not on record."""
    lines = []
    for group in groups:
        rows = group.records
        if is_short(rows):
            asked, granted = RECORDS.index("asked"), RECORDS.index("granted")
            short = [row for row in rows if row[granted].endswith(SHORT)]
            told = "; ".join(
                f"{row[asked]} asked, {row[granted].removesuffix(SHORT)} granted" for row in short
            )
            lines.append(
                tag("li", None, tag("a", {"href": f"#{group.anchor}"}, name(group.title)), f": {told}")
            )
        for who, what in of_tasks(group.tasks):
            link = tag("a", {"href": f"#{group.anchor}"}, name(who)) if who else None
            lines.append(tag("li", None, link, f": {what}" if who else what))
    return tag("ul", {"class": "notices"}, lines) if lines else Html("")


def _failure(task: Task, attempt: Attempt, alike: Sequence[Task]) -> Html:
    tries = f" after {count(len(task.attempts), 'attempt')}" if len(task.attempts) > 1 else ""
    return tag(
        "article",
        {"class": "failed-task"},
        tag(
            "h3",
            None,
            name(str(task.row.task)),
            " ",
            badge(task.status),
            tag("span", {"class": "time"}, attempt.reason, tries),
        ),
        failure_view(attempt),
        stacks_view(attempt),
        tag("p", {"class": "quiet"}, "In the same place: ", name(_listed(alike)), ".") if alike else None,
    )


def _listed(tasks: Sequence[Task]) -> str:
    names = ", ".join(str(task.row.task) for task in tasks[:_NAMED])
    return names + (f" and {len(tasks) - _NAMED:,} more" if len(tasks) > _NAMED else "")


def _made(group: Group) -> list[tuple[Html | str, ...]]:
    found: dict[str, list[tuple[str, int, str]]] = {}
    for task in group.tasks:
        for output, artifact in task.artifacts.items():
            found.setdefault(output, []).append((artifact.type, artifact.bytes, artifact.digest))
    rows: list[tuple[Html | str, ...]] = []
    for output, made in found.items():
        label = group.name if output == "output" else f"{group.name}.{output}"
        kinds = list(dict.fromkeys(kind for kind, _, _ in made))
        kind = " | ".join(kinds) if len(kinds) <= 3 else f"{len(kinds)} types"
        size = format_size(sum(size for _, size, _ in made))
        if group.many:
            digest: Html | str = f"{len({digest for _, _, digest in made}):,} different"
            rows.append((name(label), f"{len(made):,} × {kind}", size, digest))
        else:
            rows.append((name(label), kind, size, tag("code", {"class": "digest"}, made[0][2])))
    return rows
