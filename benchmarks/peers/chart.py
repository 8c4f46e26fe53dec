"""The chart of all tools: one small panel for each figure, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from benchmarks.peers.measures import Figure, Found
from benchmarks.peers.page import Kept, panels, shown

NAMES, SCALE, LABEL, GAP = 140, 180, 100, 20
"""Widths: names of tools, the scale, room for the last value, and between columns."""
ROW, HEAD, FOOT = 18, 34, 14
"""Heights: a row, a panel's title, and what is below its rows."""
WIDTH = 2 * (NAMES + SCALE + LABEL) + GAP + 12

STYLE = """<style>
  .paper { fill: #ffffff } text { fill: #24292f } .quiet { fill: #59636e } .grid { stroke: #d8dee4 }
  .stem { stroke: #afb8c1; stroke-width: 2 } .dot { fill: #57606a } .ours { fill: #2f7d4f; stroke: #2f7d4f }
  .failed { fill: #b5442e } .title { font-weight: bold }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #1b1f27 } text { fill: #e6edf3 } .quiet { fill: #9198a1 } .grid { stroke: #343b45 }
    .stem { stroke: #59636e } .dot { fill: #adb5bf } .ours { fill: #56b87d; stroke: #56b87d }
    .failed { fill: #ff8e76 }
  }
</style>"""


def chart(kept: Kept) -> str:
    """An SVG that is readable on light and on dark pages: it has a ground of its own."""
    drawn: list[str] = []
    y = height = 10
    for number, (figure, rows) in enumerate(panels(kept)):
        column = number % 2
        y = y if column else height  # two beside each other
        x = column * (NAMES + SCALE + LABEL + GAP)
        drawn.append(f'<g transform="translate({x} {y})">\n{_panel(figure, rows)}</g>')
        height = max(height, y + HEAD + ROW * len(rows) + FOOT)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12" role="img">\n'
        "<title>Upshift beside other tools</title>\n"
        f'{STYLE}\n<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _panel(figure: Figure, rows: Sequence[tuple[str, Found]]) -> str:
    values = [found.median * figure.per_unit for _, found in rows if found.median is not None]
    place, decades = _scale([value for value in values if value > 0])
    bottom = HEAD + ROW * len(rows)
    better = "more is better" if figure.at_least else "less is better"
    lines = [
        f'<text class="title" x="12" y="16">{escape(figure.title)}</text>',
        f'<text class="quiet" x="{NAMES + SCALE + LABEL}" y="16" text-anchor="end">{better}</text>',
    ]
    for decade in decades:
        x = f"{place(decade):.1f}"
        lines.append(f'<line class="grid" x1="{x}" y1="{HEAD - 8}" x2="{x}" y2="{bottom}"/>')
    for number, (title, found) in enumerate(rows):
        y = HEAD + ROW * number + 4
        ours = " ours" if title == "Upshift" else ""
        name = ' class="title"' if ours else ""
        lines.append(f'<text{name} x="{NAMES - 8}" y="{y + 4}" text-anchor="end">{escape(title)}</text>')
        if found.median is None:
            kind = "failed" if found.failed else "quiet"
            lines.append(f'<text class="{kind}" x="{NAMES + 6}" y="{y + 4}">{escape(found.said)}</text>')
            continue
        at = place(found.median * figure.per_unit)
        lines += [
            f'<line class="stem{ours}" x1="{NAMES}" y1="{y}" x2="{at:.1f}" y2="{y}"/>',
            f'<circle class="dot{ours}" cx="{at:.1f}" cy="{y}" r="4.5"/>',
            f'<text x="{at + 9:.1f}" y="{y + 4}">{escape(shown(figure, found.median))}</text>',
        ]
    return "\n".join(lines) + "\n"


def _scale(values: Sequence[float]) -> tuple[Callable[[float], float], Sequence[float]]:
    """Where a value is drawn, and the powers of ten in between; what is 0 or less is at the left end."""
    low = math.log10(min(values, default=1)) - 0.3
    high = max(math.log10(max(values, default=1)), low + 1)

    def place(value: float) -> float:
        share = (math.log10(value) - low) / (high - low) if value > 0 else 0.0
        return NAMES + SCALE * min(1.0, max(0.0, share))

    return place, [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
