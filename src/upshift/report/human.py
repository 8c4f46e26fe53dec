"""Values in words: durations, moments, counts, ranks, reasons, and gaps in the record of an attempt."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from upshift.model.settings.sizes import format_size
from upshift.model.spec.telemetry import Gap
from upshift.runtime.launch.stacks import listed as ranks_listed
from upshift.runtime.launch.stacks import whereabouts

if TYPE_CHECKING:
    from upshift.model.spec.hardware import Hardware, Stack
    from upshift.model.spec.task import Failure
    from upshift.runs.history.attempts import Attempt
    from upshift.runs.history.tasks import Task

DASH = "\N{EN DASH}"
"""Between two ends of a range, and where nothing is known."""
TIMES = "\N{MULTIPLICATION SIGN}"

_AGO = (("day", 86400), ("hour", 3600), ("minute", 60))
_DIGITS = 12


def duration(seconds: float) -> str:
    """A time span: ``8 ms``, ``3.21 s``, ``42.3 s``, ``3 min 05 s``, ``2 h 07 min``, ``3 d 04 h``."""
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def delay(seconds: float) -> str:
    """A time span that somebody chose: ``2 s``, ``0.5 s``, ``5 min 00 s``."""
    return f"{number(seconds)} s" if seconds < 60 else duration(seconds)


def elapsed(seconds: float) -> str:
    """A time span that still grows, in steps that do not flicker: ``0.4 s``, ``3 min 05 s``."""
    return f"{max(seconds, 0.0):.1f} s" if seconds < 59.95 else duration(seconds)


def about(seconds: float) -> str:
    """A time span that is only guessed: ``40 s``, ``3 min``, ``1.5 h``."""
    if seconds < 59.5:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 5370 else f"{seconds / 3600:.1f} h"


def span(durations: list[float]) -> str:
    """The shortest and the longest of several durations, or the one that there is."""
    low, high = duration(min(durations)), duration(max(durations))
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') and ' ' not in unit else low}{DASH}{high}"


def between(values: Sequence[float], words: Callable[[float], str]) -> str:
    """The least and the most in words, with a unit that they share once: ``1.5–3 GB``."""
    low, high = words(min(values)), words(max(values))
    if low == high:
        return low
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}') if unit else low}{DASH}{high}"


def ago(then: datetime, now: datetime | None = None) -> str:
    """How long ago: ``just now``, ``5 minutes ago``, ``3 days ago``."""
    seconds = ((now or datetime.now(timezone.utc)) - then).total_seconds()
    for unit, length in _AGO:
        if seconds >= length:
            return f"{count(int(seconds // length), unit)} ago"
    return "just now"


def moment(then: datetime) -> str:
    """A moment in the reader's own time zone: ``2026-11-21 03:26:10``."""
    return then.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def count(number: int, noun: str) -> str:
    """``1 task``, ``3 tasks``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short_image(reference: str) -> str:
    """An image with as much of its digest as tells it from others: ``ml/train@sha256:9b74c9897bac``."""
    name, digest, hexadecimal = reference.rpartition("sha256:")
    return f"{name}{digest}{hexadecimal[:_DIGITS]}" if digest else reference


def number(value: float) -> str:
    """At most three figures, and no more than needed: ``2``, ``0.5``, ``1.93``."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def of_its_own(size: float) -> str:
    """Memory above what the step was forked with, which is known to about a megabyte."""
    return format_size(size) if size >= 1_000_000 else "under 1 MB"


def amount(value: float, unit: str) -> str:
    """A value with its unit: ``87 %``, ``1.53 GB``, ``2.5 MB/s``, ``0.0123``; seconds as a :func:`clock`."""
    if unit == "bytes":
        return format_size(value)
    if unit == "bytes/s":
        return f"{format_size(value)}/s"
    if unit == "s":
        return clock(value)
    return f"{_figures(value, 3)} {unit}" if unit else _figures(value, 4)


