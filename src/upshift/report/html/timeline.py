"""When each step ran: bars on one time axis, in lanes where tasks ran at once, a profile of many."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from datetime import datetime

import attrs

from upshift.report.html.elements import Attribute, Html, join, name, tag
from upshift.report.html.groups import Group, since
from upshift.report.html.scales import clock, time_ticks
from upshift.report.html.words import seconds_of, status_word
from upshift.report.human import count, duration
from upshift.runs.history import Run

_MOST_BARS = 60
"""Tries of a step that are bars; more become a profile of how many ran at once."""
_BAR = 16
_THIN_BAR = 6
_GAP = 2
_PROFILE = 34
_BINS = 400
_TICKS = 6


@attrs.frozen
class Bar:
    """One try of a task, from its start to its end in seconds since the run started."""

    label: str
    status: str
    start: float
    end: float
    waited: float = 0.0
    """Seconds before its start that it waited for devices."""


def timeline(run: Run, groups: Sequence[Group], words: Mapping[str, str], now: datetime) -> Html:
    """The rows, below an axis of the time since the run started.

    Parameters
    ----------
    run, groups
        What is shown.
    words
        For each group its status as people read it.
    now
        When it is looked at: what still runs ends there.
    """
    bars = {group.number: _bars(group, run, now) for group in groups}
    end = max([_end(run, now), *(bar.end for found in bars.values() for bar in found)])
    marks = time_ticks(0.0, end, _TICKS)
    rows = [_row(group, bars[group.number], end, marks, words[group.name]) for group in groups]
    axis = tag(
        "div",
        {"class": "row axis", "aria-hidden": "true"},
        tag("span", None),
        tag(
            "svg",
            {"height": 16},
            [
                tag("text", {"x": _share(mark, end), "y": 11, "class": "across"}, clock(mark))
                for mark in marks
            ],
        ),
    )
    return tag("div", {"class": "timeline"}, axis, rows)


def most_at_once(bars: Sequence[Bar]) -> int:
    """How many of the tries ran at the same time, at most."""
    changes = sorted([(bar.start, 1) for bar in bars] + [(bar.end, -1) for bar in bars])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def lanes(bars: Sequence[Bar]) -> list[int]:
    """For each bar, in the order in which they begin to wait or run, the lowest lane that is free then."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    used = 0
    placed = []
    for bar in bars:
        while busy and busy[0][0] <= bar.start - bar.waited:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        heapq.heappush(busy, (bar.end, lane))
        placed.append(lane)
    return placed


def at_once(bars: Sequence[Bar], end: float, bins: int = _BINS) -> list[float]:
    """How many ran, on average over each of ``bins`` equal parts of the time up to ``end``."""
    width = end / bins
    whole, partly = [0.0] * (bins + 1), [0.0] * (bins + 1)
    for bar in bars:
        first, last = min(int(bar.start / width), bins - 1), min(int(bar.end / width), bins - 1)
        if first == last:
            partly[first] += (bar.end - bar.start) / width
            continue
        partly[first] += first + 1 - bar.start / width
        partly[last] += bar.end / width - last
        whole[first + 1] += 1
        whole[last] -= 1
    running, found = 0.0, []
    for number in range(bins):
        running += whole[number]
        found.append(running + partly[number])
    return found


def _bars(group: Group, run: Run, now: datetime) -> list[Bar]:
    bars = []
    for task in group.tasks:
        for attempt in task.attempts:
            if attempt.run != run.id or attempt.started is None:
                continue  # what was reused ran in another run
            several = f", attempt {attempt.number}" if len(task.attempts) > 1 else ""
            start = max(0.0, since(attempt.started, run))
            over = since(attempt.ended, run) if attempt.ended else _end(run, now)
            label, waited = f"{task.row.task}{several}", min(start, attempt.waited or 0.0)
            bars.append(Bar(label, attempt.status, start, max(start, over), waited))
    return sorted(bars, key=lambda bar: (bar.start - bar.waited, bar.end))


def _end(run: Run, now: datetime) -> float:
    end = run.ended or (now if run.status in ("pending", "running") else run.started)
    return max(since(end, run), 1e-3)


def _row(group: Group, bars: Sequence[Bar], end: float, marks: Sequence[float], word: str) -> Html:
    if len(bars) > _MOST_BARS:
        height, drawn = _PROFILE, [_profile(bars, end)]
        note = f"{count(len(bars), 'attempt')}, at most {most_at_once(bars):,} at once"
    else:
        placed = lanes(bars)
        thick = _BAR if max(placed, default=0) < 2 else _THIN_BAR
        height = (max(placed, default=0) + 1) * (thick + _GAP) + _GAP
        drawn = [_bar(bar, lane, thick, end) for bar, lane in zip(bars, placed, strict=True)]
        note = (seconds_of(group.seconds) if bars else "") or word
    grid = [tag("line", {"x1": _share(m, end), "x2": _share(m, end), "y1": 0, "y2": "100%"}) for m in marks]
    told = f"{group.title}: {word}, {note}" + (f", from {clock(bars[0].start)}" if bars else "")
    picture: dict[str, Attribute] = {"height": height, "role": "img", "aria-label": told}
    return tag(
        "div",
        {"class": "row"},
        tag("a", {"href": f"#{group.anchor}", "class": "label"}, name(group.title), tag("small", None, note)),
        tag("svg", picture, tag("g", {"class": "grid"}, grid), drawn),
    )


def _bar(bar: Bar, lane: int, thick: int, end: float) -> Html:
    box: dict[str, Attribute] = {
        "class": f"bar {status_word(bar.status)}",
        "x": _share(bar.start, end),
        "y": lane * (thick + _GAP) + _GAP,
        "width": _share(bar.end - bar.start, end),
        "height": thick,
    }
    told = f"{bar.label}: {bar.status}, {duration(bar.end - bar.start)} from {clock(bar.start)}"
    drawn = tag("rect", box, tag("title", None, told))
    if not bar.waited:
        return drawn
    box |= {
        "class": "bar waiting",
        "x": _share(bar.start - bar.waited, end),
        "width": _share(bar.waited, end),
    }
    told = f"{bar.label}: waited {duration(bar.waited)} for devices"
    return join(tag("rect", box, tag("title", None, told)), drawn)


def _profile(bars: Sequence[Bar], end: float) -> Html:
    """An area as high as there are tasks running, with a line where each of those ended that failed."""
    heights = at_once(bars, end)
    most = max(heights) or 1.0
    path = "M0 1000" + "".join(f"L{x} {1000 - 1000 * h / most:.0f}h1" for x, h in enumerate(heights))
    failed = [bar for bar in bars if bar.status == "failed"]
    ticks = "".join(dict.fromkeys(f"M{bar.end / end * _BINS:.1f} 0v1000" for bar in failed))
    box: dict[str, Attribute] = {
        "viewBox": f"0 0 {_BINS} 1000",
        "preserveAspectRatio": "none",
        "width": "100%",
        "height": _PROFILE,
    }
    return join(
        tag(
            "svg",
            box,
            tag("path", {"class": "profile", "d": f"{path}L{_BINS} 1000z"}),
            tag("path", {"class": "failures", "d": ticks}) if failed else None,
        )
    )


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.4g}%"
