"""A line ``<!-- README: works -->`` becomes that part of the README, with its links as they are from here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

README = Path(__file__).parents[2] / "README.md"
_PLACE = re.compile(r"^<!-- README: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page."""
    return _PLACE.sub(lambda found: part(found[1]), markdown)


def part(name: str) -> str:
    """What is between ``<!-- NAME begins -->`` and ``<!-- NAME ends -->`` in the README."""
    text = README.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} begins -->\n(.*)<!-- {name} ends -->", text, re.DOTALL)
    if found is None:
        raise PluginError(f"{README} has no part {name!r}")
    return found[1].replace("](docs/", "](")
