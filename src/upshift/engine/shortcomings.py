"""With what less than it should have a result was made, and whose shortfall that was."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import attrs

from upshift.errors import StoreError
from upshift.model.graph import Graph, references
from upshift.model.spec.codec import from_json
from upshift.model.spec.hardware import Hardware, Shortfall
from upshift.model.spec.task import TaskId, TaskResult
from upshift.runs.catalog import Catalog
from upshift.runtime.storage.store import Store


@attrs.frozen(kw_only=True)
class Standard:
    """What a step would get if it ran now: by that its earlier results are judged."""

    strict: bool  # whether it gets all that it asks for, or does not run; then no degraded result will do
    granted: Hardware | None = None  # what it would be granted; None: it is not known
    short: bool = False  # whether that is less than it asks for, its image apart

    @classmethod
    def of(cls, strict: bool, granted: Hardware | None, shortfalls: Iterable[Shortfall]) -> Standard:
        """That of a step that is granted this, which falls short of what it asks for by that."""
        short = any(shortfall.field != "image" for shortfall in shortfalls)
        return cls(strict=strict, granted=granted, short=short)


def shortcoming(result: TaskResult, store: Store, standard: Standard) -> str | None:
    """With what less than it should have a result was made, too little to be used; None: it may be."""
    missing = missed(result)
    if missing and not standard.strict:
        from upshift.runtime.accelerators.remedies import may_miss  # rare

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
