"""Walks the graph: scheduling, attempts, retries, reuse, resume, events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from upshift.engine.options import RunOptions

if TYPE_CHECKING:
    from upshift.engine.cancelling import cancel
    from upshift.engine.run import execute

__all__ = ["RunOptions", "cancel", "execute"]

_HOMES = {"cancel": "upshift.engine.cancelling", "execute": "upshift.engine.run"}


def __getattr__(name: str) -> Any:
    # Read when first asked for: whoever only wants RunOptions does not pay for the rest.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
