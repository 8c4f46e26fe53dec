"""A run as one HTML file that needs nothing else: no network, no other file, no server.

::

    view (upshift.report.views.run) ──► page ──► html/templates/   Jinja2, escaped as it is put in
                                    │  └─── html/assets/      style, scripts, uPlot
                                    └─ cards                  what steps show, in frames without access

Tables and texts are in the page as it opens. Charts are numbers in it, which uPlot draws where they come
into view; so are the rows of tasks, of which only those in view are elements. Control characters are made
visible here; Jinja2 escapes markup. Cards of steps are pictures, HTML in a frame, or Markdown as text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from upshift._version import __version__
from upshift.errors import UsageError
from upshift.model.settings.sizes import format_size
from upshift.model.spec.telemetry import Card
from upshift.report.human import clock
from upshift.report.views.attempts import Evidence
from upshift.report.views.charts import Chart
from upshift.report.views.run import RunView, run_view
from upshift.runs.catalog.rows import UNFINISHED
from upshift.runs.history.runs import Run
from upshift.runtime.storage.files import replacing
from upshift.runtime.storage.metrics import of_rank

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
        loader=PackageLoader("upshift.report", "html/templates"),
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
    return (resources.files("upshift.report") / "html" / "assets" / file).read_text(encoding="utf-8")


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


LARGEST = 8_000_000
"""Bytes of a card; a larger one is named only."""
TOTAL = 32_000_000
"""Bytes of all cards of a page."""
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"})
_PLOTLY = "application/vnd.plotly+json"
_DRAW = (
    'const figure=JSON.parse(document.getElementById("figure").textContent);'
    'Plotly.newPlot("plot",figure.data,{...figure.layout,autosize:true},{responsive:true,displaylogo:false});'
)
_PLAIN = (
    "<style>:root{color-scheme:SCHEME}body{font:14px/1.5 system-ui,sans-serif;margin:10px;"
    "color:light-dark(#1a212b,#e4e8ee)}table{border-collapse:collapse;border:0}th,td{border:0;"
    "border-bottom:1px solid light-dark(#e1e5ea,#2a313b);padding:3px 12px;text-align:right}</style>"
)
"""How a page looks that says nothing of its looks, such as a table of pandas."""
_COLOURED = ("color:", "background", "bgcolor", "<link", "<canvas", "<svg")
"""What a page has that brings colours of its own: it stands on white, as it was made."""
_HEIGHT = (
    "{const all=document.documentElement,"
    "tell=()=>parent.postMessage(all.getBoundingClientRect().height+4,'*');"
    "new ResizeObserver(tell).observe(all);addEventListener('message',tell)}"
)
"""A frame tells the page, which cannot look into it, how high it is; again when it is asked."""


@attrs.frozen(kw_only=True)
class ShownCard:
    """A card as the page shows it."""

    # ``"image"``, ``"page"``, ``"plotly"``, ``"prose"``, ``"text"``; ``"none"``: ``content`` says why
    kind: str
    content: str  # address of an image, document of a frame, HTML of prose, or text
    title: str = ""  # what it is called, with its rank
    library: str = ""  # id of the script that draws it
    plain: bool = False  # whether a page is light or dark as the report is


class Cards:
    """The cards of a page, and what they need besides: scripts once, and leave for those to run."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._left = TOTAL
        self.libraries: dict[str, str] = {}
        self.hashes: set[str] = set()
        self.draw = _DRAW

    def shown(self, cards: Iterable[Card]) -> list[ShownCard]:
        """Each card with its title and content."""
        return [attrs.evolve(self._card(card), title=card.label + of_rank(card.rank)) for card in cards]

    def _card(self, card: Card) -> ShownCard:
        content = self._content(card)
        size = f"{card.media}, {format_size(card.bytes)}"
        if content is None:
            return _none(f"{size}: too large, or not in the store any more.")
        if card.media in _PICTURES:
            # As a picture, SVG neither runs scripts nor loads anything.
            source = f"data:{card.media};base64,{base64.b64encode(content).decode('ascii')}"
            return ShownCard(kind="image", content=source)
        written = content.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        if card.media == "text/html":
            return self._frame(written)
        if card.media == "text/markdown":
            return ShownCard(kind="prose", content=markdown(written))
        if card.media == _PLOTLY and card.script is not None:
            return self._plotly(card.script, written)
        if card.media.startswith("text/") or card.media.endswith("json"):
            return ShownCard(kind="text", content=written)
        return _none(f"{size}: not shown here.")

    def _content(self, card: Card) -> bytes | None:
        if card.bytes > min(LARGEST, self._left):
            return None
        content = self._evidence.content(card.digest, card.bytes)
        if content is not None:
            self._left -= len(content)
        return content

    def _frame(self, written: str) -> ShownCard:
        plain = _follows(written)
        style = _PLAIN.replace("SCHEME", "light dark" if plain else "light")
        document = f"<!doctype html>{style}{visible(written)}<script>{_HEIGHT}</script>"
        self.hashes.update(script_hashes(document))
        return ShownCard(kind="page", content=document, plain=plain)

    def _plotly(self, script: str, written: str) -> ShownCard:
        identity = f"library-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
        if identity not in self.libraries:
            content = self._evidence.content(script)
            if content is None:
                return _none("The file that draws it is no longer in the store.")
            self.libraries[identity] = _closed(content.decode("utf-8", "replace"))
            self.hashes.update((digest(self.libraries[identity]), digest(_DRAW)))
        figure = json.dumps(json.loads(written)).replace("<", "\\u003c")
        document = (
            '<!doctype html><meta charset="utf-8"><style>html,body,#plot{margin:0;height:100%}</style>'
            f'<div id="plot"></div><script type="application/json" id="figure">{figure}</script>'
        )
        return ShownCard(kind="plotly", content=document, library=identity)


