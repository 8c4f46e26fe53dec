"""The page: the view of a run put into the templates, with style, scripts and data, in one text."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import resources
from typing import Any

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from upshift._version import __version__
from upshift.report.charts import Chart
from upshift.report.evidence import Evidence
from upshift.report.html.cards import Cards
from upshift.report.html.escaping import as_data, digest, finalized
from upshift.report.human import clock
from upshift.report.view import RunView, run_view
from upshift.runs.history.runs import Run

_SCRIPTS = ("common.js", "charts.js", "scatter.js", "tables.js", "page.js")


def report_page(
    run: Run, others: Sequence[Run] = (), *, now: datetime | None = None, every: float | None = None
) -> str:
    """The report of a run, as HTML."""
    return render(run_view(run, others, now=now), Cards(Evidence(run)), every=every)


def render(view: RunView, cards: Cards, *, every: float | None = None) -> str:
    """The page of a view."""
    shown = [(group, cards.shown(group.cards)) for group in view.cards]
    plot, script = asset("uplot/uPlot.iife.min.js"), "".join(map(asset, _SCRIPTS))
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    page = environment().get_template("page.html")
    return page.render(
        run=view,
        paged=True,
        cards=shown,
        libraries=cards.libraries,
        draw=cards.draw,
        every=every if view.going_on else None,
        figures=Figures(),
        version=__version__,
        style=Markup(asset("uplot/uPlot.min.css") + asset("report.css")),
        plot=Markup(plot),
        script=Markup(script),
        policy=_policy([digest(plot), digest(script), *sorted(cards.hashes)]),
    )


class Figures:
    """The charts of a page, numbered as templates come across them; columns of numbers are there once."""

    def __init__(self) -> None:
        self._columns: dict[tuple[float | None, ...], int] = {}
        self._charts: list[dict[str, Any]] = []

    def add(self, chart: Chart) -> int:
        """One more chart; gives its number."""
        fields = attrs.asdict(chart, recurse=False) | {"lines": [self._line(line) for line in chart.lines]}
        self._charts.append(fields)
        return len(self._charts) - 1

    def _line(self, line: Any) -> dict[str, Any]:
        fields = attrs.asdict(line, recurse=False)
        for name in ("x", "y", "low", "high", "times"):
            if fields[name] is not None:
                fields[name] = self._columns.setdefault(tuple(fields[name]), len(self._columns))
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def all(self) -> Mapping[str, Any]:
        """All of them, once no more come."""
        return {"columns": list(self._columns), "charts": self._charts}


@functools.cache
def environment() -> Environment:
    """Jinja2 with the templates of the page."""
    found = Environment(
        loader=PackageLoader("upshift.report.html"),
        autoescape=True,
        finalize=finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"data": as_data, "clock": clock}
    return found


@functools.cache
def asset(file: str) -> str:
    """The text of a style sheet or script."""
    return (resources.files("upshift.report.html") / "assets" / file).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(scripts)}",
            "style-src 'unsafe-inline'",
            "img-src data:",
            "font-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
