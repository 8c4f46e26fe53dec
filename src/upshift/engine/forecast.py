"""What will become of each task: reused, run, or not to be known before something else has run.

The walk itself is walked, with earlier results in place of work. Where there is no earlier result a
task stays unfinished, and what needs it stays open. So a plan and a run decide by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from upshift.engine.keys import Keys
from upshift.engine.places import Proposal
from upshift.engine.reuse import Hit, Reuse
from upshift.engine.shortcomings import Standard
from upshift.engine.skipping import why_skipped
from upshift.engine.tasks import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, SKIPPED, NodeState, Task
from upshift.engine.values import task_inputs
from upshift.engine.walk import Walk
from upshift.errors import BlobDamaged, BlobMissing, MissingExtra
from upshift.model.graph import Graph, needs, references
from upshift.model.spec.artifact import Artifact
from upshift.report.plan import PlannedTask
from upshift.runs.catalog import Catalog
from upshift.runs.growth import growth_of
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

REUSED = "reused"
RUNS = "runs"
DEPENDS = "depends"
SKIPS = "skipped"
FAILS = "fails"

_ACTIONS = {RUNNING: RUNS, SKIPPED: SKIPS, FAILED: FAILS, CANCELLED: FAILS}


@attrs.frozen(kw_only=True)
class Forecast:
    """What will become of a node.

    Parameters
    ----------
    length
        Number of its tasks; None: not to be known yet.
    tasks
        Each of them; where their number is not known, one that stands for all.
    """

    length: int | None
    tasks: tuple[PlannedTask, ...]

    @property
    def may_run(self) -> bool:
        """Whether anything of it will run, or may."""
        return any(task.action in (RUNS, DEPENDS) for task in self.tasks)


def launcher_missing(
    offered: Mapping[str, Proposal], graph: Graph, forecasts: Mapping[str, Forecast]
) -> MissingExtra | None:
    """The error for the first step that may run and has no launcher where it would; None: there is none."""
    may_run = {node.step for node in graph.nodes if forecasts[node.name].may_run}
    return next((one.missing for one in offered.values() if one.missing and one.step in may_run), None)


class Forecaster:
    """Walks a graph without running anything.

    Parameters
    ----------
    graph
        The graph.
    standards
        What each step would get, by the name of its definition.
    catalog, store
        Where earlier results are found.
    reusing
        Whether the user wants anything reused.
    project
        Folder of the project.
    keys
        Makes the keys of tasks.
    now
        Seconds since the epoch.

    Raises
    ------
    GraphError
        The graph cannot be walked.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        standards: Mapping[str, Standard],
        catalog: Catalog,
        store: Store,
        reusing: bool,
        project: str,
        keys: Keys,
        now: float,
    ) -> None:
        grow = growth_of(graph, store)
        self._walk = Walk(graph, truth=lambda artifact: artifacts.plain_value(artifact, store), grow=grow)
        self._standards = standards
        # No run has an empty name: none of the earlier runs is left out.
        self._reuse = Reuse("", graph, catalog, store, enabled=reusing, project=project)
        self._reusing = reusing
        self._store = store
        self._now = now
        self._keys = keys
        self._reasons: dict[Task, str] = {}
        self._origins: dict[Task, str] = {}
        self._conditional: set[str] = set()

    def forecast(self) -> dict[str, Forecast]:
        """What will become of each node, by name, in the graph's order."""
        self._walk.start()
        while self._walk.ready:
            self._admit(self._walk.ready.popleft())
        return {name: self._of_node(state) for name, state in self._walk.nodes.items()}

    def _admit(self, task: Task) -> None:
        """As the driver does it, but that nothing is submitted."""
        try:
            inputs, _ = task_inputs(task, self._walk.nodes, self._items_of)
        except (BlobMissing, BlobDamaged) as error:
            self._runs(task, f"an input is lost and made again: {error.what}")
            return
        if task.redone_for is not None:
            self._runs(task, "its result was lost")
            return
        task.key = self._keys.key(task.node, inputs)
        found = self._reuse.find(task, task.key, self._standards[task.node.node.step], now=self._now)
        if isinstance(found, Hit):
            self._reasons[task] = found.reason
            self._origins[task] = found.result.task.run
            self._walk.completed(task, found.result.outputs, degraded=found.result.degraded)
        else:
            self._runs(task, found or self._reuse.why(task, inputs))

    def _runs(self, task: Task, reason: str) -> None:
        self._reasons[task] = reason
        self._walk.began(task)

    def _items_of(self, artifact: Artifact) -> tuple[Artifact, ...]:
        return artifacts.items_of(artifact, self._store)

    def _of_node(self, state: NodeState) -> Forecast:
        node = state.node
        open_condition = node.when is not None and self._walk.nodes[node.when.node].ended is None
        if open_condition or (state.ended is None and not self._conditional.isdisjoint(needs(node))):
            self._conditional.add(node.name)
        tasks = state.tasks
        if state.length is None and not tasks:
            lone = Task(state, None)
            lone.status = state.ended or PENDING
            tasks = [lone]
        return Forecast(length=state.length, tasks=tuple([self._of_task(task) for task in tasks]))

    def _of_task(self, task: Task) -> PlannedTask:
        reason = self._reasons.get(task)
        if task.status == COMPLETED:
            return PlannedTask(index=task.index, action=REUSED, reason=reason, origin=self._origins.get(task))
        if task.status == PENDING:
            return self._open(task)
        if task.failure is not None:
            reason = task.failure.message
        elif task.status == SKIPPED:
            reason = why_skipped(task, self._walk.nodes)
        elif task.status == CANCELLED:
            reason = "what it needs fails"
        return PlannedTask(index=task.index, action=_ACTIONS[task.status], reason=reason)

    def _open(self, task: Task) -> PlannedTask:
        """A task that waits for something that will run."""
        state = task.node
        behind = tuple(self._behind(task))
        certain = None
        if not state.definition.settings.reusable:
            certain = "cache=False"
        elif not self._reusing:
            certain = "reuse is switched off for this run"
        if certain is not None and state.node.name not in self._conditional:
            return PlannedTask(index=task.index, action=RUNS, reason=certain, depends_on=behind)
        reason = certain or self._reuse.changed(state)
        if reason is None and self._standards[state.node.step].strict:
            reason = self._reuse.degraded(task)
        return PlannedTask(index=task.index, action=DEPENDS, reason=reason, depends_on=behind)

    def _behind(self, task: Task) -> list[str]:
        """Nodes that hold the task up, in the graph's order."""
        state, nodes = task.node, self._walk.nodes
        found = {name for name in state.expansion.gates if nodes[name].ended is None}
        found |= {name for name in state.expansion.peers if self._holds(nodes[name], task.index)}
        for items in state.expansion.static.values():
            own = items if task.index is None else (items[task.index],)
            found |= {r.node for item in own for r in references(item) if nodes[r.node].ended is None}
        return sorted(found, key=lambda name: nodes[name].order)

    @staticmethod
    def _holds(peer: NodeState, index: int | None) -> bool:
        if index is None or peer.length is None:
            return peer.ended is None
        return peer.tasks[index].status != COMPLETED
