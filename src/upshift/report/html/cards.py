"""What steps have to show: pictures as they are, HTML in a frame that can reach nothing, Markdown as text."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html.parser import HTMLParser

from upshift.model.settings.sizes import format_size
from upshift.model.spec.telemetry import Card
from upshift.report.html.elements import Html, data, name, tag, visible
from upshift.report.html.evidence import Evidence
from upshift.runtime.storage.metric_words import of_rank

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
    "<style>body{font:14px/1.5 system-ui,sans-serif;color:#1a212b;margin:10px}table{border-collapse:collapse}"
    "th,td{border:0;border-bottom:1px solid #e1e5ea;padding:3px 12px;text-align:right}</style>"
)
"""How a page looks that says nothing of its looks, such as a table of pandas."""
_HEIGHT = (
    "const all=document.documentElement;"
    "new ResizeObserver(()=>parent.postMessage(all.getBoundingClientRect().height+4,'*')).observe(all)"
)
"""A frame tells the page how high it is, which cannot look into it."""


class Cards:
    """The cards of a page, and what they need besides: scripts once, and leave for those to run.

    Parameters
    ----------
    evidence
        Where their contents are.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._left = TOTAL
        self._libraries: dict[str, str | None] = {}
        self.hashes: set[str] = set()

    def view(self, cards: Iterable[Card]) -> list[Html]:
        """Each card with its title."""
        return [self._card(card) for card in cards]

    def libraries(self) -> list[Html]:
        """The scripts that cards need to be drawn, as text: a frame runs them, the page does not."""
        return [data(_library(digest), code) for digest, code in self._libraries.items() if code]

    def _card(self, card: Card) -> Html:
        content = self._content(card)
        title = tag("figcaption", None, name(card.title + of_rank(card.rank)))
        if content is None:
            size = format_size(card.bytes)
            body = tag(
                "p", {"class": "quiet"}, f"{card.media}, {size}: too large, or not in the store any more."
            )
            return tag("figure", {"class": "card"}, title, body)
        return tag("figure", {"class": "card"}, title, self._body(card, content))

    def _content(self, card: Card) -> bytes | None:
        if card.bytes > min(LARGEST, self._left):
            return None
        content = self._evidence.content(card.digest, card.bytes)
        if content is not None:
            self._left -= len(content)
        return content

    def _body(self, card: Card, content: bytes) -> Html:
        if card.media in _PICTURES:
            # As a picture, SVG neither runs scripts nor loads anything.
            source = f"data:{card.media};base64,{base64.b64encode(content).decode('ascii')}"
            return tag("img", {"src": source, "alt": card.title})
        written = content.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        if card.media == "text/html":
            return self._frame(card.title, written)
        if card.media == "text/markdown":
            return tag("div", {"class": "prose"}, markdown(written))
        if card.media == _PLOTLY and card.script is not None:
            return self._plotly(card, written)
        if card.media.startswith("text/") or card.media.endswith("json"):
            return tag("pre", {"tabindex": 0}, written)
        return tag("p", {"class": "quiet"}, f"{card.media}, {format_size(card.bytes)}: not shown here.")

    def _frame(self, title: str, written: str) -> Html:
        document = f"<!doctype html>{_PLAIN}{visible(written)}<script>{_HEIGHT}</script>"
        self.hashes.update(script_hashes(document))
        return tag("iframe", {"sandbox": "allow-scripts", "srcdoc": document, "title": title})

    def _plotly(self, card: Card, written: str) -> Html:
        assert card.script is not None
        if card.script not in self._libraries:
            content = self._evidence.content(card.script)
            script = None if content is None else _closed(content.decode("utf-8", "replace"))
            self._libraries[card.script] = script
        code = self._libraries[card.script]
        if code is None:
            return tag("p", {"class": "quiet"}, "What draws it is not in the store any more.")
        self.hashes.update((_hash(code), _hash(_DRAW)))
        figure = json.dumps(json.loads(written)).replace("<", "\\u003c")
        document = (
            '<!doctype html><meta charset="utf-8"><style>html,body,#plot{margin:0;height:100%}</style>'
            f'<div id="plot"></div><script type="application/json" id="figure">{figure}</script>'
        )
        return tag(
            "iframe",
            {
                "sandbox": "allow-scripts",
                "title": card.title,
                "data-document": document,
                "data-library": _library(card.script),
                "data-draw": _DRAW,
            },
        )


def markdown(written: str) -> Html:
    """CommonMark with tables; HTML in it is text, pictures are links."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(visible(written))
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer")
                child.attrSet("target", "_blank")
    return Html(parser.renderer.render(tokens, parser.options, {}))


def script_hashes(document: str) -> list[str]:
    """What a content security policy names the scripts by that are written into a document."""
    reader = _Scripts()
    reader.feed(document)
    reader.close()
    return [_hash(script) for script in reader.scripts]


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


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8", "replace")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _closed(code: str) -> str:
    """The same script, as it may stand within an element: only texts and patterns can hold this."""
    return visible(code.replace("\r\n", "\n")).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _library(digest: str) -> str:
    return f"library-{hashlib.sha256(digest.encode()).hexdigest()[:12]}"
