"""Steps, tasks and attempts of a run, as users look at them; each reads what it shows when asked."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from upshift.errors import NotFound, suggestion
from upshift.model.spec.artifact import Artifact
from upshift.model.spec.checkpoints import Checkpoints
from upshift.model.spec.hardware import Hardware
from upshift.model.spec.launch import Launch, Stack
from upshift.model.spec.task import Failure, TaskId
from upshift.model.spec.telemetry import Gap, MetricSummary
from upshift.runs.catalog import AttemptRow, TaskRow
from upshift.runs.history_ranks import AttemptRank, ranks_of
from upshift.runs.history_records import UNFINISHED, RunRecords, utc
from upshift.runtime.storage.cards import Shown, read_cards
from upshift.runtime.storage.log_text import last_frames
from upshift.runtime.storage.metrics import Curve, first_of, read_by_rank, summaries_of
from upshift.runtime.storage.series import given, read_series

_TAIL = 1 << 14
"""Bytes of a series that are read to know its devices."""


class _Maker(abc.ABC):
    """Has outputs, and so a value."""

    @property
    @abc.abstractmethod
    def outputs(self) -> Outputs:
        """The outputs by name."""

    @functools.cached_property
    def output(self) -> object:
        """The value; a tuple of several outputs; of a mapped step a list, in order.

        Raises
        ------
        NotFound
            It failed, was skipped or is not over.
        """
        values = tuple(self.outputs.values())
        return values[0] if len(values) == 1 else values


class Step(_Maker):
    """A step of a run. ``len(step)`` is its number of tasks so far."""

    def __init__(self, name: str, records: RunRecords) -> None:
        self.name = name
        self._records = records

    @functools.cached_property
    def status(self) -> str:
        """As :func:`upshift.runs.history_records.step_status` says."""
        return self._records.status(self.name)

    @functools.cached_property
    def tasks(self) -> list[Task]:
        """The tasks, in the order of their indices; one if the step is not mapped."""
        return [Task(row, self._records) for row in self._records.tasks(self.name)]

    @functools.cached_property
    def hindrance(self) -> str:
        """What kept tasks of it from running: ``train failed``, ``the run was cancelled``."""
        return self._records.hindrance(self.name)

    @property
    def mapped(self) -> bool:
        """Whether the step has one task for each item."""
        return self._records.nodes[self.name].mapped

    @property
    def launch(self) -> Launch | None:
        """How it is started as several processes; None: it is an ordinary step, of one."""
        return self._records.graph.definition(self._records.nodes[self.name]).launch

    @functools.cached_property
    def outputs(self) -> Outputs:
        """The outputs by name; of a mapped step lists, in order.

        Raises
        ------
        NotFound
            It failed, was skipped or is not over.
        """
        names = self._records.outputs(self.name)
        if not self.mapped:
            if not self.tasks:
                raise _no_output(f"step {self.name!r}", self.status)
            return self.tasks[0].outputs
        if self.status in UNFINISHED or (not self.tasks and self.status != "completed"):
            raise _no_output(f"step {self.name!r}", self.status)
        each = [task.outputs for task in self.tasks]
        return Outputs(
            f"step {self.name!r}",
            {name: functools.partial(_column, each, name) for name in names},
        )

    def __len__(self) -> int:
        count = self._records.counts.get(self.name)
        return sum(tasks for status, tasks in count.items() if status != "cached") if count else 0

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Step {self.name}: {self.status}, {len(self)} task{'' if len(self) == 1 else 's'}>"


class Task(_Maker):
    """One instance of a step."""

    def __init__(self, row: TaskRow, records: RunRecords) -> None:
        self.row = row
        self._records = records
        self.index = row.task.index
        self.status = row.status
        self.cached = row.cached
        self.cache_reason = row.cache_reason

    @functools.cached_property
    def attempts(self) -> list[Attempt]:
        """Its attempts, in order. If its result was reused, those that led to it come last.

        These are of an earlier run (:attr:`Attempt.run`). Where nothing is known of them any more, there
        are none.
        """
        return [Attempt(row, self._records) for row in self._records.attempts(self.row)]

    @property
    def origin(self) -> TaskId | None:
        """The task, of an earlier run, whose result was reused; None if this task has its own."""
        if self.row.origin is None:
            return None
        run, step, index, _ = self.row.origin
        return TaskId(run=run, step=step, index=index)

    @functools.cached_property
    def artifacts(self) -> dict[str, Artifact]:
        """The outputs as they were saved, by name and in order; empty if the task did not complete."""
        result = self._records.result(self.row)
        if result is None:
            return {}
        return {name: result.outputs[name] for name in self._order(result.outputs)}

    @functools.cached_property
    def outputs(self) -> Outputs:
        """The outputs by name.

        Raises
        ------
        NotFound
            It failed, was skipped or is not over.
        """
        if self.status != "completed" or not self.artifacts:
            failure = self.attempts[-1].error if self.status == "failed" and self.attempts else None
            raise _no_output(self._name, self.status, failure)
        load = self._records.load
        return Outputs(self._name, {n: functools.partial(load, a) for n, a in self.artifacts.items()})

    @property
    def _name(self) -> str:
        return f"{'step' if self.index is None else 'task'} {str(self.row.task)!r}"

    def _order(self, outputs: Mapping[str, Artifact]) -> list[str]:
        known = self._records.outputs(self.row.task.step)
        return [name for name in known if name in outputs] or list(outputs)

    def __repr__(self) -> str:
        reused = " (reused)" if self.cached else ""
        return f"<Task {self.row.task}: {self.status}{reused}>"


class Attempt:
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
        self.error: Failure | None = row.result.failure if row.result else row.failure
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
        """What it waits for before it can start, in words; None: for nothing."""
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
        """What it really consumed."""
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
        """Its processes, by rank, if it was started as several ones; else there are none."""
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
        """What it has had of checkpoints: from which it went on, and what it has saved; None: nothing."""
        return self.row.result.checkpoints if self.row.result else None

    @functools.cached_property
    def metrics_by_rank(self) -> dict[int, dict[str, Curve]]:
        """What each of its processes has logged so far, by name."""
        return read_by_rank(self._records.store.metrics_path(self.row.task, self.number))

    @functools.cached_property
    def metrics(self) -> dict[str, Curve]:
        """What it has logged so far, by name: values with their steps and times.

        Of several processes those of rank 0; of a metric that rank 0 has not logged, those of the first one
        that has: each curve has its ``rank``.
        """
        return first_of(self.metrics_by_rank)

    @property
    def metric_summaries(self) -> Mapping[str, MetricSummary]:
        """The same in short, without reading all points where the attempt is over."""
        if self.row.result is not None:
            return self.row.result.metrics
        return summaries_of(self.metrics_by_rank)

    @functools.cached_property
    def cards(self) -> list[Shown]:
        """What it has to show so far, in order."""
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


class Outputs(Mapping[str, object]):
    """Values by name, in order, each loaded when it is first asked for."""

    def __init__(self, owner: str, loaders: Mapping[str, Callable[[], object]]) -> None:
        self._owner = owner
        self._loaders = loaders
        self._values: dict[str, object] = {}

    def __getitem__(self, name: str) -> object:
        if name not in self._loaders:
            raise NotFound(f"{self._owner} has no output {name!r}", fix=suggestion(name, self._loaders))
        if name not in self._values:
            self._values[name] = self._loaders[name]()
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaders

    def get(self, name: str, default: Any = None) -> Any:
        """The output of this name, or ``default``."""
        return self[name] if name in self._loaders else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)

    def __repr__(self) -> str:
        return f"<outputs of {self._owner}: {', '.join(self)}>"


def _column(each: list[Outputs], name: str) -> list[object]:
    return [outputs[name] for outputs in each]


def _no_output(what: str, status: str, failure: Failure | None = None) -> NotFound:
    if status == "skipped":
        return NotFound(
            f"{what} has no output: it was skipped",
            why="Its condition, or that of a step it needs, was false.",
        )
    if status in UNFINISHED:
        return NotFound(f"{what} has no output yet: it is {status}")
    if status == "completed":
        return NotFound(f"{what} completed, but its result is neither in the catalog nor in the store")
    verb = "it failed" if status == "failed" else f"it was {status}"
    why, where, fix = (failure.message, failure.where, failure.fix) if failure else (None, None, None)
    return NotFound(f"{what} has no output: {verb}", where=where, why=why, fix=fix)
