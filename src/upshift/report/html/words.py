"""Statuses, times and the like, as the page shows them."""

from __future__ import annotations

from upshift.report.html.elements import Attribute, Html, tag
from upshift.report.human import span

_ICONS = {
    "completed": "M2 7.5 5.5 11 12 3.5",
    "reused": "M11.5 4.5A5 5 0 1 0 12 8M12 1.5v3.5h-3.5",
    "failed": "M3 3l8 8M11 3l-8 8",
    "running": "M4 2.5v9l7.5-4.5z",
    "cancelled": "M3.5 3.5h7v7h-7z",
    "interrupted": "M3.5 3.5h7v7h-7z",
    "skipped": "M2.5 3l4.5 4-4.5 4M8 3l4 4-4 4",
    "pending": "M7 3.5v4l2.5 1.5M7 1.5a5.5 5.5 0 1 0 .01 0",
}


def status_word(status: str) -> str:
    """The class of a status; one that is not known looks as if it were pending."""
    return status if status in _ICONS else "pending"


def icon(status: str) -> Html:
    """The picture of a status: a form of its own for each, so that colours need not be told apart."""
    path = tag("path", {"d": _ICONS[status_word(status)]})
    box: dict[str, Attribute] = {
        "class": "icon",
        "width": 14,
        "height": 14,
        "viewBox": "0 0 14 14",
        "aria-hidden": "true",
    }
    return tag("svg", box, path)


def badge(status: str, word: str | None = None) -> Html:
    """A status with its picture, and another word for it."""
    return tag("span", {"class": f"badge {status_word(status)}"}, icon(status), word or status)


def seconds_of(seconds: list[float]) -> str:
    """The shortest and the longest of several times; empty: nothing was over."""
    return span(seconds) if seconds else ""
