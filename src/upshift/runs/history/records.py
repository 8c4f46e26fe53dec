"""The records of a run that its views are made from, read when first asked for.

The nodes by which the graph of a flow grows are recorded nowhere. They follow from the graph and the cases
and lists that its steps chose, so that everybody who reads these finds the same nodes.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

import upshift
from upshift.errors import StoreError
from upshift.model.graph import CHOICE, ITEMS, STATE, Graph, Node, needs, ordered
from upshift.model.growth import Growth
from upshift.model.spec.codec import from_json
from upshift.model.spec.task import Artifact, TaskId, TaskResult, TaskSpec, Value
from upshift.model.spec.telemetry import MetricSummary
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import INTERRUPTED
from upshift.runs.catalog.rows import UNFINISHED, AttemptRow, RunRow, TaskRow, attempt_of
from upshift.runs.history.values import last_values
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.manifest import State
from upshift.runtime.storage.metrics import read_by_rank, summaries_of
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.model.spec.hardware import Hardware


_Row = TypeVar("_Row", TaskRow, AttemptRow)
_NAMED = 3
"""Steps that are named; of more than these only the first ones are."""


class RunRecords:
    """The records of one run, each read when first needed and then kept.

    Parameters
    ----------
    row
        The run.
    catalog
        Where its tasks and attempts are.
    store
        Where its graph and values are; default: the store that the run names.
    run
        The view that shows them: what its steps and tasks belong to.
    """

    def __init__(
        self, row: RunRow, catalog: Catalog, store: Store | None = None, *, run: upshift.Run[Any]
    ) -> None:
        self.row = row
        self.run = run
        self.catalog = catalog
        self._store = store
        self._items: dict[str, tuple[Artifact, ...]] = {}
        self._held: dict[str, Mapping[str, Artifact]] = {}
        self._results: dict[str, list[TaskResult | None]] = {}
        self._tasks: dict[str, list[TaskRow]] = {}
        self._attempts: dict[tuple[str, str], dict[TaskId, list[AttemptRow]]] = {}

    @property
    def store(self) -> Store:
        """The store with the run's values."""
        if self._store is None:
            self._store = open_store(self.row.store)
        return self._store

    @functools.cached_property
    def graph(self) -> Graph:
        """What was run.

        Raises
        ------
        StoreError
            The store does not have it, or it cannot be read.
        """
        content = self.store.read_record(self.row.id, "graph.json")
        if content is None:
            raise StoreError(
                f"run {self.row.id} has no graph in the store {self.row.store}",
                why="Its records were removed, or this is not the store that it ran with.",
            )
        try:
            graph = from_json(Graph, content)
        except ValueError as error:
            raise StoreError(
                f"the graph of run {self.row.id} in the store {self.row.store} cannot be read", why=str(error)
            ) from error
        return grown(graph, self._made_by, self.store) if graph.flow is not None else graph

    @functools.cached_property
    def images(self) -> list[dict[str, Any]]:
        """What the images of its steps were made from, and what is in them; empty where that is not known."""
        content = self.store.read_record(self.row.id, "images.json")
        try:
            found: list[dict[str, Any]] = json.loads(content or b"[]")
        except ValueError:
            return []
        return found

    @functools.cached_property
    def nodes(self) -> dict[str, Node]:
        """The steps of the graph, in order."""
        return {node.name: node for node in self.graph.nodes}

    @functools.cached_property
    def groups(self) -> dict[str, list[str]]:
        """The nodes of each step of a flow, as a foreach or a loop makes several; else each by itself."""
        groups: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            groups.setdefault(name if self.graph.flow is None else node.step, []).append(name)
        return groups

    @functools.cached_property
    def counts(self) -> Mapping[str, Counter[str]]:
        """For each step, how many of its tasks have which status; ``cached`` counts, too."""
        counts: dict[str, Counter[str]] = {}
        for step, status, tasks, cached in self.catalog.counts(self.row.id):
            counts.setdefault(step, Counter()).update({status: tasks, "cached": cached})
        return counts

    def outputs(self, step: str) -> tuple[str, ...]:
        """Names of a step's outputs, in order."""
        return self.graph.definition(self.nodes[step]).outputs

    def status(self, *steps: str) -> str:
        """The status of a step, or of several taken together: see :func:`step_status`."""
        counts = sum((self.counts.get(step, Counter()) for step in steps), Counter())
        return step_status({name: counts[name] for name in counts if name != "cached"}, self.row.status)

    def hindrance(self, step: str) -> str:
        """What kept tasks of a step from running: ``train failed``, ``the run was cancelled``.

        What failed among the steps that it needs, directly or not; where none of them did, what
        stopped the run.
        """
        if self._failed_before[step]:
            return f"{_listed(self._failed_before[step])} failed"
        failed = [name for name in self.nodes if self.status(name) == "failed"]
        if self.row.status in ("cancelled", INTERRUPTED):
            return f"the run was {self.row.status}"
        if not failed:
            return "the run was stopped"
        return f"the run stopped when {_listed(failed)} failed"

    @functools.cached_property
    def _failed_before(self) -> Mapping[str, list[str]]:
        """For each step the failed ones among those that it needs, directly or not; as many as are named."""
        found: dict[str, list[str]] = {}
        for node in ordered(self.graph.nodes):
            names: dict[str, None] = {}
            for name in sorted(needs(node)):
                names.update(dict.fromkeys(found[name]))
                if self.status(name) == "failed":
                    names[name] = None
            found[node.name] = list(names)[: _NAMED + 1]
        return found

    def tasks(self, step: str) -> list[TaskRow]:
        """The tasks of a step, in the order of their indices."""
        if step not in self._tasks:
            self._tasks[step] = [self._as_left(row) for row in self.catalog.tasks(self.row.id, step)]
        return self._tasks[step]

    def attempts(self, row: TaskRow) -> list[AttemptRow]:
        """The attempts of a task, in order; after its own those whose result it has, if it was reused."""
        own = self._attempts_of(row.task)
        if row.origin is None:
            return own
        run, step, index, number = row.origin
        task = TaskId(run=run, step=step, index=index)
        behind = [attempt for attempt in self._attempts_of(task) if attempt.number <= number]
        if not behind:  # the catalog has forgotten that run; the store may have not
            result = self.store.read_result(task, number)
            behind = [] if result is None else [attempt_of(result)]
        return [*own, *behind]

    def result(self, row: TaskRow) -> TaskResult | None:
        """What a completed task made: its own result, or the one that it was reused from."""
        if row.status != "completed":
            return None
        results = [attempt.result for attempt in self.attempts(row) if attempt.result is not None]
        return next((r for r in reversed(results) if r.status == "completed"), None)

    def results(self, step: str) -> list[TaskResult | None]:
        """What the tasks of a step made, in order, looked up once."""
        if step not in self._results:
            self._results[step] = [self.result(row) for row in self.tasks(step)]
        return self._results[step]

    def asked_and_granted(self, row: AttemptRow) -> tuple[Hardware | None, Hardware | None]:
        """The records known without a result, asked and granted, from the attempt's spec."""
        from upshift.model.spec.hardware import Hardware

        spec = self._spec(row)
        return (None, None) if spec is None else (Hardware.asked(spec.request, spec.launch), spec.granted)

    def image(self, row: AttemptRow) -> str | None:
        """The image that an attempt without a result runs in: from its spec."""
        spec = self._spec(row)
        return None if spec is None else spec.image

    def going_on(self) -> list[TaskId]:
        """Tasks recorded as running that have no result, where somebody is still at work for the run."""
        from upshift.runs.needed import Claimed  # what few runs need is not imported

        claimed = Claimed(self.store.address)
        claimed.look()
        if self.row.id not in claimed.runs:
            return []
        rows = self.catalog.attempts(self.row.id, without_result=True)
        return [
            r.task for r in rows if r.status == "running" and not self.store.read_result(r.task, r.number)
        ]

    def load(self, value: Value) -> object:
        """The value of an artifact, or of several in a container."""
        return artifacts.load_value(value, self.store)

    def items(self, artifact: Artifact) -> tuple[Artifact, ...]:
        """The items of a list that was saved by item, read once."""
        if artifact.digest not in self._items:
            self._items[artifact.digest] = artifacts.items_of(artifact, self.store)
        return self._items[artifact.digest]

    def held(self, artifact: Artifact) -> Mapping[str, Artifact]:
        """What a state of a flow holds, by name, read once."""
        if artifact.digest not in self._held:
            state = self.load(artifact)
            self._held[artifact.digest] = state.artifacts if isinstance(state, State) else {}
        return self._held[artifact.digest]

    @functools.cached_property
    def measures(self) -> dict[str, dict[int | None, Mapping[str, MetricSummary]]]:
        """What each task of each step logged at its last attempt, in short: by step, index and metric."""
        found: dict[str, dict[int | None, Mapping[str, MetricSummary]]] = {}
        if self._unfinished:
            for step in self.nodes:
                for row in self.tasks(step):
                    found.setdefault(step, {})[row.task.index] = self._logged(row)
            return found
        for _, step, index, summaries in self.catalog.measures([self.row.id]):
            found.setdefault(step, {})[index] = summaries
        return found

    def metrics(self, step: str) -> dict[str, Any]:
        """The last value of each metric of a step; where it has many tasks, a list with None for some."""
        by_task = {index: last_values(short) for index, short in self.measures.get(step, {}).items()}
        if None in by_task or not by_task:
            return by_task.get(None, {})
        names = dict.fromkeys(name for index in sorted(by_task, key=_index) for name in by_task[index])
        size = sum(number for status, number in self.counts[step].items() if status != "cached")
        return {name: [by_task.get(index, {}).get(name) for index in range(size)] for name in names}

    @functools.cached_property
    def texts(self) -> Mapping[str, Any]:
        """:attr:`Graph.texts` of the graph, of which nothing else is read; empty, where it is gone."""
        content = self.store.read_record(self.row.id, "graph.json")
        try:
            return json.loads(content).get("texts", {}) if content is not None else {}
        except ValueError:
            return {}

    @staticmethod
    def measure_all(every: Sequence[RunRecords]) -> None:
        """Fill :attr:`measures` of the records of many runs that are over, by one look at the catalog."""
        over = {one.row.id: one for one in every if not one._unfinished and "measures" not in vars(one)}
        for one in over.values():
            one.measures = {}
        for catalog in {id(one.catalog): one.catalog for one in over.values()}.values():
            for run, step, index, summaries in catalog.measures(list(over)):
                over[run].measures.setdefault(step, {})[index] = summaries

    @property
    def _unfinished(self) -> bool:
        return self.row.status in (*UNFINISHED, INTERRUPTED)

    def _logged(self, row: TaskRow) -> Mapping[str, MetricSummary]:
        attempts = self.attempts(row)
        if not attempts:
            return {}
        last = attempts[-1]
        if last.result is not None:
            return last.result.metrics
        return summaries_of(read_by_rank(self.store.metrics_path(last.task, last.number)))

    def _made_by(self, step: str) -> Mapping[str, Artifact] | None:
        """The outputs of a step that is one task; None: it is not done."""
        done = [result for row in self.tasks(step) if (result := self.result(row)) is not None]
        return done[0].outputs if done else None

    def _attempts_of(self, task: TaskId) -> list[AttemptRow]:
        key = task.run, task.step
        if key not in self._attempts:
            by_task = self._attempts[key] = {}
            for row in self.catalog.attempts(*key):
                by_task.setdefault(row.task, []).append(self._as_left(row))
        return self._attempts[key].get(task, [])

    def _as_left(self, row: _Row) -> _Row:
        """What had not ended when the run was interrupted was cancelled, as far as it knows."""
        left = self.row.status == INTERRUPTED and row.task.run == self.row.id and row.status in UNFINISHED
        return attrs.evolve(row, status="cancelled") if left else row

    def _spec(self, row: AttemptRow) -> TaskSpec | None:
        there = self.store.has_spec(row.task, row.number)
        return self.store.read_spec(self.store.spec_path(row.task, row.number)) if there else None


