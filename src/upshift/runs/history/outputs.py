"""What tasks took and left, and where users find it: places, neighbours, inputs, outputs, artifacts of flows.

A place is ``Training/20261123-160338-9g7y/train/3``, and is looked for in a namespace. Views are made from
the top down: a run makes its steps, these make their tasks. The way back up is ``RunRecords.run``, and for a
place that a user names the public name of what is at its top, ``upshift.Run``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

import upshift
from upshift.errors import NotFound, UsageError, suggestion, user_location
from upshift.model.checks import shown
from upshift.model.configuration import user_name
from upshift.model.graph import INPUTS, STATE, Collection, Constant, FromStep, Node, Source, taken_by
from upshift.model.spec.task import Artifact, Collected, Value
from upshift.runtime.storage.manifest import State

if TYPE_CHECKING:
    from upshift.runs.catalog.rows import RunRow, TaskRow
    from upshift.runs.history.records import RunRecords


NAMESPACE = "UPSHIFT_NAMESPACE"
"""The variable by which a namespace that was typed reaches the processes of steps; empty: everybody's."""
_namespace: list[str | None] = []
"""The namespace that was set; empty: the default one."""
_PARTS = ("flow", "run", "step", "task", "artifact")


def namespace(name: str | None) -> str | None:
    """See the runs of one user, or of one tag, only: in :class:`Flow`, :class:`Metaflow`, and by place.

    Parameters
    ----------
    name
        ``"user:ann"``, or a tag; None: the runs of everybody.
    """
    _namespace[:] = [name]
    return name


def get_namespace() -> str | None:
    """The namespace in use; before :func:`namespace` is called, that of whoever asks: ``"user:NAME"``.

    In a step it is the one of ``run --namespace NAME``, where that was typed.
    """
    return _namespace[0] if _namespace else os.environ.get(NAMESPACE, f"user:{user_name()}") or None


def default_namespace() -> str | None:
    """Go back to the namespace that is in use where :func:`namespace` was not called, and return it."""
    _namespace.clear()
    return get_namespace()


def confirm_in_namespace(row: RunRow) -> None:
    """Refuse a run that the namespace in use does not have."""
    name = get_namespace()
    if name not in (None, f"user:{row.user}", f"target:{row.target}", *row.tags):
        raise NotFound(
            f"run {row.id} is not in the namespace {name!r}",
            where=user_location(),
            fix="See the runs of everybody: namespace(None).",
        )


class Placed:
    """What has a place such as ``Training/20261123-160338-9g7y/train/3``, and is of one run."""

    pathspec: Any
    parent: Any

    @property
    def path_components(self) -> list[str]:
        """The parts of its place."""
        return str(self.pathspec).split("/")

    @property
    def user_tags(self) -> frozenset[str]:
        """The tags that its run was given."""
        return frozenset(self.parent.user_tags)

    @property
    def system_tags(self) -> frozenset[str]:
        """What its run can be found by besides."""
        return frozenset(self.parent.system_tags)

    @property
    def is_in_namespace(self) -> bool:
        """Whether the namespace in use has its run."""
        return get_namespace() in (None, *self.user_tags, *self.system_tags)


def found(pathspec: str, kind: str) -> Any:
    """What is at a place such as ``"Training/20261123-160338-9g7y/train/3"``; of an artifact its task.

    Raises
    ------
    UsageError
        It is not a place of this kind: ``"step"``, ``"task"``, ``"artifact"``.
    NotFound
        There is none.
    """
    parts = pathspec.split("/")
    named = _PARTS[: _PARTS.index(kind) + 1]
    taken = named if kind != "artifact" else named[:-1]
    if len(parts) != len(taken) or not all(parts):
        raise UsageError(
            f"{shown(pathspec)} is not a place of {'an' if kind == 'artifact' else 'a'} {kind}",
            where=user_location(),
            fix=f"Write {'/'.join(named)}, with names and ids in their places.",
        )
    at: Any = upshift.Run("/".join(parts[:2]))
    for part in parts[2:]:
        at = at[part]
    return at


def tasks_before(row: TaskRow, records: RunRecords) -> Iterator[TaskRow]:
    """The tasks whose results a task got, or waited for, in their order."""
    node = records.nodes[row.task.step]
    wanted: dict[tuple[str, int | None], None] = {}
    for parameter, source in taken_by(node).items():
        item = row.task.index if parameter in node.over else None
        for name, index in _made_by(source, item, records):
            wanted.setdefault((name, index))
    for name in node.after:
        for found in records.tasks(name):
            wanted.setdefault((name, found.task.index))
    for name, index in wanted:
        yield from (found for found in records.tasks(name) if found.task.index == index)


def tasks_after(row: TaskRow, records: RunRecords) -> Iterator[TaskRow]:
    """The tasks that got the result of a task, or waited for it."""
    for name in nodes_after(row.task.step, records):
        for later in records.tasks(name):
            if any(before.task == row.task for before in tasks_before(later, records)):
                yield later


def nodes_before(name: str, records: RunRecords) -> list[str]:
    """The nodes that a node depends on."""
    node = records.nodes[name]
    return list(dict.fromkeys((*_nodes_of(node), *node.after)))


def nodes_after(name: str, records: RunRecords) -> list[str]:
    """The nodes that depend on a node."""
    return [other.name for other in records.nodes.values() if name in (*_nodes_of(other), *other.after)]


