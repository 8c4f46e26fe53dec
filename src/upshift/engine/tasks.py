"""Nodes and tasks while a graph is walked, and what a task gets of those before it.

They are small mutable records, ten thousand of which are cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from upshift.errors import BlobDamaged
from upshift.model.graph import (
    Collection,
    Constant,
    Expansion,
    FromStep,
    Node,
    Source,
    StepDefinition,
    references,
)
from upshift.model.spec.task import Artifact, Collected, Failure, Value

PENDING = "pending"
RUNNING = "running"
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"
SKIPPED = "skipped"

_SEVERITY = {COMPLETED: 0, SKIPPED: 1, CANCELLED: 2, FAILED: 3}

NO_OUTPUTS: Mapping[str, Artifact] = {}


def worse(one: str, other: str) -> str:
    """The worse of two ways to end."""
    return one if _SEVERITY[one] >= _SEVERITY[other] else other


Waiter = tuple[Callable[[Any, str], None], Any]
"""Whom to tell how something ended: a method, and what it is told about."""


@attrs.define(eq=False, repr=False)
class TaskState:
    """One step instance."""

    node: NodeState
    index: int | None  # its number in a mapped node; None: the only task of its node
    status: str = PENDING
    waiting: int = 0  # items that it still waits for, beside its node's gates
    outputs: Mapping[str, Artifact] = NO_OUTPUTS  # what it made, once it is completed
    failure: Failure | None = None
    degraded: bool = False  # whether its result was made under a degraded grant, or from such a result
    redone_for: list[Waiter] | None = None  # who waits for it to make its outputs once more
    rounds: int = 0  # how often its producers had to run again for it
    overtaken: int = 0  # how often a task of lower priority was started while this one waited for room
    attempts: int = 0  # number of the last one
    failures: int = 0  # how many attempts failed, as far as retries are concerned
    caught: Failure | None = None  # why it failed, where another attempt is to go on from there
    key: str | None = None  # this and the next three are as in the catalog's row
    cached: bool = False
    cache_reason: str | None = None
    origin: tuple[str, str, int | None, int] | None = None
    stream: str | None = None  # what its random numbers follow from, beside what the run drew

    def __str__(self) -> str:
        name = self.node.node.name
        return name if self.index is None else f"{name}[{self.index}]"


@attrs.define(eq=False, repr=False)
class NodeState:
    """One node of the graph while it is walked."""

    node: Node
    definition: StepDefinition
    expansion: Expansion
    order: int = attrs.field(kw_only=True)  # its place in the graph
    remaining: int = attrs.field(kw_only=True)  # nodes on the longest path from here to an end of the graph
    length: int | None = None  # number of its tasks; None: not known yet
    tasks: list[TaskState] = attrs.field(factory=list)  # once the length is known
    open: int = 0  # tasks that have not ended
    gates: int = 0  # nodes that hold up all of its tasks and have not ended
    unsized: int = 0  # nodes whose length, or whose list, its own length waits for
    ended: str | None = None  # the worst end of its tasks, once all have ended
    worst: str = COMPLETED  # the worst end of a task so far
    degraded: bool = False  # whether any of its results was made under a degraded grant
    rounds: int = 0
    gated: list[NodeState] = attrs.field(factory=list)  # told when it ends
    following: list[NodeState] = attrs.field(factory=list)  # told when its length is known, its tasks end
    awaiting: list[TaskState] = attrs.field(factory=list)  # told when it ends
    lists: dict[str, tuple[Artifact, ...]] = attrs.field(factory=dict)  # items of mapped artifacts
    shared: dict[str, Value] | None = None  # the inputs that all of its tasks have in common
    shared_degraded: bool = False
    collected: dict[str, Value] = attrs.field(factory=dict)  # what a consumer of the whole node gets

    def __str__(self) -> str:
        return self.node.name


ItemsOf = Callable[[Artifact], tuple[Artifact, ...]]
"""The items of a list that was saved by item.

