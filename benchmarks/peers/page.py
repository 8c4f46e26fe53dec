"""The part of ``docs/benchmarks.md`` about other tools, and its chart, from what was found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.page import figure
from benchmarks.peers.measures import MEASURES, PATIENCE, Comparison, Figure, Found, Measure
from benchmarks.peers.tools import TOOLS, Tool

INTRODUCTION = f"""## Beside other tools

Written by `make bench-peers`. Each tool is installed by pip into an environment of its own and used as its
documentation shows, with what it does by default on one machine; telemetry is off. The programs are in
`benchmarks/peers/programs/`. In each round every tool has its turn, in a home folder that is the same each
time; a tool that has taken {PATIENCE:.0f} s gets no further round. Figures are medians, with the lowest
and the highest where there are several; what fails is shown with the last line of its error.

![how the tools compare, on logarithmic scales](benchmarks-peers.svg)
"""

Kept = Mapping[str, Any]
"""What was found, as it is in ``docs/benchmarks-peers.json``: ``tools``, with the ``packages`` of each, and
``measures``, each with ``date``, ``machine`` and ``found``."""


def section(kept: Kept) -> str:
    """Everything about other tools."""
    tools = [tool for name, tool in TOOLS.items() if name in kept["tools"]]
    parts = [INTRODUCTION, _overview(kept, tools), _what_they_do(kept, tools)]
    for measure, entry in _measures(kept):
        parts.append(_measure(measure, entry, tools))
    return "\n".join(parts)


def comparison(found: Mapping[str, Mapping[str, Any]]) -> Comparison:
    """What was found, from its kept form."""
    return {name: {tool: Found(**one) for tool, one in tools.items()} for name, tools in found.items()}


def panels(kept: Kept) -> Iterator[tuple[Figure, Sequence[tuple[str, Found]]]]:
    """Each figure, with the titles of the tools and what they gave; a second way to use a tool only where it
    gives something else."""
    for measure, entry in _measures(kept):
        found = comparison(entry["found"])
        for fig in measure.figures:
            rows = [(TOOLS[name], one) for name, one in found[fig.name].items() if name in TOOLS]
            yield fig, [(t.title, one) for t, one in rows if one.values or t.name == t.environment]


def shown(fig: Figure, value: float) -> str:
    """A value with its unit."""
    return f"{figure(value * fig.per_unit)} {fig.unit}".rstrip()


def _measures(kept: Kept) -> Iterator[tuple[Measure, Mapping[str, Any]]]:
    for name, measure in MEASURES.items():
        if name in kept["measures"]:
            yield measure, kept["measures"][name]


def _overview(kept: Kept, tools: Sequence[Tool]) -> str:
    found: dict[str, Mapping[str, Found]] = {}
    figures: list[Figure] = []
    for measure, entry in _measures(kept):
        found.update(comparison(entry["found"]))
        figures += measure.figures
    rows = [
        [tool.title, *(_median(fig, found[fig.name].get(tool.name), unit=False) for fig in figures)]
        for tool in tools
    ]
    heads = ["", *(f"{fig.short}, {fig.unit}".removesuffix(", ") for fig in figures)]
    return _table(heads, rows, numbers=range(1, len(heads)))


def _what_they_do(kept: Kept, tools: Sequence[Tool]) -> str:
    rows = []
    for tool in tools:
        packages = kept["tools"][tool.name]["packages"]
        name = re.split(r"[^\w-]", tool.requirements[0])[0] if tool.name != "upshift" else "upshift"
        rows.append([tool.title, packages.get(name, "–"), tool.process, tool.outputs, tool.reuse])
    table = _table(["", "version", "a step runs in", "its outputs are", "results are used again"], rows)
    remarks = [f"{tool.title}: {tool.remark}\n" for tool in tools if tool.remark]
    return "\n".join(["The tools do not do the same for a step:\n", table, *remarks])


def _measure(measure: Measure, entry: Mapping[str, Any], tools: Sequence[Tool]) -> str:
    found = comparison(entry["found"])
    of = any(one.of for one in found[measure.figures[0].name].values())
    rows: list[list[str]] = []
    errors: dict[str, str] = {}
    for tool in tools:
        ones = [found[fig.name].get(tool.name) for fig in measure.figures]
        if not any(one and (one.values or one.failed) for one in ones):
            continue
        rounds = max(len(one.values) for one in ones if one)
        cells = [_spread(fig, one) for fig, one in zip(measure.figures, ones, strict=True)]
        sizes = [next((one.of for one in ones if one), "")] if of else []
        rows.append([tool.title, *sizes, *cells, str(rounds or "")])
        for one in ones:
            if one and one.failed:
                errors[tool.title] = one.absent
    heads = ["", *(["of"] if of else []), *(fig.short for fig in measure.figures), "rounds"]
    lines = [f"### {measure.title}", "", f"{entry['date']}, {entry['machine']}.", "", measure.how, ""]
    lines += [_table(heads, rows, numbers=range(1, len(heads)))]
    lines += [f"{title}: `{error.replace('`', chr(39))}`\n" for title, error in errors.items()]
    return "\n".join(lines)


def _median(fig: Figure, found: Found | None, *, unit: bool = True) -> str:
    if found is None:
        return ""
    if found.median is None:
        return found.said
    return shown(fig, found.median) if unit else figure(found.median * fig.per_unit)


def _spread(fig: Figure, found: Found | None) -> str:
    median = _median(fig, found)
    if found is None or found.median is None or len(found.values) < 2:
        return median
    low, high = (figure(value * fig.per_unit) for value in (min(found.values), max(found.values)))
    return f"{median} ({low} to {high})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    rule = ["---:" if column in numbers else "---" for column in range(len(heads))]
    return "".join(f"| {' | '.join(cells)} |\n".replace("  |", " |") for cells in (heads, rule, *rows))
