"""A line ``<!-- backends -->`` becomes the table of what each backend declares that it can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from upshift.backends.base import Capabilities
from upshift.backends.registry import backend_names, capabilities_of
from upshift.config import ResourceSettings
from upshift.model.configuration import Target

PLACE = "<!-- backends -->"
_YES, _NO = "yes", "–"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page."""
    return markdown.replace(PLACE, _table()) if PLACE in markdown else markdown


def _table() -> str:
    backends = {name: capabilities_of(Target(name=name, backend=name)) for name in backend_names()}
    heads = ["", *(f"`{name}`" for name in backends)]
    lines = [heads, ["---"] * len(heads), *_rows(backends.values())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rows(backends: Iterable[Capabilities]) -> Iterable[list[str]]:
    backends = tuple(backends)
    for field in attrs.fields(ResourceSettings):
        if field.name.startswith("_"):
            continue
        yield [f"`{field.name}`", *(_YES if field.name in one.fields else _NO for one in backends)]
    yield ["runs steps in the image that they ask for", *(_YES if one.images else _NO for one in backends)]
    yield [
        "sources of [secrets](../how-to/secrets.md)",
        *(", ".join(f"`{scheme}:`" for scheme in sorted(one.secrets)) or _NO for one in backends),
    ]
    yield [
        "refuses what it cannot grant in full, unless told otherwise",
        *(_YES if one.strict else _NO for one in backends),
    ]
