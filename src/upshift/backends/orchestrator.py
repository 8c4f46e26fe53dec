"""A tool that runs whole pipelines: it walks the graph, and its pods record the result of each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

Document = Mapping[str, Any]
"""A pipeline in the form of the tool, or a part of it, as plain tables."""


class Gone(Exception):
    """The tool knows no run of this id."""


@attrs.frozen(kw_only=True)
class Standing:
    """The state of a run in the tool."""

    phase: str  # "pending", "running", "completed", "failed" or "cancelled"
    message: str | None = None  # why it failed, in the tool's words

    @property
    def over(self) -> bool:
        """Whether nothing more will run."""
        return self.phase not in ("pending", "running")


class Orchestrator(Protocol):
    """The tool. Every call may raise ``BackendError`` (it refuses) and ``NotNow`` (it does not answer)."""

    title: str
    """What people call it."""

    def confirm(self) -> None:
        """See that it can be reached and takes runs of this target."""

    def submit(self, name: str, documents: Sequence[Document], *, description: str) -> str:
        """Have a pipeline run, unless one of this name does already; gives the id of the run."""

    def standing(self, run: str) -> Standing:
        """How a run is now. Raises ``Gone``."""

    def words(self, run: str) -> Sequence[tuple[str, str]]:
        """Its messages about tasks whose pods wait or never started: name there, message."""

    def stop(self, run: str) -> None:
        """End a run; pods are told to. Raises ``Gone``."""

    def retry(self, run: str) -> None:
        """Continue a run that has ended from its completed tasks. Raises ``Gone``."""

    def link(self, run: str) -> str | None:
        """Where people look at a run."""

    def close(self) -> None:
        """Close the connection."""
