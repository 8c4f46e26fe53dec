"""The processes of an attempt that has several, as users look at them: what is known of each rank."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upshift.model.spec.launch import Stack
from upshift.runtime.storage.log_text import last_frames
from upshift.runtime.storage.metrics import Curve

if TYPE_CHECKING:
    from upshift.runs.history_steps import Attempt
    from upshift.runtime.storage.store import Store


class AttemptRank:
    """One of several processes of an attempt.

    Attributes
    ----------
    rank
        Its number over all nodes, from 0.
    node, local_rank
        Number of its node, from 0, and its number there. None, as the others below, where it is not known:
        while the attempt runs, and where it ended before the process had looked around.
    host, pid
        Name of its host, and its process id there.
    device
        The uuid of the device that it was given.
    status
        As that of the attempt; of one that failed ``failed`` for the rank that did so first, ``completed``
        for those whose call had returned, and ``stopped`` for the others.
    stack
        Where it was when all ranks were asked; None: they were not.
    """

    def __init__(self, rank: int, seen: Mapping[str, Any], attempt: Attempt, log_path: Path) -> None:
        self.rank = rank
        self.node: int | None = seen.get("node")
        self.local_rank: int | None = seen.get("local_rank")
        self.host: str | None = seen.get("host")
        self.pid: int | None = seen.get("pid")
        self.device: str | None = seen.get("device")
        self.status = _status(rank, attempt, returned=seen.get("returned", False))
        self.stack: Stack | None = next((one for one in attempt.stacks if one.rank == rank), None)
        self._attempt = attempt
        self._log_path = log_path

    @property
    def log(self) -> str:
        """What it has printed so far; of a progress bar the last frame."""
        path = self._log_path
        return last_frames(path.read_bytes()).decode("utf-8", "replace") if path.exists() else ""

    @functools.cached_property
    def metrics(self) -> Mapping[str, Curve]:
        """What it has logged so far, by name."""
        return self._attempt.metrics_by_rank.get(self.rank, {})

    def __repr__(self) -> str:
        return f"<Rank {self.rank} of {self._attempt.row.task}: {self.status}>"


def ranks_of(attempt: Attempt, store: Store) -> list[AttemptRank]:
    """The processes of an attempt, in order; none where it is an ordinary one."""
    told = attempt.seen.details.get("ranks", ()) if attempt.seen is not None else ()
    seen = {one["rank"]: one for one in told}
    count = max([attempt.processes or 0, *(rank + 1 for rank in seen)])
    path = functools.partial(store.rank_log_path, attempt.row.task, attempt.number)
    return [AttemptRank(rank, seen.get(rank, {}), attempt, path(rank)) for rank in range(count)]


def _status(rank: int, attempt: Attempt, *, returned: bool) -> str:
    if attempt.status != "failed":
        return attempt.status
    if attempt.error is not None and attempt.error.rank == rank:
        return "failed"
    return "completed" if returned else "stopped"
