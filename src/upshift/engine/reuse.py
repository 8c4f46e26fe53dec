"""Finding the result of earlier, equal work; and saying why there is none."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import attrs

from upshift.engine.keys import is_debugged, key_parts
from upshift.engine.reasons import changed_code_of, changed_inputs, changed_parts, with_images
from upshift.engine.shortcomings import Standard, degraded_of, how_degraded, missed, shortcoming
from upshift.engine.tasks import COMPLETED, NodeState, Task
from upshift.errors import BlobDamaged, BlobMissing, StoreError
from upshift.model.graph import Graph
from upshift.model.spec.artifact import Artifact, Value
from upshift.model.spec.codec import from_json
from upshift.model.spec.task import TaskId, TaskResult
from upshift.model.spec.work import ONCE, same_inputs, same_work
from upshift.runs.catalog import FOUND_AT_MOST, Catalog, RunRow, TaskRow
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

_RUNS_COMPARED = 10
"""Earlier runs that are looked into for a reason why there is no result."""


Origin = tuple[str, str, int | None, int]
"""Run, step, index and attempt of a result."""


@attrs.frozen
class Hit:
    """A result that can be reused."""

    result: TaskResult
    reason: str


class Reuse:
    """Looks for results of earlier runs in one store.

    Parameters
    ----------
    run
        Id of this run, whose own results do not count: whether an equal task of the same run is
        done already would depend on chance.
    graph
        What is run.
    catalog, store
        Where to look.
    enabled
        Whether the user wants anything reused.
    project
        Folder of the code. Runs of another project may have pipelines and steps of the same names: a
        result of theirs is reused if the work is equal, but nothing has changed since.
    """

    def __init__(
        self, run: str, graph: Graph, catalog: Catalog, store: Store, *, enabled: bool, project: str
    ) -> None:
        pipeline, nodes = graph.pipeline, frozenset(node.name for node in graph.nodes)
        self._run = run
        self._catalog = catalog
        self._store = store
        self.enabled = enabled
        self._history = _History(run, pipeline, catalog, store, project)
        self._nodes = nodes
        self._asked: dict[str, str] = {}
        self._equal: dict[str, _Equal] = {}
        self._takers: dict[Origin, str] | None = None

    def find(self, task: Task, key: str, standard: Standard, *, now: float) -> Hit | str | None:
        """A result of equal work, or why one cannot be used; None: there is none, see :meth:`why`.

        Parameters
        ----------
        task
            The task.
        key
            Its key.
        standard
            By what a degraded result is judged.
        now
            Seconds since the epoch.
        """
        if key.startswith(ONCE):
            return "debugged" if is_debugged(key) else "cache=False"
        if not self.enabled:
            return "reuse is switched off for this run"
        self._asked[str(task)] = key
        why: str | None = None
        expires = task.node.definition.settings.cache_expires
        for found, attempt in self._results(key, task):
            if found.run == self._run:
                continue
            origin = _origin(found, attempt)
            if (taker := self._taker(origin, key, task)) is not None:
                why = why or f"the result of run {found.run} is that of {taker}, an equal task"
                continue
            result = self._store.claim_result(found, attempt)
            if result is None or result.status != COMPLETED:
                why = why or f"the result of run {found.run} is missing or damaged"
            elif (less := shortcoming(result, self._store, standard)) is not None:
                if why is None:
                    if standard.strict and not missed(result):
                        less = how_degraded(found, self._catalog, self._store)
                    why = f"the result of run {found.run} was made {less}"
            elif expires is not None and result.ended + expires <= now:
                why = why or f"the result of run {found.run} has expired"
            elif result.edited:
                files = ", ".join(map(os.path.basename, result.edited))
                why = why or f"{files} was edited while run {found.run} was at it"
            elif not intact(result.outputs, self._store):
                why = why or f"the result of run {found.run} is missing or damaged"
            else:
                less = ""
                if missed(result):
                    less = ", made without its GPU"
                elif result.degraded and standard.short:
                    less = ", made with less than the step asks for"
                self._taken[origin] = str(task)
                return Hit(result, f"same code, inputs and environment as run {found.run}{less}")
        return why

    @property
    def _taken(self) -> dict[Origin, str]:
        """The results that tasks of this run have taken: two of them draw two numbers, so they share none."""
        if self._takers is None:  # those of a run that is resumed
            rows = self._catalog.tasks(self._run) if self._run else []
            self._takers = {row.origin: str(row.task) for row in rows if row.origin is not None}
        return self._takers

    def _taker(self, origin: Origin, key: str, task: Task) -> str | None:
        """The other task of this run that has taken a result, or will, since it made it; None: it is free."""
        if origin in self._taken:
            return None if self._taken[origin] == str(task) else self._taken[origin]
        maker = str(TaskId(run="", step=origin[1], index=origin[2]))
        if origin[1] not in self._nodes or maker == str(task):
            return None
        return maker if self._asked.get(maker, key) == key else None

    def _results(self, key: str, task: Task) -> Iterator[tuple[TaskId, int]]:
        """Results of equal work: first those of a task of the same name, so that each gets its own again."""
        equal = self._equal.get(key)
        if equal is None:
            found = self._catalog.find_results(key, store=self._store.address)
            if len(found) < 2:
                return iter(found)
            if len(found) == FOUND_AT_MOST:
                found = self._catalog.find_results(key, store=self._store.address, limit=-1)
            equal = self._equal[key] = _Equal(found)
        return equal.for_task(task.node.node.name, task.index, self._taken)

    def why(self, task: Task, inputs: Mapping[str, Value]) -> str:
        """Why there is no result of equal work: what is different from the newest earlier run.

        It takes longer than :meth:`find`, and a task need not wait for it.
        """
        return self._history.why(task, inputs)

    def changed(self, state: NodeState) -> str | None:
        """What is different about a node since its newest earlier result, inputs apart; None: nothing is."""
        return self._history.changed(state)

    def degraded(self, task: Task) -> str | None:
        """That the newest earlier result of a task is a degraded one, in words; None: it is not."""
        return self._history.degraded(task)


class _Equal:
    """Results of equal work, newest first."""

    def __init__(self, found: Iterable[tuple[TaskId, int]]) -> None:
        self._by_task: dict[tuple[str, int | None], list[tuple[TaskId, int]]] = {}
        for one in found:
            self._by_task.setdefault((one[0].step, one[0].index), []).append(one)
        self._by_index: dict[int | None, deque[tuple[TaskId, int]]] = {}
        for _, index in self._by_task:
            self._by_index[index] = deque()
        for (_, index), of_task in self._by_task.items():
            self._by_index[index].extend(of_task)

    def for_task(
        self, step: str, index: int | None, taken: Mapping[Origin, str]
    ) -> Iterator[tuple[TaskId, int]]:
        """Those of the task itself; those at its place in another step; all others that are not taken."""
        yield from self._by_task.get((step, index), ())
        yield from self._by_index.get(index, ())
        for place in sorted(self._by_index, key=lambda place: -1 if place is None else place):
            others = self._by_index[place]
            while others and _origin(*others[0]) in taken:
                others.popleft()
            yield from others
            if not others:
                del self._by_index[place]


def _origin(task: TaskId, attempt: int) -> Origin:
    return task.run, task.step, task.index, attempt


def intact(outputs: Mapping[str, Artifact], store: Store) -> bool:
    """Whether everything that these outputs need is in the store."""
    try:
        for artifact in outputs.values():
            artifacts.verify(artifact, store)
    except (BlobMissing, BlobDamaged):
        return False
    return True


class _History:
    """What the newest earlier run of the same pipeline did, read when somebody asks."""

    def __init__(self, run: str, pipeline: str, catalog: Catalog, store: Store, project: str) -> None:
        self._run = run
        self._pipeline = pipeline
        self._catalog = catalog
        self._store = store
        self._project = project
        self._runs: list[tuple[RunRow, Graph]] | None = None
        self._by_node: dict[str, str | None] = {}
        self._degraded: dict[str, dict[int | None, TaskResult]] = {}
        self._tasks: dict[str, tuple[str, dict[int | None, TaskRow]] | None] = {}

    def why(self, task: Task, inputs: Mapping[str, Value]) -> str:
        """What is different from the newest earlier result of the same step."""
        name = task.node.node.name
        if name not in self._tasks:
            self._compare(task.node)
        earlier = self._tasks[name]
        if earlier is None:
            return "first run"
        run, rows = earlier
        row = rows.get(task.index)
        if row is None or row.status != COMPLETED:
            return "first run of this task"
        different = self._by_node[name]
        if different is not None:
            return different
        if task.key is not None and same_work(row.key, task.key):
            return f"no result of run {run} may be reused"
        if task.key is not None and row.key is not None and same_inputs(row.key, task.key):
            return changed_code_of(inputs)
        before = self._inputs(row)
        different = None if before is None else changed_inputs(before, inputs, task.node.node)
        return different or "input changed"

    def changed(self, state: NodeState) -> str | None:
        """What is different about a node from its newest earlier result, inputs apart."""
        name = state.node.name
        if name not in self._tasks:
            self._compare(state)
        return "first run" if self._tasks[name] is None else self._by_node[name]

    def degraded(self, task: Task) -> str | None:
        """How the newest earlier result was made, if with less than asked for."""
        name = task.node.node.name
        if name not in self._tasks:
            self._compare(task.node)
        earlier = self._tasks[name]
        if earlier is None:
            return None
        if name not in self._degraded:
            self._degraded[name] = degraded_of(earlier[0], name, self._catalog, self._store)
        of_all = next(iter(self._degraded[name].values()), None) if task.index is None else None
        made = self._degraded[name].get(task.index, of_all)
        if made is None:
            return None
        how = how_degraded(made.task, self._catalog, self._store)
        return f"the result of run {made.task.run} was made {how}"

    def _compare(self, state: NodeState) -> None:
        name = state.node.name
        self._tasks[name] = self._by_node[name] = None
        for row, graph in self._earlier():
            node = next((n for n in graph.nodes if n.name == name), None)
            if node is None:
                continue
            rows = {t.task.index: t for t in self._catalog.tasks(row.id, name) if t.status == COMPLETED}
            if rows:
                self._tasks[name] = (row.id, rows)
                definition = graph.definition(node)
                before, now = key_parts(definition, node), key_parts(state.definition, state.node)
                if before["image"] != now["image"]:  # digests say nothing to people
                    before, now = with_images((before, definition), (now, state.definition))
                self._by_node[name] = changed_parts(before, now)
                return

    def _inputs(self, row: TaskRow) -> Mapping[str, Value] | None:
        """What an earlier task was given, whoever did its work; None: that is not recorded any more."""
        task, number = row.task, 1
        if row.origin is not None:
            run, step, index, number = row.origin
            task = TaskId(run=run, step=step, index=index)
        while True:
            try:
                spec = self._store.read_spec(self._store.spec_path(task, number))
            except StoreError:
                return None
            if same_work(spec.key, row.key):  # an attempt before a run was resumed may be of other work
                return spec.inputs
            number += 1

    def _earlier(self) -> list[tuple[RunRow, Graph]]:
        if self._runs is None:
            self._runs = []
            for row in self._catalog.runs(pipeline=self._pipeline, limit=_RUNS_COMPARED + 1):
                content = None
                if row.id != self._run and row.store == self._store.address and self._is_ours(row):
                    content = self._store.read_record(row.id, "graph.json")
                if content is not None:
                    self._runs.append((row, from_json(Graph, content)))
        return self._runs

    def _is_ours(self, row: RunRow) -> bool:
        """Whether a run is of this project; a file that makes one begin may have come or gone above it."""
        there = str(row.source.get("code", {}).get("project", self._project))
        return os.path.commonpath([there, self._project]) in (there, self._project)
