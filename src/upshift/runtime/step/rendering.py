"""What a step shows, as bytes that a browser can draw: figures, images, tables, texts.

Packages that draw are never imported here: what is of such a package has been made by the user's code,
which has imported it.
"""

from __future__ import annotations

import binascii
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from upshift.model.settings.sizes import format_size

LARGEST = 5_000_000
"""Bytes of one card: a report with many of them has to open in a browser."""
SHARPEST = 2000
"""Pixels of an image, along its longer side."""
ROWS, COLUMNS, CELL = 1000, 50, 200
"""Of a table: rows, columns, and characters in a cell that are shown."""
PLOTLY = "application/vnd.plotly+json"

_DENSITY = 144
"""Dots per inch of a Matplotlib figure: sharp on a screen that has two for one."""
_FILES = {
    ".gif": "image/gif",
    ".htm": "text/html",
    ".html": "text/html",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".md": "text/markdown",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
}
_METHODS = {
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
}
"""How objects show themselves in a notebook, in the order in which they are asked."""
_FROM_ELSEWHERE = (
    r"""(?i)<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)\s*=\s*["']?((?:https?:)?//[^\s"'>]+)"""
    r"""|["'](https?://(?:cdn\.|unpkg\.)[^\s"'>]*)"""
)
STYLE = (
    "<style>:root{color-scheme:light dark}body{font:14px system-ui,sans-serif}table{border-collapse:collapse}"
    "th,td{padding:2px 12px 2px 0;border-bottom:1px solid #8886;text-align:left}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}</style>"
)


