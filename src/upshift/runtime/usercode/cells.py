"""Cells of a notebook: code without a file, whose text only the notebook's own process has.

A function that travels by value takes the text of its cells along, so that tracebacks and
:func:`inspect.getsource` find it over there.
"""

from __future__ import annotations

import io
import linecache
from collections.abc import Callable
from typing import Any, cast

from upshift.errors import cell_title
from upshift.model.spec.task import Artifact
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.serializers.pickled import picklers
from upshift.runtime.storage.store import Store


def save(function: Callable[..., Any], store: Store) -> Artifact | None:
    """Save the text of the cells that a function, and whatever goes with it by value, was written in."""
    titles = {file: title for file in list(linecache.cache) if (title := cell_title(file)) is not None}
    if not titles:
        return None
    pickler, _ = picklers()
    pickled = io.BytesIO()
    # Arrays are left out: what is looked for are names of files, which code objects hold as they are.
    pickler(pickled, 5, lambda _: None).dump(function)
    content = pickled.getvalue()
    used = {
        file: [title, "".join(linecache.getlines(file))]
        for file, title in titles.items()
        if file.encode() in content
    }
    return artifacts.save(used, store, name="cells") if used else None


def restore(saved: Artifact | None, store: Store) -> None:
    """Let this process know the text of the cells, and what they are called."""
    if saved is None:
        return
    for file, (title, text) in cast("dict[str, list[str]]", artifacts.load(saved, store)).items():
        # No time of modification: nobody looks for the file.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), title)