def _nodes_of(node: Node) -> Iterator[str]:
    pending = list(taken_by(node).values())
    while pending:
        source = pending.pop(0)
        if isinstance(source, Collection):
            pending.extend(source.items)
        elif isinstance(source, FromStep):
            yield source.node


def _made_by(source: Source, item: int | None, records: RunRecords) -> Iterator[tuple[str, int | None]]:
    """The tasks, by node and index, whose outputs a source is; of what is mapped over that of one item."""
    if isinstance(source, Collection):
        items = source.items if item is None else source.items[item : item + 1]
        for one in items:
            yield from _made_by(one, None, records)
    elif isinstance(source, FromStep):
        mapped = records.nodes[source.node].mapped
        if item is not None or not mapped:
            yield source.node, item if mapped else None
        else:
            yield from ((source.node, found.task.index) for found in records.tasks(source.node))


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


Held = Callable[[Artifact], Mapping[str, Artifact]]
"""What a state holds, by name."""


class Outputs(Mapping[str, object]):
    """Values by name, in order, each loaded when it is first asked for."""

    def __init__(self, owner: str, loaders: Mapping[str, Callable[[], object]], noun: str = "output") -> None:
        self._owner = owner
        self._loaders = loaders
        self._noun = noun
        self._values: dict[str, object] = {}

    def __getitem__(self, name: str) -> object:
        if name not in self._loaders:
            raise NotFound(f"{self._owner} has no {self._noun} {name!r}", fix=suggestion(name, self._loaders))
        if name not in self._values:
            self._values[name] = self._loaders[name]()
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaders

    def get(self, name: str, default: Any = None) -> Any:
        """The value of this name, or ``default``."""
        return self[name] if name in self._loaders else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)

    def __repr__(self) -> str:
        return f"<{self._noun}s of {self._owner}: {', '.join(self)}>"


class Artifacts(dict[str, Artifact]):
    """What a task saved, by output; ``artifacts.score`` is one of what the step set on ``self``."""

    def __init__(self, saved: Mapping[str, Artifact], task: upshift.Task) -> None:
        super().__init__(saved)
        self._task = task

    @property
    def visible(self) -> list[str]:
        """Names of what the step has set or inherited, but for those that begin with an underscore."""
        return [name for name in self._task.data if not name.startswith(("_", "@"))] if self else []

    def named(self, name: str) -> DataArtifact:
        """An artifact by its name."""
        state = self._task.data if self else State()
        if name not in state:
            raise NotFound(
                f"task {self._task.pathspec!r} has no artifact {shown(name)}",
                fix=suggestion(name, self.visible),
            )
        return DataArtifact(self._task, name)

    def __getattr__(self, name: str) -> DataArtifact:
        if name.startswith("__") or not self or name not in self._task.data:
            raise AttributeError(f"no artifact is called {name!r}: {', '.join(self.visible)}")
        return DataArtifact(self._task, name)


def set_by_step(left: Artifact, inputs: Mapping[str, Value], held: Held) -> dict[str, Artifact]:
    """The artifacts in the state that a task left which it set or changed.

    A step that joins has set what those that it joins do not agree on.
    """
    given, told = _given(inputs, held), left.plain or {}
    return {
        name: attrs.evolve(artifact, plain=told.get(name))
        for name, artifact in held(left).items()
        if not name.startswith(("_", "@")) and given.get(name) != {artifact.digest}
    }


def _given(inputs: Mapping[str, Value], held: Held) -> dict[str, set[str]]:
    """The digests of each artifact in the states that a task goes on from."""
    joined = [state for name in inputs if name.startswith(INPUTS) for state in _states(inputs[name])]
    found: dict[str, set[str]] = {}
    for state in joined or _states(inputs.get(STATE)):
        for name, artifact in held(state).items():
            found.setdefault(name, set()).add(artifact.digest)
    return found


def _states(value: Value | None) -> list[Artifact]:
    if isinstance(value, Collected):
        return [state for item in value.items for state in _states(item)]
    return [] if value is None else [value]


class DataArtifact(Placed):
    """A value that a task of a flow left.

    Parameters
    ----------
    task
        The task; or where the value is: ``"Training/20261123-160338-9g7y/train/3/score"``.
    name
        What it is called.

    Raises
    ------
    NotFound
        There is no such artifact.
    """

    def __init__(self, task: upshift.Task | str, name: str = "") -> None:
        if isinstance(task, str):
            at, _, name = task.rpartition("/")
            owner: upshift.Task = found(at, "artifact").artifacts.named(name).parent
        else:
            owner = task
        self.parent: upshift.Task = owner
        self.id: str = name
        self.pathspec = f"{owner.pathspec}/{name}"
        self._artifact = owner.data.artifacts.get(name)

    @functools.cached_property
    def data(self) -> Any:
        """The value."""
        return self.parent.data[self.id]

    @property
    def sha(self) -> str | None:
        """The digest of its content: equal ones are equal values."""
        return None if self._artifact is None else self._artifact.digest

    @property
    def size(self) -> int | None:
        """Bytes."""
        return None if self._artifact is None else self._artifact.bytes

    @property
    def created_at(self) -> datetime | None:
        """When the task that left it ended, in UTC."""
        return self.parent.finished_at

    finished_at = created_at

    def __repr__(self) -> str:
        return f"<DataArtifact {self.pathspec}>"