Raises ``BlobMissing`` or ``BlobDamaged``.
"""


def task_inputs(
    task: TaskState, nodes: Mapping[str, NodeState], items_of: ItemsOf
) -> tuple[dict[str, Value], bool]:
    """The inputs of a task, by parameter, and whether any was made under a degraded grant.

    What all tasks of a node get whole is put together once for the node.
    """
    state = task.node
    node = state.node
    if state.shared is None:
        state.shared = {p: _value(s, nodes) for p, s in node.inputs.items() if p not in node.over}
        whole = [s for p, s in node.inputs.items() if p not in node.over or p in state.expansion.lists]
        state.shared_degraded = any(_degraded(source, nodes) for source in whole)
    if not node.over:
        return state.shared, state.shared_degraded
    assert task.index is not None
    values: dict[str, Value] = {}
    degraded = state.shared_degraded
    for parameter, source in node.inputs.items():
        if parameter not in node.over:
            values[parameter] = state.shared[parameter]
        elif parameter in state.expansion.lists:
            values[parameter] = _list(state, parameter, source, nodes, items_of)[task.index]
        elif isinstance(source, Collection):
            item = source.items[task.index]
            values[parameter] = _value(item, nodes)
            degraded = degraded or _degraded(item, nodes)
        else:
            assert isinstance(source, FromStep)
            other = nodes[source.node].tasks[task.index]
            values[parameter] = other.outputs[source.output]
            degraded = degraded or other.degraded
    return values, degraded


def producers(task: TaskState, nodes: Mapping[str, NodeState]) -> list[TaskState]:
    """The tasks whose outputs this task gets."""
    found: dict[TaskState, None] = {}
    node = task.node.node
    for parameter, source in node.inputs.items():
        own = source
        if parameter in node.over and isinstance(source, Collection) and task.index is not None:
            own = source.items[task.index]
        for reference in references(own):
            state = nodes[reference.node]
            if parameter in node.over and state.node.mapped and own is source and task.index is not None:
                found[state.tasks[task.index]] = None
            else:
                found.update(dict.fromkeys(state.tasks))
    return list(found)


def _list(
    state: NodeState, parameter: str, source: Source, nodes: Mapping[str, NodeState], items_of: ItemsOf
) -> tuple[Artifact, ...]:
    items = state.lists.get(parameter)
    if items is None:
        if isinstance(source, Constant):
            artifact = source.artifact
        else:
            assert isinstance(source, FromStep)
            artifact = nodes[source.node].tasks[0].outputs[source.output]
        items = items_of(artifact)
        if len(items) != state.length:
            raise BlobDamaged(
                f"{state} has {state.length} tasks, and what it is mapped over has {len(items)} items now",
                why="The step that makes the list ran again and gave another one.",
            )
        state.lists[parameter] = items
    return items


def _value(source: Source, nodes: Mapping[str, NodeState]) -> Value:
    if isinstance(source, Constant):
        return source.artifact
    if isinstance(source, Collection):
        return Collected(
            form=source.form, items=tuple(_value(item, nodes) for item in source.items), keys=source.keys
        )
    state = nodes[source.node]
    if not state.node.mapped:
        return state.tasks[0].outputs[source.output]
    value = state.collected.get(source.output)
    if value is None:
        value = Collected(items=tuple(task.outputs[source.output] for task in state.tasks))
        state.collected[source.output] = value
    return value


def _degraded(source: Source, nodes: Mapping[str, NodeState]) -> bool:
    return any(nodes[reference.node].degraded for reference in references(source))


def why_skipped(task: TaskState, nodes: Mapping[str, NodeState]) -> str:
    """``is_good gave False``; ``needs deploy, which was skipped``."""
    when = task.node.node.when
    if when is not None and nodes[when.node].ended == COMPLETED:
        return f"{when.node} gave False"
    skipped = sorted(set(_skipped(task, nodes)), key=lambda name: nodes[name].order)
    return f"needs {skipped[0]}, which was skipped" if skipped else "what it needs was skipped"


def _skipped(task: TaskState, nodes: Mapping[str, NodeState]) -> Iterator[str]:
    """The nodes that it needs and that were skipped, or whose task of its own index was."""
    plan = task.node.expansion
    needed = set(plan.gates)
    for items in plan.static.values():
        own = items if task.index is None else (items[task.index],)
        needed |= {reference.node for item in own for reference in references(item)}
    for name in plan.peers:
        peer = nodes[name]
        if task.index is None or peer.length is None:
            needed.add(name)
        elif peer.tasks[task.index].status == SKIPPED:
            yield name
    yield from (name for name in needed if nodes[name].ended == SKIPPED)
