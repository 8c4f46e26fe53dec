"""Who hears how attempts go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from upshift.model.spec import MetricValue

if TYPE_CHECKING:
    from upshift.runtime.supervisor.attempt import Attempt


class Watcher(Protocol):
    """Somebody who wants to know how an attempt goes."""

    def started(self, attempt: Attempt) -> None:
        """The step process runs."""

    def log_grew(self, attempt: Attempt, size: int) -> None:
        """The log has this many bytes."""

    def logged(self, attempt: Attempt, step: float | None, values: Mapping[str, MetricValue]) -> None:
        """Metrics have these values now, at a step of the caller's own count; told now and then."""

    def noticed(self, attempt: Attempt, text: str) -> None:
        """Something that a person should know now, and that the log of the step cannot say, in a line."""

    def ended(self, attempt: Attempt, problem: str | None) -> None:
        """The result is in the store; or it is not, because of ``problem``."""