def _index(index: int | None) -> int:
    return -1 if index is None else index


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


def step_status(counts: Mapping[str, int], run: str) -> str:
    """The status of a step, from those of its tasks and of the run. The first rule that fits decides.

    ==================================  ===============================================
    its tasks                           its status
    ==================================  ===============================================
    none yet, and the run goes on       ``pending``
    none, and the run completed         ``completed``: it was mapped over an empty list
    none, and the run ended otherwise   ``cancelled``: nothing of it will run any more
    any failed                          ``failed``
    all are pending, the run goes on    ``pending``
    any pending or running, likewise    ``running``
    any pending, running or cancelled   ``cancelled``: what the run did not reach
    all were skipped                    ``skipped``
    else                                ``completed``
    ==================================  ===============================================

    Parameters
    ----------
    counts
        How many tasks have each status.
    run
        Status of the run.
    """
    present = {status for status, tasks in counts.items() if tasks}
    if not present:
        return "pending" if run in UNFINISHED else "completed" if run == "completed" else "cancelled"
    if "failed" in present:
        return "failed"
    if run in UNFINISHED and present & set(UNFINISHED):
        return "pending" if present == {"pending"} else "running"
    if present & {"cancelled", *UNFINISHED}:
        return "cancelled"
    return "skipped" if present == {"skipped"} else "completed"


