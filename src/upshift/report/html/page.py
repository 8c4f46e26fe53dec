"""The page: the view of a run put into templates, with style, scripts and data, in one text; and its file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from upshift._version import __version__
from upshift.errors import UsageError
from upshift.report.html.cards import Cards
from upshift.report.html.escaping import as_data, digest, finalized
from upshift.report.human import clock
from upshift.report.views.charts import Chart
from upshift.report.views.evidence import Evidence
from upshift.report.views.run import RunView, run_view
from upshift.runs.catalog.rows import UNFINISHED
from upshift.runs.history.runs import Run
from upshift.runtime.storage.files import replacing

_SCRIPTS = ("common.js", "charts.js", "scatter.js", "tables.js", "page.js")
EVERY = 2.0
"""Seconds between two times that the report of a run that goes on is written."""


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
        """Add a chart, and give its number on the page."""
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
        """The charts as data, when the page is complete."""
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


def write_page(path: Path, page: str) -> None:
    """Put a page in its place; whoever reads the file meanwhile has the one before, whole."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", fix=f"Name a file: -o {path / 'report.html'}.")
    try:
        with replacing(path) as draft:
            draft.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the report cannot be written to {path}", why=error.strerror, fix="Name another file with -o."
        ) from None


def write_until_over(
    path: Path,
    look: Callable[[], tuple[Run, Sequence[Run]]],
    wait: Callable[[float], object],
    *,
    written: Callable[[], object] = lambda: None,
    every: float = EVERY,
) -> Run:
    """Write the report of a run until the run is over; the page loads itself again as often.

    Whatever ends this, the page that is left does not go on loading itself.
    """
    run, others = look()
    try:
        write_page(path, report_page(run, others, every=every))
        written()
        while run.status in UNFINISHED:
            wait(every)
            run, others = look()
            write_page(path, report_page(run, others, every=every))
    finally:
        if run.status in UNFINISHED:
            write_page(path, report_page(run, others))
    return run
