"""An attempt of a task: its four records, and what it printed, logged and showed."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from upshift.model.spec.codec import from_json
from upshift.model.spec.hardware import Hardware, Stack
from upshift.model.spec.task import Failure
from upshift.model.spec.telemetry import Card, Checkpoints, Gap, MetricSummary, standing
from upshift.runs.catalog.rows import AttemptRow
from upshift.runs.history.records import RunRecords, utc
from upshift.runs.history.values import Drawn
from upshift.runtime.storage.metrics import Curve, first_of, read_by_rank, summaries_of
from upshift.runtime.storage.series import given, read_series
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.progress_bars import last_frames

_TAIL = 1 << 14
"""Bytes of a series that are read to know its devices."""


class Attempt(Drawn):
    """One try of a task, and its four records: asked, granted, seen, used.

    Attributes
    ----------
    run
        Id of the run that it belongs to: an earlier one, where its result was reused.
    number
        From 1.
    """

    def __init__(self, row: AttemptRow, records: RunRecords) -> None:
        self.row = row
        self._records = records
        self.run = row.task.run
        self.number = row.number
        self.status = row.status
        self.target = row.target
        self.backend = row.backend
        self.error: Failure | None = row.failure or (row.result.failure if row.result else None)
        self.reason = row.reason or (self.error.reason if self.error else None)
        self.node = row.node or (row.result.node if row.result else None)

    @property
    def started(self) -> datetime | None:
        """When it started, in UTC; None before."""
        return self._time("started")

    @property
    def ended(self) -> datetime | None:
        """When it ended, in UTC; None before."""
        return self._time("ended")

    @property
    def image(self) -> str | None:
        """The container image that it ran in, by digest; None: in none."""
        result = self.row.result
        return result.image if result is not None else self._records.image(self.row)

    @property
    def asked(self) -> Hardware | None:
        """What the code requested."""
        return self._early[0]

    @property
    def granted(self) -> Hardware | None:
        """What the backend reserved; None while it waits for that."""
        if self.status == "running" and self._early[1] is not None and self._early[1].gpus:
            return given(self._early[1], read_series(self.series_path, tail=_TAIL))
        return None if self.waits is not None else self._early[1]

    @property
    def waits(self) -> str | None:
        """What the attempt waits for before it can start, in words; None if nothing."""
        return self.row.waits if self.status == "pending" else None

    @property
    def waited(self) -> float | None:
        """Seconds that it waited for devices before it started; None: for none."""
        seconds = self.granted.details.get("waited") if self.granted is not None else None
        return seconds if isinstance(seconds, (int, float)) else None

    @property
    def seen(self) -> Hardware | None:
        """What the step's process found."""
        return self.row.result.seen if self.row.result else None

    @property
    def used(self) -> Hardware | None:
        """What the attempt really consumed."""
        return self.row.result.used if self.row.result else None

    @property
    def log(self) -> str:
        """What the attempt has printed so far; of a progress bar the last frame."""
        path = self._records.store.log_path(self.row.task, self.number)
        return last_frames(path.read_bytes()).decode("utf-8", "replace") if path.exists() else ""

    @property
    def series_path(self) -> Path:
        """Its samples, for :func:`upshift.runtime.storage.series.read_series`. No file: there are none.

        Of a step on several nodes those of the first one; others have ``node1.series`` and so on beside it.
        """
        return self._records.store.series_path(self.row.task, self.number)

    @property
    def processes(self) -> int | None:
        """How many processes it was granted, over all nodes; None: it is an ordinary step, of one."""
        granted = self._early[1]
        return granted.processes if granted is not None else None

    @functools.cached_property
    def ranks(self) -> list[AttemptRank]:
        """The processes of the attempt by rank; empty if it was started as a single one."""
        return ranks_of(self, self._records.store)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Where its processes were when they made no progress, or were stopped."""
        return self.row.result.stacks if self.row.result else ()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What of its log, metrics, cards or samples is not on record, because the disk was full, say."""
        return self.row.result.gaps if self.row.result else ()

    @property
    def checkpoints(self) -> Checkpoints | None:
        """The checkpoint that the attempt continued from, and those that it saved; None if there are none."""
        return self.row.result.checkpoints if self.row.result else None

    @functools.cached_property
    def metrics_by_rank(self) -> dict[int, dict[str, Curve]]:
        """What each of its processes has logged so far, by name."""
        return read_by_rank(self._records.store.metrics_path(self.row.task, self.number))

    @functools.cached_property
    def metrics(self) -> dict[str, Curve]:
        """The metrics logged so far by name: values with their steps and times.

        Of several processes those of rank 0; of a metric that rank 0 has not logged, those of the first one
        that has: each curve has its ``rank``.
        """
        return first_of(self.metrics_by_rank)

    @property
    def metric_summaries(self) -> Mapping[str, MetricSummary]:
        """The metrics in short, without reading all points of an attempt that is over."""
        if self.row.result is not None:
            return self.row.result.metrics
        return summaries_of(self.metrics_by_rank)

    @functools.cached_property
    def cards(self) -> list[Shown]:
        """The cards shown so far, in order."""
        store, result = self._records.store, self.row.result
        found = result.cards if result else read_cards(store.cards_path(self.row.task, self.number))
        return [Shown(card, store) for card in found]

    @functools.cached_property
    def _early(self) -> tuple[Hardware | None, Hardware | None]:
        result = self.row.result
        if result is not None:
            return result.asked, result.granted
        return self._records.asked_and_granted(self.row)

    def _time(self, field: str) -> datetime | None:
        seconds = getattr(self.row, field) or (getattr(self.row.result, field) if self.row.result else None)
        return utc(seconds) if seconds else None

    def __repr__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"<Attempt {self.number} of {self.row.task}: {self.status}{reason}>"


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
    cpu_seconds, memory_peak
        What it and its own processes used: CPU time, and bytes of memory at most.
    status
        As that of the attempt; of one that failed ``failed`` for the rank that did so first, ``completed``
        for those whose call had returned, and ``stopped`` for the others.
    stack
        Where it was when all ranks were asked; None: they were not.
    """

    def __init__(
        self,
        rank: int,
        seen: Mapping[str, Any],
        used: Mapping[str, Any],
        attempt: Attempt,
        log_path: Path,
    ) -> None:
        self.rank = rank
        self.node: int | None = seen.get("node")
        self.local_rank: int | None = seen.get("local_rank")
        self.host: str | None = seen.get("host")
        self.pid: int | None = seen.get("pid")
        self.device: str | None = seen.get("device")
        self.cpu_seconds: float | None = used.get("cpu_seconds")
        self.memory_peak: int | None = used.get("memory_peak")
        self.status = _status(rank, attempt, returned=seen.get("returned", False))
        self.stack: Stack | None = next((one for one in attempt.stacks if one.rank == rank), None)
        self._attempt = attempt
        self._log_path = log_path

    @property
    def log(self) -> str:
        """The output so far; of a progress bar, the last frame."""
        path = self._log_path
        return last_frames(path.read_bytes()).decode("utf-8", "replace") if path.exists() else ""

    @functools.cached_property
    def metrics(self) -> Mapping[str, Curve]:
        """The metrics logged so far, by name."""
        return self._attempt.metrics_by_rank.get(self.rank, {})

    def __repr__(self) -> str:
        return f"<Rank {self.rank} of {self._attempt.row.task}: {self.status}>"


def ranks_of(attempt: Attempt, store: Store) -> list[AttemptRank]:
    """The processes of an attempt, in order; none where it is an ordinary one."""
    seen, used = _by_rank(attempt.seen), _by_rank(attempt.used)
    count = max([attempt.processes or 0, *(rank + 1 for rank in seen)])
    path = functools.partial(store.rank_log_path, attempt.row.task, attempt.number)
    return [
        AttemptRank(rank, seen.get(rank, {}), used.get(rank, {}), attempt, path(rank))
        for rank in range(count)
    ]


def _by_rank(record: Hardware | None) -> Mapping[int, Mapping[str, Any]]:
    """What a record says of each process."""
    return {one["rank"]: one for one in record.details.get("ranks", ())} if record is not None else {}


def _status(rank: int, attempt: Attempt, *, returned: bool) -> str:
    if attempt.status != "failed":
        return attempt.status
    if attempt.error is not None and attempt.error.rank == rank:
        return "failed"
    return "completed" if returned else "stopped"


def read_cards(path: Path) -> tuple[Card, ...]:
    """The records in a file that stand, one on each line; a line that is torn is left out."""
    found = []
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                found.append(from_json(Card, line))
    return standing(found)


class Shown:
    """Something that a step had to show. A notebook draws it.

    Attributes
    ----------
    title, media
        What it is called; the media type of its content: ``"image/png"``, ``"text/html"``, ….
    id
        What it is shown under: ``"ID"`` of ``current.card["ID"]``; None: nothing of its own.
    bytes
        Size of the content.
    """

    def __init__(self, card: Card, store: Store) -> None:
        self.card = card
        self.title = card.title
        self.media = card.media
        self.id = card.id
        self.bytes = card.bytes
        self._store = store

    @property
    def content(self) -> bytes:
        """What it is; text is UTF-8.

        Raises
        ------
        BlobMissing, BlobDamaged
            The store does not have it any more.
        """
        return bytes(self._store.read(self.card.digest, self.card.bytes))

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        media, content = self.media, self.content
        if media == "application/vnd.plotly+json":
            return {"application/vnd.plotly.v1+json": json.loads(content)}
        return {media: content.decode() if media.startswith("text/") or media.endswith("xml") else content}

    def __repr__(self) -> str:
        return f"<Card {self.title!r}: {self.media}, {self.bytes:,} bytes>"
