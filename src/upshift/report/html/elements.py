"""HTML whose text cannot break out: whatever is not :class:`Html` already is escaped where it is put in."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Union

_VOID = frozenset({"br", "hr", "img", "input", "meta"})
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
"""What a browser drops, replaces, or takes as an order to turn the text around."""
Attribute = Union[str, int, float, bool, None]


class Html(str):
    """Text that is HTML, and safe where elements may be."""

    __slots__ = ()


Child = Union[str, int, float, None, Iterable[Any]]
"""Of an element: text, :class:`Html`, numbers, nothing, or several of these."""


def visible(value: object) -> str:
    r"""Plain text in which what would not be seen is: ``\x1b``, ``\u202e``, ``\udc80``."""
    return _INVISIBLE.sub(_spelled, str(value))


def text(value: object) -> Html:
    """Text, for an element or an attribute."""
    return Html(html.escape(visible(value)))


def tag(name: str, attributes: Mapping[str, Attribute] | None = None, *children: Child) -> Html:
    """An element. Attributes that are None or False are left out; True stands without a value."""
    parts = [f"<{name}"]
    for key, value in (attributes or {}).items():
        if value is True:
            parts.append(f" {key}")
        elif value is not None and value is not False:
            parts.append(f' {key}="{text(value)}"')
    parts.append(">")
    if name not in _VOID:
        parts += [*_flat(children), f"</{name}>"]
    return Html("".join(parts))


def join(*children: Child) -> Html:
    """Several things, one after the other."""
    return Html("".join(_flat(children)))


def name(value: object) -> Html:
    """A name of the user's, which may run from right to left and leaves what is around it in its place."""
    return tag("bdi", None, str(value))


def data(identity: str, value: object) -> Html:
    """Plain data for the page's own script."""
    dumped = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Within a script element only "<" means something: "</script", "<!--".
    safe = _INVISIBLE.sub(_as_json, dumped).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{text(identity)}">{safe}</script>')


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Html):
            yield child
        elif isinstance(child, (str, int, float)):
            yield text(child)
        elif child is not None:
            yield from _flat(child)


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _as_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