def clock(seconds: float) -> str:
    """A time since a start: ``0.5 s``, ``42 s``, ``3:05``, ``1:07:30``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _figures(value: float, number: int) -> str:
    """A number with this many significant figures; large numbers in full, rounded to whole ones."""
    whole = 10**number - 0.5 <= abs(value) < 1e9
    return f"{value:,.0f}" if whole else f"{value:.{number}g}"


def processes(hardware: Hardware | None) -> int | None:
    """How many a record tells of: of what was asked or granted by number, of what was seen each by itself."""
    if hardware is None:
        return None
    if hardware.processes is not None:
        return hardware.processes
    seen = hardware.details.get("ranks")
    return len(seen) if isinstance(seen, Sequence) and seen else None


def many(hardware: Hardware | None) -> str:
    """``4 processes``, ``8 processes on 2 nodes``; empty where it is an ordinary step, of one."""
    number = processes(hardware)
    if number is None:
        return ""
    nodes = hardware.nodes if hardware is not None else None
    where = f" on {nodes} nodes" if nodes is not None and nodes > 1 else ""
    return f"{number:,} process{'' if number == 1 else 'es'}{where}"


def because(status: str, reason: str | None) -> str:
    """``" (user-error)"`` behind a status; nothing where the status is the reason."""
    return "" if reason in (None, status) else f" ({reason})"


def on_rank(failure: Failure) -> str:
    """`` on rank 3``, and of another host its name; empty where it is not one of several that failed."""
    if failure.rank is None:
        return ""
    other = failure.node is not None and failure.node != os.uname().nodename
    return f" on rank {failure.rank}" + (f", node {failure.node}" if other else "")


def elsewhere(failure: Failure, stacks: Sequence[Stack]) -> str:
    """Where the ranks were whose place is neither in the failure's message nor in its traceback."""
    told = failure.rank if failure.traceback else None
    text = whereabouts([stack for stack in stacks if stack.rank != told])
    return "" if text in failure.message else text


def together(stacks: Iterable[Stack]) -> list[tuple[str, str]]:
    """Stacks as they are read: where the ranks are, in words, and the text; those that are equal once."""
    alike: dict[tuple[str | None, str | None, str], list[Stack]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        alike.setdefault((stack.waits, stack.where, stack.text.strip()), []).append(stack)
    return [
        (whereabouts(same) or ranks_listed(stack.rank for stack in same), text)
        for (_, _, text), same in alike.items()
    ]


def worth_a_look(failure: Failure, stacks: Sequence[Stack]) -> bool:
    """Whether the stacks say more of a failure than it says itself: an exception has a traceback."""
    return bool(stacks) and failure.traceback is None


def listed(numbers: Iterable[int]) -> str:
    """Numbers as Linux lists CPUs: ``0-3,6``."""
    parts: list[list[int]] = []
    for item in sorted(numbers):
        if parts and item == parts[-1][-1] + 1:
            parts[-1][1:] = [item]
        else:
            parts.append([item])
    return ",".join("-".join(map(str, part)) for part in parts)


TOLD = 20
"""Sentences that are told of the tasks of a run, or of a step."""


def of_tasks(tasks: Iterable[Task]) -> Iterator[tuple[str, str]]:
    """What is not on record of these tasks: the task or its attempt, and a sentence; not of reused ones."""
    lines = [
        (f"{task.row.task}{_which(task, attempt)}", sentence)
        for task in tasks
        if not task.cached
        for attempt in task.attempts
        for sentence in in_words(attempt.gaps)
    ]
    yield from lines[:TOLD]
    if len(lines) > TOLD:
        yield "", f"… and {len(lines) - TOLD:,} more"


def in_words(gaps: Iterable[Gap]) -> Iterator[str]:
    """A sentence for each file that is not whole; one for the logs of all ranks."""
    found = list(gaps)
    ranks = [gap for gap in found if gap.rank is not None]
    for gap in found:
        if gap.rank is None:
            yield _sentence(gap.name, [gap])
    if ranks:
        logs = "the logs of" if len(ranks) > 1 else "the log of"
        yield _sentence(f"{logs} {ranks_listed([gap.rank for gap in ranks if gap.rank is not None])}", ranks)


def _which(task: Task, attempt: Attempt) -> str:
    return f", attempt {attempt.number}" if len(task.attempts) > 1 else ""


def _sentence(name: str, gaps: list[Gap]) -> str:
    since = duration(min(gap.since for gap in gaps))
    ends = [gap.until for gap in gaps if gap.until is not None]
    verb = "are" if len(gaps) > 1 else "is"
    why = f"{gaps[0].why}, in {os.path.dirname(gaps[0].path)}"
    if len(ends) == len(gaps):
        when = f"between {since} and {duration(max(ends))} after the start"
    else:
        when = f"from {since} after the start on"
    what = format_size(sum(gap.bytes or 0 for gap in gaps))
    missing = f"{what} are missing, {when}" if gaps[0].bytes is not None else f"nothing is in it {when}"
    return f"{name} {verb} not whole: {missing} ({why})"


_INPUT = "input changed: "


def counted(reasons: Iterable[str]) -> Counter[str]:
    """How many tasks have which reason; where they differ, the values of changed inputs are left out."""
    found = Counter(reasons)
    if len(found) < 2:
        return found
    without: Counter[str] = Counter()
    for reason, number in found.items():
        without[_without_values(reason)] += number
    return without


def _without_values(reason: str) -> str:
    """``input changed: x, data`` of ``input changed: x: 2 → 5, data``."""
    if not reason.startswith(_INPUT):
        return reason
    parts = reason.removeprefix(_INPUT).split(", ")
    return _INPUT + ", ".join(part.partition(": ")[0] for part in parts)
