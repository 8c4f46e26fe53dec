"""Each step: how it stands, its four records side by side, and to be opened whatever else is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from upshift.report.html.attempt_view import attempt_view, charts_view, gpu_view
from upshift.report.html.elements import Html, join, name, tag
from upshift.report.html.evidence import Evidence
from upshift.report.html.groups import Group, took
from upshift.report.html.later import Later
from upshift.report.html.records_view import records_view
from upshift.report.html.tasks_view import columns, memory_peak, overview, table
from upshift.report.html.words import badge, seconds_of
from upshift.report.human import count
from upshift.report.reasons import counted
from upshift.runs.history import Attempt, Run, Task

_FEW = 6
"""Tasks of a step that are all shown in full."""
_FAILED, _SLOWEST, _LARGEST = 8, 3, 1
"""Of more, so many of those that failed, took longest and needed most memory."""
_REASONS = 3
_EARLIER = 3
"""Attempts before the last ones that are told at once."""


def steps_view(
    run: Run, groups: Sequence[Group], words: dict[str, str], evidence: Evidence, later: Later
) -> Html:
    """The steps.

    Parameters
    ----------
    run, groups
        What is shown.
    words
        For each group its status as people read it.
    evidence
        Where more about attempts is.
    later
        Takes what is not seen at first.
    """
    return join(*(_step(run, group, words[group.name], evidence, later) for group in groups))


def _step(run: Run, group: Group, word: str, evidence: Evidence, later: Later) -> Html:
    rows = group.records
    heading = tag(
        "h3",
        None,
        tag("a", {"href": f"#{group.anchor}", "class": "self"}, name(group.title)),
        " ",
        badge(word),
        tag("span", {"class": "time"}, seconds_of(group.seconds)),
    )
    facts = [text for text in (_shares(group), _tries(group), *_why(group), _why_not(group)) if text]
    return tag(
        "article",
        {"class": "step", "id": group.anchor, "aria-label": f"Step {group.title}"},
        heading,
        tag("p", {"class": "quiet"}, " · ".join(facts)) if facts else None,
        _earlier_failures(group),
        tag("p", {"class": "verdict"}, name(group.verdict)) if group.verdict else None,
        records_view(rows),
        _profile(group, evidence, later),
        _details(run, group, evidence, later),
    )


def notable(tasks: Sequence[Task]) -> list[Task]:
    """Those tasks that are shown in full: all, if there are few; else failures and the extremes, in order."""
    tried = [task for task in tasks if task.attempts]
    if len(tasks) <= _FEW:
        return tried
    chosen = [task for task in tried if task.status == "failed"][:_FAILED]
    chosen += [task for task in tried if task.status == "running"][:_FAILED]
    chosen += sorted(tried, key=lambda task: took(task.attempts[-1]) or 0.0)[-_SLOWEST:]
    chosen += sorted(tried, key=lambda task: memory_peak(task.attempts[-1]) or 0)[-_LARGEST:]
    wanted = {id(task) for task in chosen}
    return [task for task in tried if id(task) in wanted]


def _earlier_failures(group: Group) -> list[Html]:
    """What became of attempts before the last ones; the first few."""
    tries = [(t, attempt) for t in group.tasks if not t.cached for attempt in t.attempts[:-1]]
    lines = []
    for task, attempt in tries[:_EARLIER]:
        why = f" ({attempt.reason})" if attempt.reason else ""
        told = f": {attempt.error.message.partition(chr(10))[0]}" if attempt.error else ""
        text = f"{task.row.task}: attempt {attempt.number} {attempt.status}{why}{told}"
        lines.append(tag("p", {"class": "warn"}, name(text)))
    more = len(tries) - _EARLIER
    return (
        [*lines, tag("p", {"class": "quiet"}, f"… and {count(more, 'earlier attempt')} more.")]
        if more > 0
        else lines
    )


def _profile(group: Group, evidence: Evidence, later: Later) -> Html:
    """The card of a step with ``@gpu_profile``, at once; of several tasks the last one that there is."""
    if group.definition.settings.profile is None or not group.attempts:
        return Html("")
    attempt = group.attempts[-1]
    series = evidence.series(attempt)
    content = gpu_view(attempt, series) or join(
        tag("p", {"class": "quiet"}, "It was granted no GPU: these are its CPUs and its memory."),
        charts_view(attempt, series, gpus=False),
    )
    live = " · live" if attempt.status == "running" else ""
    return later.details(
        f"GPU profile{live}", content, key=f"{group.anchor}-gpu", opened=True, kind="profile"
    )


def _details(run: Run, group: Group, evidence: Evidence, later: Later) -> Html:
    if not group.attempts:
        return Html("")
    if not group.many:
        (task,) = group.tasks
        content = _tries_of(run, task, evidence, gpus=group.definition.settings.profile is None)
        label = "Charts, log and attempts"
    else:
        identity = f"{group.anchor}-tasks"
        later.keep(columns(group, run, identity))
        shown = notable(group.tasks)
        each = [
            tag(
                "details",
                {"class": "task"},
                tag(
                    "summary",
                    None,
                    name(str(task.row.task)),
                    " ",
                    badge("reused" if task.cached else task.status),
                ),
                _tries_of(run, task, evidence),
            )
            for task in shown
        ]
        which = "In full" if len(shown) == len(group.tasks) else "In full: failures, the slowest, the largest"
        content = join(overview(group), table(group, run, identity), tag("h4", None, which), each)
        label = f"{count(len(group.tasks), 'task')}: table, charts, logs"
    return later.details(label, content, key=group.anchor)


def _tries_of(run: Run, task: Task, evidence: Evidence, *, gpus: bool = True) -> Html:
    """The last attempt, and below it those before."""
    last, *earlier = reversed(task.attempts)
    several = bool(earlier)
    return join(
        attempt_view(run, task, last, evidence, records=several or task.index is not None, gpus=gpus),
        [_earlier(run, task, attempt, evidence) for attempt in earlier],
    )


def _earlier(run: Run, task: Task, attempt: Attempt, evidence: Evidence) -> Html:
    return tag(
        "details",
        {"class": "task"},
        tag("summary", None, f"Attempt {attempt.number} ", badge(attempt.status)),
        attempt_view(run, task, attempt, evidence, records=True),
    )


def _shares(group: Group) -> str:
    """How many tasks are what, where they are not all the same."""
    if len(group.statuses) < 2:
        return ""
    return ", ".join(f"{number:,} {status}" for status, number in group.statuses.items())


def _tries(group: Group) -> str:
    most = max((len(task.attempts) for task in group.tasks if not task.cached), default=0)
    return f"{'up to ' if len(group.tasks) > 1 else ''}{count(most, 'attempt')}" if most > 1 else ""


def _why(group: Group) -> list[str]:
    """Why its tasks ran, were reused or skipped; the commonest reasons."""
    reasons: Counter[str] = counted(task.cache_reason for task in group.tasks if task.cache_reason)
    if len(reasons) == 1 and reasons.total() == len(group.tasks):
        return list(reasons)
    told = [
        f"{number:,} of {len(group.tasks):,}: {reason}" for reason, number in reasons.most_common(_REASONS)
    ]
    more = len(reasons) - _REASONS
    return [*told, count(more, "other reason")] if more > 0 else told


def _why_not(group: Group) -> str:
    """Why nothing ran of what was cancelled before it began."""
    untouched = any(task.status == "cancelled" and not task.attempts for task in group.tasks)
    idle = [step for step in group.steps if not step.tasks and step.status == "cancelled"]
    return f"not run: {group.steps[0].hindrance}" if untouched or idle else ""