def markdown(written: str) -> Markup:
    """CommonMark with tables; HTML in it is text, pictures are links."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(visible(written))
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer")
                child.attrSet("target", "_blank")
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def script_hashes(document: str) -> list[str]:
    """What a content security policy names the scripts by that are written into a document."""
    reader = _Scripts()
    reader.feed(document)
    reader.close()
    return [digest(script) for script in reader.scripts]


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.scripts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def _none(why: str) -> ShownCard:
    return ShownCard(kind="none", content=why)


def _follows(written: str) -> bool:
    """Whether a page can be light or dark as the report is."""
    lowered = written.lower()
    both = "color-scheme:light dark" in lowered.replace(": ", ":")
    return both or not any(word in lowered for word in _COLOURED)


def _closed(code: str) -> str:
    """A script that cannot end its element: what would is only in texts and patterns."""
    return visible(code.replace("\r\n", "\n")).replace("</script", "<\\/script").replace("<!--", "<\\!--")


_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
"""What a browser drops, replaces, or takes as an order to turn the text around."""


def visible(value: object) -> str:
    r"""Plain text in which what would not be seen is: ``\x1b``, ``\u202e``, ``\udc80``."""
    return _INVISIBLE.sub(lambda match: _spelled(ord(match[0])), str(value))


def finalized(value: object) -> object:
    """What a template puts in, before Jinja2 escapes it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def as_data(value: object) -> Markup:
    """Plain data for a script element, in which only ``<`` means something: ``</script``, ``<!--``."""
    dumped = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(dumped.replace("<", "\\u003c"))


def digest(script: str) -> str:
    """What a content security policy names a script by."""
    hashed = hashlib.sha256(script.encode("utf-8", "replace")).digest()
    return f"'sha256-{base64.b64encode(hashed).decode('ascii')}'"


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(item) for item in value]
    return _plain(attrs.asdict(value, recurse=False)) if attrs.has(type(value)) else value


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
