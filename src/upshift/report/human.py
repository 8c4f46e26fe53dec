"""Seconds, moments and counts in people's words."""

from __future__ import annotations

from datetime import datetime, timezone

from upshift.model.settings.sizes import format_size

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
    """So many figures, no exponent where it can do without, all figures of a large whole number."""
    whole = 10**number - 0.5 <= abs(value) < 1e9
    return f"{value:,.0f}" if whole else f"{value:.{number}g}"
