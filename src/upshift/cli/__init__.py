"""The command line. Each command parses its arguments, calls another package, and prints the result."""

from __future__ import annotations

from upshift.cli.commands import main, upshift

__all__ = ["main", "upshift"]
