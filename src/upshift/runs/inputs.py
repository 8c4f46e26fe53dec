"""What a task was given: each input as it was saved, from the graph and the results of the steps before."""

from __future__ import annotations

from collections.abc import Iterable

from upshift.model.graph.model import Collection, Constant, FromStep, Source
from upshift.model.spec.artifact import Artifact, Collected, Value
from upshift.runs.history_records import RunRecords
from upshift.runs.rows import TaskRow


def inputs_of(task: TaskRow, records: RunRecords) -> dict[str, Value]:
    """The inputs of a task, by parameter; one that no step has made is left out."""
    node, index = records.nodes[task.task.step], task.task.index
    found: dict[str, Value] = {}
    for parameter, source in node.inputs.items():
        if parameter not in node.over:
            value = _whole(source, records)
        else:
            value = None if index is None else _item(source, index, records)
        if value is not None:
            found[parameter] = value
    return found


def _whole(source: Source, records: RunRecords) -> Value | None:
    if isinstance(source, Constant):
        return source.artifact
    if isinstance(source, Collection):
        return _collected((_whole(item, records) for item in source.items), source.form, source.keys)
    made = _made(source, records)
    return _collected(made, "list") if records.nodes[source.node].mapped else next(iter(made), None)


def _item(source: Source, index: int, records: RunRecords) -> Value | None:
    """One of the items that a step is mapped over."""
    if isinstance(source, Collection):
        return _whole(source.items[index], records) if index < len(source.items) else None
    if isinstance(source, FromStep) and records.nodes[source.node].mapped:
        made = _made(source, records)
        return made[index] if index < len(made) else None
    items = _whole(source, records)
    return records.items(items)[index] if isinstance(items, Artifact) else None


def _made(source: FromStep, records: RunRecords) -> list[Artifact | None]:
    results = records.results(source.node)
    return [None if result is None else result.outputs.get(source.output) for result in results]


def _collected(items: Iterable[Value | None], form: str, keys: tuple[str, ...] = ()) -> Collected | None:
    every = list(items)
    values = tuple(item for item in every if item is not None)
    return Collected(form=form, items=values, keys=keys) if len(values) == len(every) else None
