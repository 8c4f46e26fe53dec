"""Runs that happened, or happen now, as users look at them: :class:`Run` and what is in it.

A view is made from the catalog and the store. What it shows is read when it is first asked for, and
then kept: ask :func:`get_run` again to see how a run goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, cast

import upshift
from upshift.errors import BlobDamaged, BlobMissing, NotFound, UsageError, suggestion, user_location
from upshift.model.checks import shown
from upshift.model.graph import Collection, Constant, FromStep, Graph, Source
from upshift.model.plain import words
from upshift.model.spec.codec import decode, to_json
from upshift.model.spec.task import Artifact, TaskId
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import INTERRUPTED, known_run, open_catalog, plain_status, standing
from upshift.runs.catalog.rows import UNFINISHED, RunRow
from upshift.runs.history.outputs import Placed, confirm_in_namespace
from upshift.runs.history.records import RunRecords, utc
from upshift.runs.history.steps import Step, StepList
from upshift.runs.history.tasks import Task
from upshift.runs.history.values import Drawn, Rows, flat_params, measured, named, qualified
from upshift.runtime.storage.artifacts import described

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers bring it; it need not be installed

    from upshift.model.configuration import Configuration
    from upshift.runtime.storage.manifest import State
    from upshift.runtime.storage.store import Store

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


def get_run(ref: str, configuration: Configuration | None = None) -> Run[Any]:
    """A run, by its id, a unique prefix of it, or ``"latest"``.

    Parameters
    ----------
    ref
        Which run.
    configuration
        Default: the one of the working folder.

    Raises
    ------
    NotFound
        There is no such run, or there are several.
    """
    if configuration is None:
        from upshift.model.configuration import load_configuration

        configuration = load_configuration()
    catalog = open_catalog(configuration)
    (row,) = standing([known_run(ref, catalog, configuration)], catalog)
    return Run(row, catalog)


def list_runs(
    *,
    pipeline: str | None = None,
    user: str | None = None,
    tag: str | None = None,
    status: str | None = None,
    limit: int | None = None,
    configuration: Configuration | None = None,
) -> RunList:
    """The runs for which all of what is given holds, newest first.

    The list is a table as well: ``list_runs(pipeline="training").to_pandas()`` has a row for each run, with
    its parameters and metrics as columns.

    Parameters
    ----------
    pipeline, user, tag
        Names.
    status
        ``"completed"``, ``"failed"``, ``"cancelled"``, ``"running"`` or ``"pending"``; or ``"interrupted"``,
        which is one kind of ``"cancelled"``.
    limit
        At most so many.
    configuration
        Default: the one of the working folder.
    """
    catalog = open_catalog(configuration)
    rows = catalog.runs(pipeline=pipeline, user=user, tag=tag, limit=None if status else limit)
    found = [row for row in standing(rows, catalog) if status in (None, row.status, plain_status(row))]
    return RunList(Run(row, catalog) for row in found[:limit])


class RunList(Rows["Run[Any]"]):
    """Runs: a list, and a table with a row for each."""

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each run: ``params.NAME`` for its parameters, ``metrics.NAME`` for last values.

        Of a metric of a mapped step, ``metrics.NAME`` is the best of its tasks, where the name tells which
        that is, and ``metrics.NAME.min`` and ``metrics.NAME.max`` are the least and the greatest.
        """
        self.measure()
        return [
            {
                "run": run.id,
                "pipeline": run.pipeline,
                "status": run.row.status,
                "target": run.target,
                "user": run.user,
                "tags": list(run.tags),
                "started": run.started,
                "seconds": run.seconds,
                **named("params", run.flat_params),
                **measured(run.metrics),
            }
            for run in self
        ]

    def measure(self) -> None:
        """Read what all of these runs logged at once, instead of run by run."""
        RunRecords.measure_all([run._records for run in self])


