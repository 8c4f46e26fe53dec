"""A run whose engine was submitted, ``run --detach``: what its row says of that engine, under ``source``.

Whoever submits an engine records the run as pending, with a new token, and only then submits. An engine
takes a pending run with its own token and no other, so that one that is late does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from upshift.model.spec.codec import decode, encode
from upshift.runs.catalog.rows import RunRow

KEY = "detached"


@attrs.frozen(kw_only=True)
class Detached:
    """The engine of a run as it was submitted last."""

    token: str  # of this submission; no other has it
    name: str  # of its job
    log: str  # the file that it prints to
    host: str  # where it was submitted
    since: float  # when, in seconds since the epoch
    target: str | None = None  # whose job it is; None: a process of that host
    lost: str | None = None  # why it does not work on the run any more, where that is known

    @classmethod
    def of(cls, row: RunRow) -> Detached | None:
        """That of a run; None: it was not submitted."""
        said = row.source.get(KEY)
        return decode(cls, said) if isinstance(said, Mapping) else None

    def source(self) -> dict[str, Any]:
        """What is recorded of it."""
        return {KEY: encode(self)}


def awaits_engine(row: RunRow) -> bool:
    """Whether an engine was submitted for it that has not begun yet, as far as anybody knows."""
    found = Detached.of(row) if row.status == "pending" else None
    return found is not None and found.lost is None