def utc(seconds: float) -> datetime:
    """A time of the records, as a datetime in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc)


Outputs = Mapping[str, Artifact]


def growth_of(graph: Graph, store: Store) -> Callable[[str, Outputs], Sequence[Node]] | None:
    """What gives the nodes that follow from what a node has made; None: this graph does not grow."""
    growth = _begun(graph)
    if growth is None:
        return None
    return lambda node, outputs: _after(growth, node, lambda: outputs, store)


def grown(graph: Graph, outputs_of: Callable[[str], Outputs | None], store: Store) -> Graph:
    """The graph with the nodes that it has grown by.

    Parameters
    ----------
    graph
        As it was when the run started.
    outputs_of
        What a node has made; None: it is not done.
    store
        Where cases and lists are.
    """
    growth = _begun(graph)
    if growth is None:
        return graph
    nodes = list(graph.nodes)
    for node in nodes:  # which grows
        nodes.extend(_after(growth, node.name, lambda name=node.name: outputs_of(name), store))  # type: ignore[misc]
    return attrs.evolve(graph, nodes=tuple(nodes))


def _begun(graph: Graph) -> Growth | None:
    if graph.flow is None:
        return None
    growth = Growth(graph.flow, graph.nodes[0].inputs[STATE])
    growth.first()  # the nodes that the graph has already
    return growth


def _after(
    growth: Growth, node: str, outputs_of: Callable[[], Outputs | None], store: Store
) -> Sequence[Node]:
    outputs = outputs_of() if growth.grows(node) else None
    if outputs is None:
        return ()
    choice = artifacts.plain_value(outputs[CHOICE], store) if CHOICE in outputs else None
    items = artifacts.items_of(outputs[ITEMS], store) if ITEMS in outputs else ()
    return growth.after(node, choice=choice if isinstance(choice, str) else None, items=items)