class Run(Drawn, Placed, Generic[T]):
    """One execution of a pipeline. ``run["train"]`` is a step of it.

    Parameters
    ----------
    row
        The run's own record; or where it is: ``"20261123-160338-9g7y"``, ``"Training/20261123-160338-9g7y"``.
    catalog
        Where its tasks are.
    store
        Where its values are; default: the store that the run names.

    Raises
    ------
    NotFound
        There is no such run.
    """

    def __init__(self, row: RunRow | str, catalog: Catalog | None = None, store: Store | None = None) -> None:
        if catalog is None:
            catalog = open_catalog()
        if not isinstance(row, RunRow):
            pipeline, _, ref = row.rpartition("/")
            (row,) = standing([catalog.run(ref)], catalog)
            if pipeline not in ("", row.pipeline):
                raise NotFound(f"run {row.id} is one of {row.pipeline}, not of {shown(pipeline)}")
            if pipeline:
                confirm_in_namespace(row)
        self.row: RunRow = row
        self._catalog = catalog
        self._records = RunRecords(row, catalog, store, run=self)
        self.id = row.id
        self.pipeline = row.pipeline
        self.status = plain_status(row)
        self.target = row.target
        self.user = row.user
        self.tags = row.tags
        self.pathspec = f"{row.pipeline}/{row.id}"

    @property
    def interrupted(self) -> bool:
        """Whether its engine was killed; its ``status`` is ``cancelled`` then, and :func:`resume` goes on."""
        return self.row.status == INTERRUPTED

    @functools.cached_property
    def going_on(self) -> list[TaskId]:
        """Tasks that still run though the engine was killed: their supervisor lives, and ends with them."""
        return self._records.going_on() if self.interrupted else []

    @property
    def started(self) -> datetime:
        """When it started, in UTC."""
        return utc(self.row.started)

    @property
    def ended(self) -> datetime | None:
        """When it ended, in UTC; None while it goes on, and where it was interrupted."""
        return None if self.row.ended is None else utc(self.row.ended)

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it goes on, and where it was interrupted."""
        return None if self.row.ended is None else self.row.ended - self.row.started

    @functools.cached_property
    def params(self) -> dict[str, object]:
        """The pipeline's parameters, defaults included: the values themselves, each loaded from the store."""
        return {name: self._records.load(artifact) for name, artifact in self.param_artifacts.items()}

    @property
    def images(self) -> list[dict[str, Any]]:
        """The images of its steps: digest, recipe, parent, and the lock of what was installed."""
        return self._records.images

    @functools.cached_property
    def flat_params(self) -> dict[str, Any]:
        """The parameters as plain data, by the names that ``upshift run --param`` takes.

        A field of a dataclass, an attrs class or a pydantic model is a value of its own, ``"config.lr"``.
        Nothing is loaded. What plain data cannot hold is ``{"$type": …, "$text": …}``.
        """
        return flat_params(self.param_artifacts, self._records.texts)

    @functools.cached_property
    def param_artifacts(self) -> dict[str, Artifact]:
        """The pipeline's parameters as they were saved."""
        return {name: decode(Artifact, data) for name, data in self.row.params.items()}

    @functools.cached_property
    def param_texts(self) -> dict[str, str]:
        """The same in words."""
        return {name: words(value) for name, value in self.flat_params.items()}

    @property
    def metrics(self) -> dict[str, Any]:
        """The last value of each metric that its steps logged; of a mapped step a list.

        Where several steps logged a metric of the same name, the names are ``step.metric``.
        """
        return qualified((step, self._records.metrics(step)) for step in self._records.measures)

    @property
    def graph(self) -> Graph:
        """What was run: steps, settings, and what needs what.

        Raises
        ------
        StoreError
            The store does not have it.
        """
        return self._records.graph

    @functools.cached_property
    def steps(self) -> StepList:
        """The steps, each after those that it needs.

        Of a flow, a step inside a foreach inside another, and one that a loop comes to again, is there once
        for each time: ``train.0``, ``train.1``. ``run["train"]`` and ``for step in run`` have them together.
        """
        return StepList((Step(name, self._records) for name in self._records.nodes), self)

    @functools.cached_property
    def by_name(self) -> dict[str, Step]:
        """The same, by name."""
        return {step.name: step for step in self.steps}

    def told(self, state: Artifact) -> Any:
        """What a state of a flow holds, as plain data; where the store has lost some of it, the rest."""
        try:
            return described(state, self._records.store)
        except (BlobMissing, BlobDamaged):
            return described(state)

    @property
    def parent(self) -> upshift.Flow:
        """The flow that it is a run of."""
        return upshift.Flow(self.pipeline, check=False)

    @property
    def created_at(self) -> datetime:
        """When it started, in UTC."""
        return self.started

    @property
    def finished_at(self) -> datetime | None:
        """When it ended, in UTC; None while it goes on."""
        return self.ended

    @property
    def finished(self) -> bool:
        """Whether the run is over, whatever its outcome."""
        return self.status not in UNFINISHED

    @property
    def successful(self) -> bool:
        """Whether all of it is done."""
        return self.status == "completed"

    @property
    def end_task(self) -> Task | None:
        """The task of its last step; None: it has not come to that."""
        last = list(self)[-1:]
        return next((task for step in last for task in step.tasks if task.successful), None)

    @property
    def data(self) -> State | None:
        """The artifacts that the last step left, as attributes; None: the run did not come to its end."""
        return None if self.end_task is None else self.end_task.data

    @property
    def user_tags(self) -> frozenset[str]:
        """The tags that it was given."""
        return frozenset(self.tags)

    @property
    def system_tags(self) -> frozenset[str]:
        """Further tags to find the run by: ``user:NAME``, ``target:NAME``."""
        return frozenset((f"user:{self.user}", f"target:{self.target}"))

    def add_tag(self, tag: str | Iterable[str]) -> None:
        """Give it a tag, or several."""
        self.replace_tags((), tag)

    def remove_tag(self, tag: str | Iterable[str]) -> None:
        """Take a tag away, or several."""
        self.replace_tags(tag, ())

    def replace_tags(self, remove: str | Iterable[str], add: str | Iterable[str]) -> None:
        """Take tags away, and give it others; also as ``add_tags``, ``remove_tags``, ``replace_tag``.

        Raises
        ------
        UsageError
            A tag is none.
        """
        gone, new = ({tags} if isinstance(tags, str) else set(tags) for tags in (remove, add))
        for tag in new:
            if not isinstance(tag, str) or not tag.strip():
                raise UsageError(f"{shown(tag)} is not a tag", where=user_location(), fix="Give it a text.")
        self.row = self._catalog.change_tags(self.id, gone, new)
        self.tags = self.row.tags
        if self.finished:  # else whoever runs it writes its record
            from upshift.runs.publishing import published  # few change tags

            with published(self._records.store, self.id):
                self._records.store.write_record(self.id, "run.json", to_json(self.row))

    add_tags, remove_tags, replace_tag = add_tag, remove_tag, replace_tags

    @functools.cached_property
    def output(self) -> T:
        """What the pipeline returned.

        Raises
        ------
        NotFound
            A step that it comes from has no output: it failed, was skipped or is not over.
        """
        source = self._records.graph.output
        return cast(T, None if source is None else self._value(source))

    def __getitem__(self, step: str) -> Step:
        nodes = self._records.groups.get(step, ())
        if len(nodes) > 1 or (nodes and step not in self.by_name):
            return Step(step, self._records, nodes)
        if step in self.by_name:
            return self.by_name[step]
        raise NotFound(
            f"run {self.id} has no step {shown(step)}",
            fix=suggestion(f"{step}", dict.fromkeys((*self._records.groups, *self.by_name))),
        )

    def __iter__(self) -> Iterator[Step]:
        return (self[name] for name in self._records.groups)

    def __contains__(self, step: object) -> bool:
        return step in self._records.nodes or step in self._records.groups

    def _value(self, source: Source) -> object:
        if isinstance(source, Constant):
            return self._records.load(source.artifact)
        if isinstance(source, FromStep):
            return self.by_name[source.node].outputs[source.output]
        assert isinstance(source, Collection)
        values = [self._value(item) for item in source.items]
        if source.form == "dict":
            return dict(zip(source.keys, values, strict=True))
        return tuple(values) if source.form == "tuple" else values

    def __repr__(self) -> str:
        took = "" if self.seconds is None else f" in {self.seconds:.1f} s"
        return f"<Run {self.id} of {self.pipeline}: {self.row.status}{took} on {self.target}>"