class HTML(str):
    """A text that is HTML. As a card, or returned by a step, it is drawn instead of read."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


HTML.__module__ = "upshift"  # where values that are saved look for it, wherever it is


class Component:
    """Something that a card shows, and the step may change; :mod:`upshift.runtime.step.components`.

    Attributes
    ----------
    title
        What stands above it; empty: what kind of thing it is.
    changed
        Whether it is different from what was shown last.
    """

    title = ""
    changed = False

    def update(self, *args: Any, **options: Any) -> None:
        """Have other content, as the constructor takes it."""
        type(self).__init__(self, *args, **options)
        self.changed = True


class Unshowable(Exception):
    """There is no way to show a value; the text says why."""


class Rendered(NamedTuple):
    """Something to look at."""

    media: str  # media type of the content
    content: bytes  # text as UTF-8
    title: str | None = None  # what it calls itself; None: nothing
    script: bytes | None = None  # JavaScript that draws it
    remark: str | None = None  # what the user should know of it

    @property
    def is_text(self) -> bool:
        """Whether the content is a text in which a secret may be."""
        return self.media.startswith("text/") or self.media in ("image/svg+xml", PLOTLY)


Clean = Callable[[str], str]
"""Takes secrets out of a text. What is shortened is cleaned before: half a secret is not recognized."""


def rendered(value: object, clean: Clean = str) -> Rendered:
    """What a value looks like. Only what is shortened is clean already."""
    if isinstance(value, str):
        if not isinstance(value, HTML):
            return Rendered(media="text/markdown", content=_bytes(value))
        return _html(str(value), clean)
    if isinstance(value, Path):
        return _file(value, clean)
    render = _renderer(value)
    if render is not None:
        return render(value)
    if isinstance(value, (list, tuple, Mapping)) and value:
        return _table(value, clean)
    return _self_shown(value, clean)


def is_picture(value: object) -> bool:
    """Whether a step that returns this value means it to be looked at, too."""
    if isinstance(value, Path):
        return _FILES.get(value.suffix.lower(), "text/markdown") != "text/markdown"
    if isinstance(value, (str, bytes, int, float)):
        return isinstance(value, HTML)
    return _renderer(value) is not None or _is(value, "IPython.core.display", "DisplayObject")


def _renderer(value: object) -> Callable[[Any], Rendered] | None:
    """What renders values of a package that draws."""
    if _is(value, "matplotlib.figure", "Figure"):
        return _matplotlib
    if _is(value, "matplotlib.axes", "Axes"):
        return lambda axes: _matplotlib(axes.figure.figure)
    if _is(value, "plotly.basedatatypes", "BaseFigure"):
        return _plotly
    if _is(value, "PIL.Image", "Image"):
        return _pillow
    if _is(value, "altair", "TopLevelMixin"):
        return _altair
    return None


def _is(value: object, module: str, name: str) -> bool:
    known = getattr(sys.modules.get(module), name, None)
    return isinstance(known, type) and isinstance(value, known)


def _matplotlib(figure: Any) -> Rendered:
    file = io.BytesIO()
    inches = max(*map(float, figure.get_size_inches()), 0.1)
    figure.savefig(file, format="png", dpi=min(_DENSITY, SHARPEST / inches), bbox_inches="tight")
    titles = [getattr(figure, "get_suptitle", str)(), *(axes.get_title() for axes in figure.axes[:1])]
    title = next(filter(None, titles), None)
    return Rendered(media="image/png", content=file.getvalue(), title=title)


def _plotly(figure: Any) -> Rendered:
    # The package has the JavaScript of its own version, which alone is sure to draw what it writes.
    script = sys.modules["plotly"].offline.get_plotlyjs()
    return Rendered(
        media=PLOTLY,
        content=_bytes(figure.to_json()),
        title=figure.layout.title.text,
        script=_bytes(script),
    )


def _pillow(image: Any) -> Rendered:
    remark = None
    if max(image.size) > SHARPEST:
        was = "{:,} × {:,}".format(*image.size)
        image = image.copy()
        image.thumbnail((SHARPEST, SHARPEST))
        remark = f"of {was} pixels {image.size[0]:,} × {image.size[1]:,} are shown"
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        image = image.convert("RGB")
    file = io.BytesIO()
    image.save(file, format="PNG")
    media = "image/png"
    if file.tell() > LARGEST // 5 and image.mode in ("L", "RGB"):  # a photograph
        file = io.BytesIO()
        image.save(file, format="JPEG", quality=90)
        media = "image/jpeg"
    return Rendered(media=media, content=file.getvalue(), remark=remark)


def _altair(chart: Any) -> Rendered:
    file = io.StringIO()
    try:
        chart.save(file, format="svg")
    except (ImportError, ValueError) as error:
        raise Unshowable(f"Altair draws it with a package that is missing: {error}") from None
    title = getattr(chart, "title", None)
    return Rendered(
        media="image/svg+xml",
        content=_bytes(file.getvalue()),
        title=title if isinstance(title, str) else None,
    )


def _file(path: Path, clean: Clean) -> Rendered:
    media = _FILES.get(path.suffix.lower())
    if media is None:
        raise Unshowable(f"{path.name} is none of {', '.join(_FILES)}")
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise Unshowable(
                f"{path.name} has {format_size(size)}, and a card {format_size(LARGEST)} at most"
            )
        content = path.read_bytes()
    except OSError as error:
        raise Unshowable(f"{path} cannot be read: {error.strerror}") from None
    if media == "text/html":
        return _html(content.decode("utf-8", "replace"), clean)._replace(title=path.name)
    return Rendered(media=media, content=content, title=path.name)


def _html(text: str, clean: Clean) -> Rendered:
    found = re.search(_FROM_ELSEWHERE, text)
    where = clean(found[1] or found[2])[:100] if found else None
    remark = f"it loads {where}, which a report that is read offline cannot" if where else None
    return Rendered(media="text/html", content=_bytes(text), remark=remark)


def _self_shown(value: object, clean: Clean) -> Rendered:
    """As the object shows itself in a notebook."""
    bundle: Any = getattr(type(value), "_repr_mimebundle_", lambda _: None)(value)
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    for media, method in _METHODS.items():
        data = bundle.get(media) if isinstance(bundle, Mapping) else None
        if data is None and hasattr(type(value), method):
            data = getattr(value, method)()
        data = data[0] if isinstance(data, tuple) else data  # what follows are its properties
        if data is None:
            continue
        if media == "text/html":
            return _html(str(data), clean)
        if isinstance(data, str):
            text = media.startswith("text/") or media == "image/svg+xml"
            data = _bytes(data) if text else binascii.a2b_base64(data)
        return Rendered(media=media, content=bytes(data))
    raise Unshowable(
        f"nothing is known of how to show {_a(value)}: give a figure, an image, a text, rows, a "
        "pathlib.Path, or an object that shows itself in a notebook"
    )


def _table(value: Any, clean: Clean) -> Rendered:
    from html import escape  # with a table of all entities, which takes some milliseconds

    names, rows, total = _rows(value)
    head = "".join(f"<th>{escape(_cell(name, clean))}</th>" for name in names[:COLUMNS])
    lines = [f"<thead><tr>{head}</tr></thead>"] if names else []
    for row in rows:
        cells = "".join(f"<td{_number(cell)}>{escape(_cell(cell, clean))}</td>" for cell in row[:COLUMNS])
        lines.append(f"<tr>{cells}</tr>")
    left_out = []
    if total > ROWS:
        left_out.append(f"{total - ROWS:,} more rows")
    widest = max(len(names), max(map(len, rows), default=0))
    if widest > COLUMNS:
        left_out.append(f"{widest - COLUMNS:,} more columns")
    note = f"<p>… {' and '.join(left_out)}</p>" if left_out else ""
    text = f"{STYLE}<table>{''.join(lines)}</table>{note}"
    return Rendered(media="text/html", content=_bytes(text))


def _rows(value: Any) -> tuple[list[object], list[list[object]], int]:
    """Names of columns, the rows that are shown, and how many there are."""
    if isinstance(value, Mapping):
        columns = list(value.values())
        if all(isinstance(column, (list, tuple)) for column in columns):
            most = max(map(len, columns))
            rows = [[c[i] if i < len(c) else "" for c in columns] for i in range(min(most, ROWS))]
            return list(value), rows, most
        return [], [[name, cell] for name, cell in value.items()][:ROWS], len(value)
    if all(isinstance(row, Mapping) for row in value):
        names = list(dict.fromkeys(name for row in value for name in row))
        return names, [[row.get(name, "") for name in names] for row in value[:ROWS]], len(value)
    if all(isinstance(row, (list, tuple)) for row in value):
        return [], [list(row) for row in value[:ROWS]], len(value)
    raise Unshowable(
        "a list is shown as a table if each of its items is a row: a dictionary, a list or a tuple"
    )


def _cell(value: object, clean: Clean) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) > CELL:
        text = clean(text)
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"


def _number(value: object) -> str:
    return ' class="n"' if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def _a(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def pictures(values: Sequence[object], names: Sequence[str], most: int) -> Iterator[tuple[str, object]]:
    """What a step has returned to be looked at, each with the name of its output: also in a list of such."""
    for name, value in zip(names, values, strict=True):
        items = [value]
        if type(value) in (list, tuple):
            items = list(value)[:most]  # type: ignore[call-overload]
        elif type(value) is dict:
            items = list(value.values())[:most]
        if items and all(map(is_picture, items)):
            yield from ((name, item) for item in items)
