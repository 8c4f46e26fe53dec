"""The commands, thin: each one parses what was typed and calls the room that does the work."""

from __future__ import annotations

from upshift.cli.commands import main, upshift

__all__ = ["main", "upshift"]
