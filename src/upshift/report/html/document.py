"""The whole page: head, sections, what is kept for later, style and script, all in one text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import resources

from upshift._version import __version__
from upshift.report.html import overview
from upshift.report.html.cards import Cards
from upshift.report.html.elements import Html, join, tag, visible
from upshift.report.html.evidence import Evidence
from upshift.report.html.graph_view import graph_view
from upshift.report.html.groups import Group, grouped
from upshift.report.html.later import Later
from upshift.report.html.metrics_view import Logged, logged, metrics_view
from upshift.report.html.steps_view import steps_view
from upshift.report.html.timeline import timeline
from upshift.report.human import moment
from upshift.runs.history import Run

_MARK = "M2 11 7 6l5 5M2 6l5-5 5 5"


def report_page(
    run: Run, others: Sequence[Run] = (), *, now: datetime | None = None, every: float | None = None
) -> str:
    """The report of a run, as HTML.

    Parameters
    ----------
    run
        What it is about.
    others
        Runs whose metrics are drawn over those of ``run``.
    now
        When it is made; default: now.
    every
        Seconds after which the page loads itself again; None: never, and so once the run is over.

    Raises
    ------
    StoreError
        The run's graph is not in the store.
    """
    now = now or datetime.now(timezone.utc)
    evidence, later = Evidence(run), Later()
    cards = Cards(evidence)
    groups = grouped(run, run.graph)
    words = {group.name: _word(group, run) for group in groups}
    made = moment(now)
    sections = [
        ("overview", "Overview", overview.overview(run, groups, now=made)),
        ("failures", "Failures", overview.failures(groups)),
        ("graph", "Graph", graph_view(groups, run.graph, words) if groups else _nothing()),
        ("timeline", "Timeline", timeline(run, groups, words, now) if groups else Html("")),
        ("steps", "Steps", steps_view(run, groups, words, evidence, later)),
        ("metrics", "Metrics", _metrics(run, groups, others, later)),
        ("cards", "Cards", _cards(groups, cards, later)),
        ("outputs", "Outputs", overview.outputs(groups)),
    ]
    shown = [(key, title, content) for key, title, content in sections if content]
    live = every if run.status in ("pending", "running") else None
    style, script = _asset("report.css"), _asset("report.js")
    page = join(
        _head(run, style, [_hash(script), *sorted(cards.hashes)]),
        tag(
            "body",
            {"data-run": run.id, "data-every": live},
            tag("a", {"class": "skip", "href": "#main"}, "Skip to the report"),
            _top(shown),
            tag("main", {"id": "main"}, [_section(*each) for each in shown]),
            _foot(run, made, live),
            later.all(),
            cards.libraries(),
            tag("script", None, Html(script)),
        ),
    )
    return f'<!doctype html>\n<html lang="en">{page}</html>\n'


def _head(run: Run, style: str, scripts: Sequence[str]) -> Html:
    policy = "; ".join(
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
    return tag(
        "head",
        None,
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "color-scheme", "content": "light dark"}),
        tag("meta", {"name": "referrer", "content": "no-referrer"}),
        tag("title", None, f"{run.pipeline} · {run.row.status} · {run.id}"),
        tag("style", None, Html(style)),
    )


def _top(sections: Sequence[tuple[str, str, Html]]) -> Html:
    mark = tag(
        "svg",
        {"width": 14, "height": 12, "viewBox": "0 0 14 12", "aria-hidden": "true"},
        tag("path", {"d": _MARK}),
    )
    links = [tag("a", {"href": f"#{key}"}, title) for key, title, _ in sections]
    return tag(
        "header",
        {"class": "top"},
        tag("span", {"class": "brand"}, mark, " Upshift"),
        tag("nav", {"aria-label": "Sections"}, links),
        tag(
            "button", {"type": "button", "id": "theme", "aria-label": "Colours: as the system has them"}, "◐"
        ),
    )


def _section(key: str, title: str, content: Html) -> Html:
    if key == "overview":
        return tag("section", {"id": key, "aria-label": title}, content)
    heading = tag("h2", {"id": f"{key}-title"}, title)
    return tag("section", {"id": key, "aria-labelledby": f"{key}-title"}, heading, content)


def _foot(run: Run, made: str, live: float | None) -> Html:
    script = tag("noscript", None, tag("p", None, "Charts, logs and tables of tasks need JavaScript."))
    told = [f"Made {made} by Upshift {__version__}. ", tag("code", None, f"upshift show {run.id}")]
    if live is not None:
        pause = tag("button", {"type": "button", "id": "pause", "aria-pressed": "false"}, "Pause")
        told.append(
            tag(
                "span",
                {"class": "live", "role": "status"},
                f" The run goes on: this page follows it every {live:g} s. ",
            )
        )
        told.append(pause)
    return tag("footer", None, tag("p", None, told), script)


def _metrics(run: Run, groups: Sequence[Group], others: Sequence[Run], later: Later) -> Html:
    several = bool(others)
    found: dict[str, dict[str, list[Logged]]] = {}
    for group in groups:
        found[group.name] = logged(group, prefix=run.id if several else "")
    for other in others:
        for group in grouped(other, other.graph):
            for metric, lines in logged(group, prefix=other.id).items():
                found.setdefault(group.name, {}).setdefault(metric, []).extend(lines)
    parts = [
        later.details(step, metrics_view(metrics), key=f"metrics-{number}", opened=True)
        for number, (step, metrics) in enumerate(found.items())
        if metrics
    ]
    return join(parts)


def _cards(groups: Sequence[Group], cards: Cards, later: Later) -> Html:
    parts = []
    for group in groups:
        found = [shown.card for attempt in group.attempts for shown in attempt.cards]
        if found:
            content = tag("div", {"class": "cards"}, cards.view(found))
            parts.append(
                later.details(visible(group.title), content, key=f"cards-{group.number}", opened=True)
            )
    return join(parts)


def _word(group: Group, run: Run) -> str:
    return run.row.status if run.interrupted and group.status == "cancelled" else group.status


def _nothing() -> Html:
    return tag("p", {"class": "quiet"}, "No steps: the pipeline called none.")


def _asset(file: str) -> str:
    return (resources.files("upshift.report.html") / "assets" / file).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}'"
