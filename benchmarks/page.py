"""``docs/benchmarks.md`` and its chart, from what the measurements found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.harness import Report, Row

INTRODUCTION = """# Benchmarks

Written by `make bench`. Machines differ and are noisy, so take ratios from one run: each floor (what the
machine itself needs, without Upshift) is measured in the same run, in turns with what it stands beside. All
figures are medians.

![what was measured, as a share of its target](benchmarks.svg)
"""


def page(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page.

    Parameters
    ----------
    entries
        By measurement: ``report``, ``date`` and ``machine``.
    """
    rows = [row for entry in entries.values() for row in entry["report"].rows]
    missed = [row for row in rows if row.met is False]
    targets = [row for row in rows if row.target is not None]
    parts = [INTRODUCTION, f"{len(targets) - len(missed)} of {len(targets)} targets are reached.\n"]
    parts += [section(entry["report"], entry["date"], entry["machine"]) for entry in entries.values()]
    return "\n".join(parts)


def section(report: Report, date: str, machine: str) -> str:
    """One measurement."""
    lines = [f"## {report.title}", "", f"{date}, {machine}.", "", report.how, ""]
    lines += ["| what | median | target | |", "| --- | ---: | ---: | --- |", *map(_line, report.rows), ""]
    return "\n".join(lines)


def _line(row: Row) -> str:
    sign = "≥" if row.at_least else "≤"
    target = verdict = ""
    if row.target is not None:
        target = f"{sign} {figure(row.target)} {row.unit}".rstrip()
        verdict = "reached" if row.met else f"**missed** by a factor of {_share(row):.2g}"
    return f"| {row.what} | {figure(row.value)} {row.unit} | {target} | {verdict} |".replace("  |", " |")


def figure(value: float) -> str:
    """Three figures, no exponent."""
    if round(value, 4) == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.4f}"


def chart(rows: Iterable[Row]) -> str:
    """An SVG: one bar for each target, as a share of it; the line is the target."""
    bars = [(row.what.partition(" (target")[0], _share(row)) for row in rows if row.target is not None]
    left, unit, height, full = 360, 240, 22, 1.5
    width, bottom = left + int(unit * full) + 70, 30 + height * len(bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 20}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{bottom + 20}" fill="white"/>',
    ]
    for number, (what, share) in enumerate(bars):
        y = 20 + number * height
        colour = "#2f7d4f" if share <= 1 else "#b5442e"
        parts += [
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(what)}</text>',
            f'<rect x="{left}" y="{y}" width="{unit * min(share, full):.0f}" height="15" fill="{colour}"/>',
            f'<text x="{left + unit * min(share, full) + 5:.0f}" y="{y + 12}">{share:.0%}</text>',
        ]
    parts += [
        f'<line x1="{left + unit}" y1="12" x2="{left + unit}" y2="{bottom - 5}" stroke="black" '
        'stroke-dasharray="3 3"/>',
        f'<text x="{left + unit}" y="{bottom + 10}" text-anchor="middle">target; less is better</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _share(row: Row) -> float:
    assert row.target is not None
    return row.target / row.value if row.at_least else row.value / row.target
