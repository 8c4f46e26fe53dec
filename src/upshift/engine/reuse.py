"""Finding an earlier result of equal work, and explaining why there is none."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from upshift.engine.keys import is_debugged
from upshift.engine.offers import Standard, how_degraded, missed, shortcoming
from upshift.engine.reasons import History
from upshift.engine.tasks import COMPLETED, TaskState
from upshift.errors import BlobDamaged, BlobMissing
from upshift.model.graph import Graph
from upshift.model.spec.artifact import Artifact
from upshift.model.spec.task import TaskId, TaskResult
from upshift.model.spec.work import ONCE, UNCACHED
from upshift.runs.catalog.catalog import FOUND_AT_MOST, Catalog
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

Origin = tuple[str, str, int | None, int]
"""Run, step, index and attempt of a result."""


@attrs.frozen
class Hit:
    """A result that can be reused."""

    result: TaskResult
    reason: str


class Reuse:
    """Looks for results of earlier runs in one store."""

    def __init__(
        self,
        run: str,
        graph: Graph,
        catalog: Catalog,
        store: Store,
        *,
        enabled: bool,
        project: str,
        origin: str | None = None,
        again: Collection[str] = (),
    ) -> None:
        pipeline, nodes = graph.pipeline, frozenset(node.name for node in graph.nodes)
        self._run = run  # its own results do not count: whether an equal task is done would depend on chance
        self._catalog = catalog
        self._store = store
        self.enabled = enabled  # whether the user wants anything reused
        self.history = History(run, pipeline, catalog, store, project)
        self._nodes = nodes
        self._asked: dict[str, str] = {}
        self._equal: dict[str, _Equal] = {}
        self._takers: dict[Origin, str] | None = None
        self._origin = origin  # the run whose tasks are taken over whatever their code, but for these steps
        self._again = again
        self._origins: dict[str, Origin] | None = None

    def find(self, task: TaskState, key: str, standard: Standard, *, now: float) -> Hit | str | None:
        """A result of equal work, or why one cannot be used; None: there is none."""
        if self._origin is not None and (taken := self._taken_over(task)) is not None:
            return taken
        if key.startswith(ONCE):
            return "debugged" if is_debugged(key) else UNCACHED
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

    def _taken_over(self, task: TaskState) -> Hit | None:
        """What the run that this one goes on from has made of a task, whatever its code."""
        if self._origins is None:
            run = str(self._origin)
            numbers = {a.task: a.number for a in self._catalog.attempts(run) if a.status == COMPLETED}
            self._origins = {
                str(row.task): row.origin or _origin(row.task, numbers[row.task])
                for row in self._catalog.tasks(run)
                if row.status == COMPLETED and (row.origin is not None or row.task in numbers)
            }
        found = self._origins.get(str(task))
        if found is None or task.node.node.step in self._again:
            return None
        made = TaskId(run=found[0], step=found[1], index=found[2])
        result = self._store.claim_result(made, found[3])
        if result is None or result.status != COMPLETED or not intact(result.outputs, self._store):
            return None
        return Hit(result, f"taken over from run {self._origin}")

    @property
    def _taken(self) -> dict[Origin, str]:
        """The results that tasks of this run have taken: two of them draw two numbers, so they share none."""
        if self._takers is None:  # those of a run that is resumed
            rows = self._catalog.tasks(self._run) if self._run else []
            self._takers = {row.origin: str(row.task) for row in rows if row.origin is not None}
        return self._takers

    def _taker(self, origin: Origin, key: str, task: TaskState) -> str | None:
        """The other task of this run that has taken a result, or will, since it made it; None: it is free."""
        if origin in self._taken:
            return None if self._taken[origin] == str(task) else self._taken[origin]
        maker = str(TaskId(run="", step=origin[1], index=origin[2]))
        if origin[1] not in self._nodes or maker == str(task):
            return None
        return maker if self._asked.get(maker, key) == key else None

    def _results(self, key: str, task: TaskState) -> Iterator[tuple[TaskId, int]]:
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
        """Candidates for a task: its own, those with its index in other steps, then others not taken."""
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
