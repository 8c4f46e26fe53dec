"""What a card can be made of, in Metaflow's words: texts, tables, pictures and bars that a step may change.

Each shows itself as it would in a notebook, which is what :mod:`upshift.runtime.step.rendering` asks for. One
that was changed is shown as it is now when the step calls ``current.card.refresh()``, and when it ends.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any

from upshift.errors import UsageError, user_location
from upshift.model.checks import shown
from upshift.runtime.step.rendering import STYLE, Component, Unshowable, rendered
from upshift.runtime.tracebacks import user_text

_PICTURES = ((b"\x89PNG", "image/png"), (b"\xff\xd8", "image/jpeg"), (b"GIF8", "image/gif"))


class Markdown(Component):
    """A text in Markdown. A heading in its first line is the title of what follows.

    Parameters
    ----------
    text
        The text.
    """

    def __init__(self, text: str = "") -> None:
        head, _, rest = str(text).strip().partition("\n")
        self.title, self._text = (head.strip("# "), rest) if head.startswith("#") else ("Note", str(text))

    def _repr_markdown_(self) -> str:
        return self._text


class Table(Component):
    """A table.

    Parameters
    ----------
    data
        Rows; a cell may be a component.
    headers
        Names of the columns.
    disable_truncation
        Of Metaflow's; nothing is cut here.
    """

    def __init__(
        self,
        data: Sequence[Sequence[Any]] = ((),),
        headers: Sequence[str] = (),
        disable_truncation: bool = False,
    ) -> None:
        self._rows, self._heads = data, headers

    @classmethod
    def from_dataframe(cls, dataframe: Any = None, truncate: bool = True) -> Table:
        """A table of pandas, its index first."""
        frame = dataframe.reset_index() if any(dataframe.index.names) else dataframe
        return cls(frame.values.tolist(), [str(name) for name in frame.columns], not truncate)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{escape(str(name))}</th>" for name in self._heads)
        rows = "".join(f"<tr>{''.join(map(self._cell, row))}</tr>" for row in self._rows)
        return f"{STYLE}<table><thead><tr>{heads}</tr></thead>{rows}</table>"

    def _cell(self, value: Any) -> str:
        if isinstance(value, Component):
            return f"<td>{_inside(value)}</td>"
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        return f"<td{' class=n' if number else ''}>{escape(text)}</td>"


class Image(Component):
    """A picture.

    Parameters
    ----------
    src
        Content of a PNG, JPEG or GIF file.
    label
        What stands above it.

    Raises
    ------
    UsageError
        It is none of these.
    """

    def __init__(self, src: Any = None, label: str | None = None, **_: Any) -> None:
        self.title = label or ""
        if isinstance(src, Component) or not isinstance(src, (bytes, bytearray, str)):
            self._content: Any = src
            return
        if isinstance(src, str):
            src = base64.b64decode(src.partition("base64,")[2] or src)
        self._content = bytes(src)
        if not any(self._content.startswith(head) for head, _ in _PICTURES):
            raise UsageError(
                f"Image: {shown(self._content[:16])} is the content of no PNG, JPEG or GIF file",
                where=user_location(),
                fix="For what a package draws: Image.from_matplotlib(figure), Image.from_pil_image(image).",
            )

    @classmethod
    def from_matplotlib(cls, plot: Any, label: str | None = None, **_: Any) -> Image:
        """A figure, or axes, of Matplotlib."""
        return cls(plot, label)

    @classmethod
    def from_pil_image(cls, pilimage: Any, label: str | None = None, **_: Any) -> Image:
        """An image of Pillow."""
        return cls(pilimage, label)

    def _repr_mimebundle_(self) -> Mapping[str, Any]:
        content = self._content
        if not isinstance(content, bytes):
            drawn = rendered(getattr(content, "figure", content))
            self.title = self.title or drawn.title or ""
            return {drawn.media: binascii.b2a_base64(drawn.content).decode()}
        media = next(media for head, media in _PICTURES if content.startswith(head))
        return {media: binascii.b2a_base64(content).decode()}


class ProgressBar(Component):
    """How far something is: ``bar.update(7)``, and ``current.card.refresh()``.

    Parameters
    ----------
    max
        The whole.
    label
        What stands above it.
    value
        How much is done.
    unit, metadata
        What follows the numbers.
    """

    def __init__(
        self,
        max: float = 100,
        label: str | None = None,
        value: float = 0,
        unit: str | None = None,
        metadata: str | None = None,
    ) -> None:
        self.title = label or ""
        self._most, self._value, self._unit, self._about = max, value, unit or "", metadata or ""

    def update(self, new_value: float, metadata: str | None = None) -> None:
        """Show this much as done."""
        self._value, self.changed = new_value, True
        self._about = self._about if metadata is None else metadata

    def _repr_html_(self) -> str:
        told = " ".join(filter(None, (f"{self._value:,g} / {self._most:,g}", self._unit, self._about)))
        bar = f'<progress max="{float(self._most)}" value="{float(self._value)}"></progress>'
        return f"{STYLE}<p>{bar} {escape(told)}</p>"


class VegaChart(Component):
    """A chart of Vega-Lite, drawn by vl-convert-python where that is installed; else its specification.

    Parameters
    ----------
    spec
        The specification.
    data
        Its data, where the specification has none.
    show_controls
        Of Metaflow's; charts are pictures here.
    """

    def __init__(
        self, spec: Mapping[str, Any], data: Any = None, show_controls: bool = False, **_: Any
    ) -> None:
        values = {"data": {"values": data}} if data is not None else {}
        self._spec = {**spec, **values}
        title = spec.get("title")
        self.title = title if isinstance(title, str) else ""

    @classmethod
    def from_altair_chart(cls, altair_chart: Any) -> VegaChart:
        """A chart of Altair."""
        return cls(altair_chart.to_dict())

    def _repr_mimebundle_(self) -> Mapping[str, Any]:
        try:
            vl_convert = import_module("vl_convert")
        except ImportError:
            text = json.dumps(self._spec, indent=1, default=str)
            missing = "Not drawn: vl-convert-python is not installed where the step ran."
            return {"text/markdown": f"{missing}\n\n```json\n{text}\n```"}
        return {"image/svg+xml": vl_convert.vegalite_to_svg(self._spec)}


class Artifact(Component):
    """A value, as Python prints it.

    Parameters
    ----------
    artifact
        The value.
    name
        What it is called.
    """

    def __init__(self, artifact: Any, name: str | None = None, compressed: bool = True) -> None:
        self.title, self._text = name or "", repr(artifact)

    def _repr_html_(self) -> str:
        return f"{STYLE}<pre>{escape(self._text)}</pre>"


class Error(Artifact):
    """An exception with its traceback.

    Parameters
    ----------
    exception
        The exception.
    title
        What stands above it.
    """

    def __init__(self, exception: BaseException, title: str | None = None) -> None:
        self.title, self._text = title or type(exception).__name__, user_text(exception)


def _inside(component: Component) -> str:
    """A component as a cell of a table."""
    if isinstance(component, Markdown):
        return escape(component._text or component.title)
    try:
        drawn = rendered(component)
    except Unshowable as error:
        return escape(str(error))
    if drawn.media.startswith("image/"):
        return f'<img src="data:{drawn.media};base64,{base64.b64encode(drawn.content).decode()}">'
    text = drawn.content.decode()
    return text.removeprefix(STYLE) if drawn.media == "text/html" else escape(text)
