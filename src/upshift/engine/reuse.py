"""Finding an earlier result of equal work that is good enough, and explaining why there is none."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from upshift.engine.keys import (
    changed_code_of,
    changed_inputs,
    changed_parts,
    is_debugged,
    key_parts,
    with_images,
)
from upshift.engine.tasks import COMPLETED, NodeState, TaskState, producers
from upshift.errors import BlobDamaged, BlobMissing, StoreError
from upshift.model.graph import Graph, references
from upshift.model.spec.codec import from_json
from upshift.model.spec.hardware import Hardware, Shortfall
from upshift.model.spec.task import (
    ONCE,
    UNCACHED,
    Artifact,
    TaskId,
    TaskResult,
    Value,
    same_inputs,
    same_work,
)
from upshift.runs.catalog.catalog import FOUND_AT_MOST, Catalog
from upshift.runs.catalog.rows import RunRow, TaskRow
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

Origin = tuple[str, str, int | None, int]
"""Run, step, index and attempt of a result."""


@attrs.frozen
class Hit:
    """A result that can be reused."""

    result: TaskResult
    reason: str


@attrs.frozen(kw_only=True)
class Standard:
    """What a step would get if it ran now: by that its earlier results are judged."""

    strict: bool  # whether it gets all that it asks for, or does not run; then no degraded result will do
    granted: Hardware | None = None  # what it would be granted; None: it is not known
    short: bool = False  # whether that is less than it asks for, its image apart

    @classmethod
    def of(cls, strict: bool, granted: Hardware | None, shortfalls: Iterable[Shortfall]) -> Standard:
        """The standard of a step with this grant, which falls short of its request in these fields."""
        short = any(shortfall.field != "image" for shortfall in shortfalls)
        return cls(strict=strict, granted=granted, short=short)


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


def lost_producers(
    task: TaskState, nodes: Mapping[str, NodeState], lost: Collection[str], store: Store
) -> list[TaskState]:
    """The tasks whose outputs this task needs, and the store does not have whole, or as was said."""
    return [
        maker
        for maker in producers(task, nodes)
        if not {artifact.digest for artifact in maker.outputs.values()}.isdisjoint(lost)
        or not intact(maker.outputs, store)
    ]


def shortcoming(result: TaskResult, store: Store, standard: Standard) -> str | None:
    """With what less than it should have a result was made, too little to be used; None: it may be."""
    missing = missed(result)
    if missing and not standard.strict:
        from upshift.runtime.accelerators.explain import may_miss  # rare

        try:  # whose variables are those of whoever has the same key
            own = store.read_spec(store.spec_path(result.task, result.attempt)).environment
        except StoreError:
            own = {}
        if missing <= may_miss(os.environ) | may_miss(own):
            return None
    if missing:
        return "without its GPU"
    if not result.degraded:
        return None
    if standard.strict:
        return "with less than the step asks for"
    if standard.granted is not None and not _covers(result.granted or Hardware(), standard.granted):
        return "with less than the step gets now"
    return None


def _covers(had: Hardware, gets: Hardware) -> bool:
    """Whether a grant had at least what another one has."""
    for name in ("cpu_count", "memory", "nodes", "processes", "disk", "shared_memory"):
        if (getattr(gets, name) or 0) > (getattr(had, name) or 0):
            return False
    return Counter(gpu.sort for gpu in gets.gpus or ()) <= Counter(gpu.sort for gpu in had.gpus or ())


def missed(result: TaskResult) -> set[str]:
    """Frameworks that did not see what was granted, and went on because the user said so."""
    return set(result.seen.details.get("missed_by", ())) if result.seen is not None else set()


def how_degraded(task: TaskId, catalog: Catalog, store: Store) -> str:
    """How a degraded result was made: with less than its own step asks for, or from such a result."""
    content = store.read_record(task.run, "graph.json")
    nodes = {} if content is None else {node.name: node for node in from_json(Graph, content).nodes}
    short: list[str] = []
    seen = {task.step}
    pending = [task.step]
    while pending:
        name = pending.pop()
        sources = nodes[name].inputs.values() if name in nodes else ()
        above = dict.fromkeys(reference.node for source in sources for reference in references(source))
        behind = [step for step in above if degraded_of(task.run, step, catalog, store)]
        if not behind:
            short.append(name)
        pending += [step for step in behind if step not in seen]
        seen.update(behind)
    if short == [task.step]:
        return "with less than the step asks for"
    return f"from what {', '.join(short)} made with less than asked for"


def degraded_of(run: str, step: str, catalog: Catalog, store: Store) -> dict[int | None, TaskResult]:
    """The newest results of a run's step that are degraded, by task, whoever did the work."""
    newest = {attempt.task: attempt.result for attempt in catalog.attempts(run, step)}
    found = {}
    for row in catalog.tasks(run, step):
        result = newest.get(row.task)
        if row.origin is not None:
            other, name, index, number = row.origin
            result = store.read_result(TaskId(run=other, step=name, index=index), number)
        if result is not None and result.degraded:
            found[row.task.index] = result
    return found


_RUNS_COMPARED = 10
"""Earlier runs that are looked into for a reason why there is no result."""


@attrs.define(eq=False)
class History:
    """What the newest earlier run of the same pipeline did, read when somebody asks."""

    _run: str
    _pipeline: str
    _catalog: Catalog
    _store: Store
    _project: str
    _runs: list[tuple[RunRow, Graph]] | None = attrs.field(init=False, default=None)
    _by_node: dict[str, str | None] = attrs.field(init=False, factory=dict)
    _degraded: dict[str, dict[int | None, TaskResult]] = attrs.field(init=False, factory=dict)
    _tasks: dict[str, tuple[str, dict[int | None, TaskRow]] | None] = attrs.field(init=False, factory=dict)

    def why(self, task: TaskState, inputs: Mapping[str, Value]) -> str:
        """What is different from the newest earlier result of the same step."""
        earlier = self._earlier_tasks(task.node)
        if earlier is None:
            return "first run"
        run, rows = earlier
        row = rows.get(task.index)
        if row is None or row.status != COMPLETED:
            return "first run of this task"
        different = self._by_node[task.node.node.name]
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
        return "first run" if self._earlier_tasks(state) is None else self._by_node[state.node.name]

    def degraded(self, task: TaskState) -> str | None:
        """How the newest earlier result was made, if with less than asked for."""
        name, earlier = task.node.node.name, self._earlier_tasks(task.node)
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

    def _earlier_tasks(self, state: NodeState) -> tuple[str, dict[int | None, TaskRow]] | None:
        """The newest earlier run that completed tasks of a node, and these; None: there is none."""
        if state.node.name not in self._tasks:
            self._compare(state)
        return self._tasks[state.node.name]

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
