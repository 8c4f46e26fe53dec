"""The tasks of a step that has many: how they differ, at a glance, and a table that shows any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from upshift.model.settings.sizes import format_size
from upshift.report.html.elements import Html, data, join, tag, visible
from upshift.report.html.groups import Group, records_of, since, took
from upshift.report.html.scales import around, ticks
from upshift.report.html.words import status_word
from upshift.report.human import duration
from upshift.runs.history import Attempt, Run, Task

_CELLS = 400
"""Places of the strip; more tasks share them."""
_LEVELS = 5
_BINS = 40
_ORDER = ("failed", "cancelled", "running", "pending", "skipped", "completed", "reused")
"""The first one that any of the tasks has that share a place gives it its colour."""
_LONGEST = 300
"""Letters of a message in the table."""


def overview(group: Group) -> Html:
    """A strip with a place for each task, and how time and memory are distributed."""
    peaks = [peak for attempt in group.attempts if (peak := memory_peak(attempt)) is not None]
    return join(
        _strip(group.tasks) if len(group.tasks) > 1 else None,
        tag(
            "div",
            {"class": "charts"},
            _histogram("Time", group.seconds, duration),
            _histogram("Peak memory", [float(peak) for peak in peaks], format_size),
        ),
    )


def table(group: Group, run: Run, identity: str) -> Html:
    """The table, which the script of the page fills: any number of tasks, a screenful of rows."""
    return join(
        tag("div", {"class": "tasks", "data-tasks": identity, "data-step": group.name}),
        tag("noscript", None, "The table of tasks needs JavaScript."),
    )


def columns(group: Group, run: Run, identity: str) -> Html:
    """What the table shows, by column; each text is there once."""
    texts: dict[str, int] = {}

    def number_of(text: str) -> int:
        return texts.setdefault(visible(text), len(texts))

    rows: dict[tuple[str, ...], int] = {}
    fields: dict[str, list[Any]] = {key: [] for key in _FIELDS}
    for task in group.tasks:
        attempt = task.attempts[-1] if task.attempts else None
        seconds = took(attempt) if attempt else None
        fields["name"].append(number_of(_label(group, task)))
        fields["status"].append(number_of("reused" if task.cached else task.status))
        fields["started"].append(_started(attempt, run))
        fields["took"].append(None if seconds is None else round(seconds, 3))
        fields["cpu"].append(_cpu(attempt))
        fields["memory"].append(None if attempt is None else memory_peak(attempt))
        fields["attempts"].append(len(task.attempts))
        fields["note"].append(number_of(_note(task, attempt)))
        known = records_of([attempt]) if attempt else []
        fields["records"].append([rows.setdefault(row, len(rows)) for row in known])
    shown = {**fields, "rows": [[number_of(cell) for cell in row] for row in rows], "texts": list(texts)}
    return data(identity, shown)


_FIELDS = ("name", "status", "started", "took", "cpu", "memory", "attempts", "note", "records")


def memory_peak(attempt: Attempt) -> int | None:
    """Bytes that it used at most; None: not known."""
    used = attempt.used
    if used is None:
        return None
    peak = used.details.get("memory_peak", used.memory)
    return peak if isinstance(peak, int) else None


def _cpu(attempt: Attempt | None) -> float | None:
    if attempt is None or attempt.used is None:
        return None
    mean = attempt.used.details.get("cpu_mean", attempt.used.cpu_count)
    return float(f"{mean:.3g}") if isinstance(mean, (int, float)) else None


def _label(group: Group, task: Task) -> str:
    return f"{task.index}" if len(group.steps) == 1 and task.index is not None else str(task.row.task)


def _started(attempt: Attempt | None, run: Run) -> float | None:
    if attempt is None or attempt.started is None or attempt.run != run.id:
        return None
    return round(since(attempt.started, run), 3)


def _note(task: Task, attempt: Attempt | None) -> str:
    """Why it failed, else why it ran or was reused."""
    if attempt is not None and attempt.error is not None and task.status != "completed":
        text = attempt.error.message.partition("\n")[0]
        return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return task.cache_reason or ""


def _strip(tasks: Sequence[Task]) -> Html:
    """A place for each task, in order: the colour is its status, the darker the longer it took."""
    cells = min(len(tasks), _CELLS)
    longest = max((took(t.attempts[-1]) or 0.0 for t in tasks if t.attempts), default=0.0) or 1.0
    found: dict[tuple[str, int], list[int]] = {}
    for cell in range(cells):
        part = tasks[cell * len(tasks) // cells : (cell + 1) * len(tasks) // cells]
        statuses = {"reused" if task.cached else task.status for task in part}
        status = next((s for s in _ORDER if s in statuses), "pending")
        seconds = max((took(t.attempts[-1]) or 0.0 for t in part if t.attempts), default=0.0)
        level = min(int(seconds / longest * _LEVELS), _LEVELS - 1)
        found.setdefault((status, _LEVELS - 1 if status == "failed" else level), []).append(cell)
    paths = [
        tag("path", {"class": f"{status_word(s)} l{level}", "d": "".join(f"M{c} 0h1v1h-1z" for c in places)})
        for (s, level), places in found.items()
    ]
    picture = tag(
        "svg",
        {
            "class": "strip",
            "viewBox": f"0 0 {cells} 1",
            "preserveAspectRatio": "none",
            "role": "img",
            "aria-label": "Tasks in order; the table below has their values",
        },
        paths,
    )
    caption = "Tasks in order. The colour is the status; the stronger, the longer it took."
    return tag("figure", {"class": "wide"}, picture, tag("figcaption", {"class": "quiet"}, caption))


def _histogram(title: str, values: Sequence[float], words: Callable[[float], str]) -> Html:
    if len(set(values)) < 2:
        return Html("")
    low, high = around(values, from_zero=True)
    counts = [0] * _BINS
    for value in values:
        counts[min(int((value - low) / (high - low) * _BINS), _BINS - 1)] += 1
    most = max(counts)
    path = "".join(
        f"M{number}.08 1000v-{max(1000 * found / most, 15):.0f}h.84V1000z"
        for number, found in enumerate(counts)
        if found
    )
    ordered = sorted(values)
    told = " · ".join(
        f"{label} {words(ordered[min(int(share * len(ordered)), len(ordered) - 1)])}"
        for label, share in (("median", 0.5), ("9 of 10 below", 0.9), ("most", 1.0))
    )
    marks = [
        tag("text", {"x": f"{100 * (v - low) / (high - low):.4g}%", "y": "100%", "class": "across"}, words(v))
        for v in ticks(low, high, 4)
    ]
    bars = tag(
        "svg",
        {"class": "curves", "viewBox": f"0 0 {_BINS} 1000", "preserveAspectRatio": "none"},
        tag("path", {"class": "profile", "d": path}),
    )
    picture = tag(
        "div",
        {"class": "plot still", "role": "img", "aria-label": f"{title} of {len(values):,} tasks: {told}"},
        tag("svg", {"class": "axes", "aria-hidden": "true"}, tag("g", {"class": "xs"}, marks)),
        bars,
    )
    caption = tag("figcaption", None, tag("b", None, title), " ", tag("span", {"class": "numbers"}, told))
    return tag("figure", {"class": "chart"}, caption, picture)
