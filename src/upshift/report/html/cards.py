"""The cards of steps on the page: pictures, HTML in a frame without access to anything, Markdown as text."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html.parser import HTMLParser

import attrs
from markupsafe import Markup

from upshift.model.settings.sizes import format_size
from upshift.model.spec.telemetry import Card
from upshift.report.html.escaping import digest, visible
from upshift.report.views.evidence import Evidence
from upshift.runtime.storage.metrics import of_rank

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
                return _none("What draws it is not in the store any more.")
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
