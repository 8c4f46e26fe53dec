"""The walk's own view of nodes and tasks: small mutable records, ten thousand of which are cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.spec.artifact import Artifact, Value
from upshift.model.spec.task import Failure

if TYPE_CHECKING:
    from upshift.model.graph import Expansion, Node, StepDefinition

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
