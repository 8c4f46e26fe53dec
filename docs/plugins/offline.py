"""The site needs nothing from the network: what would load something from elsewhere fails the build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_LOADED = (
    re.compile(
        r"<(?:script|img|iframe|source|video|audio)\b[^>]*\b(?:src|srcset)=[\"']?((?:https?:)?//[^\"'\s>]+)"
    ),
    re.compile(r"<link\b[^>]*\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"),
    re.compile(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)"),
)


def on_post_build(config: Any, **_: Any) -> None:
    """Look through what was built."""
    for file in sorted(Path(config["site_dir"]).rglob("*")):
        if file.suffix in (".html", ".css", ".svg"):
            text = file.read_text(encoding="utf-8")
            found = [url for form in _LOADED for url in form.findall(text)]
            if found:
                raise PluginError(f"{file} loads {found[0]} from the network")
