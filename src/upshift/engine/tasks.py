"""The walk's own view of nodes and tasks: small mutable records, ten thousand of which are cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from upshift.model.spec.artifact import Artifact, Value
from upshift.model.spec.task import Failure

if TYPE_CHECKING:
    from upshift.engine.places import Terms
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


class Task:
    """One step instance.

    Attributes
    ----------
    node
        The node it belongs to.
    index
        Its number in a mapped node; None: the only task of its node.
    status
        One of the six statuses of a task.
    waiting
        Items that it still waits for, beside its node's gates.
    outputs
        What it made, once it is completed.
    failure
        Why it failed.
    degraded
        Whether its result was made under a degraded grant, or from such a result.
    redone_for
        Who waits for it to make its outputs once more; None: nobody.
    rounds
        How often its producers had to run again for it.
    overtaken
        How often a task of lower priority was started while this one waited for room.
    attempts, failures
        Number of the last attempt; how many of them failed, as far as retries are concerned.
    terms
        What its next attempt gets instead of what its step gets; None: that.
    caught
        Why it failed, where another attempt is to go on from there; None: none is.
    key, cached, cache_reason, origin
        As in the catalog's row.
    stream
        What its random numbers follow from, beside what the run drew.
    """

    __slots__ = (
        "attempts",
        "cache_reason",
        "cached",
        "caught",
        "degraded",
        "failure",
        "failures",
        "index",
        "key",
        "node",
        "origin",
        "outputs",
        "overtaken",
        "redone_for",
        "rounds",
        "status",
        "stream",
        "terms",
        "waiting",
    )

    def __init__(self, node: NodeState, index: int | None) -> None:
        self.node = node
        self.index = index
        self.status = PENDING
        self.waiting = 0
        self.outputs = NO_OUTPUTS
        self.failure: Failure | None = None
        self.degraded = False
        self.redone_for: list[Waiter] | None = None
        self.rounds = 0
        self.overtaken = 0
        self.attempts = 0
        self.failures = 0
        self.terms: Terms | None = None
        self.caught: Failure | None = None
        self.key: str | None = None
        self.stream: str | None = None
        self.cached = False
        self.cache_reason: str | None = None
        self.origin: tuple[str, str, int | None, int] | None = None

    def __str__(self) -> str:
        name = self.node.node.name
        return name if self.index is None else f"{name}[{self.index}]"


Waiter = tuple[Callable[[Any, str], None], Any]
"""Whom to tell how something ended: a method, and what it is told about."""


class NodeState:
    """One node of the graph while it is walked.

    Attributes
    ----------
    order
        Its place in the graph.
    remaining
        Nodes on the longest path from here to an end of the graph.
    length
        Number of its tasks; None: not known yet.
    tasks
        Its tasks, once the length is known.
    open
        Tasks that have not ended.
    gates
        Nodes that hold up all of its tasks and have not ended.
    unsized
        Nodes whose length, or whose list, its own length waits for.
    ended
        How it ended; None: not yet. The worst of its tasks.
    worst
        The worst end of a task so far.
    degraded
        Whether any of its results was made under a degraded grant.
    gated, following, awaiting
        Who is told when it ends, when its length is known and its tasks end, and (one task each)
        when it ends.
    lists
        The items of mapped artifacts, by parameter.
    shared
        The inputs that all of its tasks have in common, once the first one needed them.
    collected
        What a consumer of the whole node gets, by output.
    """

    __slots__ = (
        "awaiting",
        "collected",
        "definition",
        "degraded",
        "ended",
        "expansion",
        "following",
        "gated",
        "gates",
        "length",
        "lists",
        "node",
        "open",
        "order",
        "remaining",
        "rounds",
        "shared",
        "shared_degraded",
        "tasks",
        "unsized",
        "worst",
    )

    def __init__(
        self, node: Node, definition: StepDefinition, expansion: Expansion, *, order: int, remaining: int
    ) -> None:
        self.node = node
        self.definition = definition
        self.expansion = expansion
        self.order = order
        self.remaining = remaining
        self.length: int | None = None
        self.tasks: list[Task] = []
        self.open = 0
        self.gates = 0
        self.unsized = 0
        self.ended: str | None = None
        self.worst = COMPLETED
        self.degraded = False
        self.rounds = 0
        self.gated: list[NodeState] = []
        self.following: list[NodeState] = []
        self.awaiting: list[Task] = []
        self.lists: dict[str, tuple[Artifact, ...]] = {}
        self.shared: dict[str, Value] | None = None
        self.shared_degraded = False
        self.collected: dict[str, Value] = {}

    def __str__(self) -> str:
        return self.node.name
