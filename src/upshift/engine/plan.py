"""What a run would do, found out without one: :func:`make_plan`. Nothing runs, no run is recorded.

The walk itself is walked, with earlier results in place of work. Where there is no earlier result a
task stays unfinished, and what needs it stays open. So a plan and a run decide by the same rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.registry import open_backend as open_registered
from upshift.code.packages import preview_package
from upshift.engine import RunOptions
from upshift.engine.clock import Clock, SystemClock
from upshift.engine.images import StepImages, origins_of, step_images
from upshift.engine.inputs import task_inputs, why_skipped
from upshift.engine.keys import CodeNamed, Keys
from upshift.engine.places import (
    OpenBackend,
    Place,
    Proposal,
    close_places,
    open_places,
    proposals,
    refusal,
)
from upshift.engine.reuse import Hit, Reuse
from upshift.engine.secrets import missing_secrets, needed_secrets
from upshift.engine.shortcomings import Standard
from upshift.engine.tasks import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, SKIPPED, NodeState, Task
from upshift.engine.walk import Walk
from upshift.errors import BlobDamaged, BlobMissing, MissingExtra, UsageError
from upshift.model.configuration import Configuration
from upshift.model.graph import Graph, Node, StepDefinition, needs, references
from upshift.model.settings.secrets import NeededSecret, secret_files
from upshift.model.spec.artifact import Artifact
from upshift.model.spec.hardware import Hardware
from upshift.model.spec.task import Code
from upshift.report.plan import Edge, Plan, PlannedCode, PlannedStep, PlannedTask, PlannedValue
from upshift.runs.catalog import Catalog, open_catalog
from upshift.runs.growth import growth_of
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.images.base import Announce


def make_plan(
    graph: Graph,
    *,
    code: Code,
    configuration: Configuration,
    options: RunOptions,
    code_named: CodeNamed | None = None,
    announce: Announce | None = None,
    open_backend: OpenBackend = open_registered,
    clock: Clock | None = None,
) -> Plan:
    """What :func:`upshift.engine.run.execute` would do with the same arguments.

    Parameters
    ----------
    graph, code, configuration, options, code_named
        As for a run.
    announce
        Told what takes long.
    open_backend, clock
        Given by tests.

    Raises
    ------
    NotFound, ConfigError, MissingExtra
        A target or its backend is not there, or cannot be used.
    GraphError
        The graph cannot be walked.
    StoreUnavailable
        The store or the catalog cannot be read.
    """
    inbox: SimpleQueue[Any] = SimpleQueue()
    places = open_places(graph, configuration, options.target, inbox=inbox, open_backend=open_backend)
    try:
        target = places[None].target
        store = open_store(configuration.store_address(target), **configuration.store_options)
        offered = proposals(graph, places, strict=options.strict, project=code.project)
        refused = refusal(offered.values(), strict=options.strict)
        secrets = needed_secrets(graph, places, project=code.project)
        missing = missing_secrets(secrets.values())
        granted = {name: proposal.offer.granted for name, proposal in offered.items()}
        with (
            step_images(graph, places, granted, project=code.project, look=True, announce=announce) as images,
            contextlib.closing(open_catalog(configuration)) as catalog,
        ):
            graph = images.marked(graph)
            forecasts = Forecaster(
                graph,
                standards={name: proposal.standard for name, proposal in offered.items()},
                catalog=catalog,
                store=store,
                reusing=options.reuse,
                project=code.project,
                keys=Keys(code_named),
                now=(clock or SystemClock()).now(),
            ).forecast()
        nodes = {node.name: node for node in graph.nodes}
        position = {name: i for i, name in enumerate(forecasts)}
        launcher = launcher_missing(offered, graph, forecasts)
        planned_code, problem = _code(code, places, store, secret_files(code.project))
        return Plan(
            pipeline=graph.pipeline,
            target=target.name,
            store=store.address,
            params=graph.params,
            texts=graph.texts,
            steps=tuple(
                _step(nodes[name], position, offered[nodes[name].step], forecast, secrets, images)
                for name, forecast in forecasts.items()
            ),
            code=planned_code,
            refusals=tuple(filter(None, (refused, missing, images.refusal, launcher, problem))),
            to_come=tuple(name for name in graph.used if name not in {node.step for node in graph.nodes}),
        )
    finally:
        close_places(places.values())


def _step(
    node: Node,
    position: Mapping[str, int],
    proposal: Proposal,
    forecast: Forecast,
    secrets: Mapping[str, tuple[NeededSecret, ...]],
    images: StepImages,
) -> PlannedStep:
    definition, place = proposal.definition, proposal.place
    own_secrets = secrets.get(node.step, ())
    tasks = forecast.tasks
    if images.is_unknown(node.step):  # what it would be compared with is not what would run
        tasks = tuple(attrs.evolve(task, reason=None) for task in tasks)
    return PlannedStep(
        name=node.name,
        step=node.step,
        location=node.location,
        needs=_edges(node, position),
        mapped=node.mapped,
        length=forecast.length,
        tasks=tasks,
        target=place.target.name,
        backend=place.backend.name,
        request=_values(definition),
        asked=Hardware.asked(definition.settings.resources, definition.launch),
        granted=proposal.offer.granted,
        strict=proposal.strict,
        shortfalls=proposal.offer.shortfalls,
        refused=proposal.refused
        or any(secret.problem for secret in own_secrets)
        or (proposal.missing is not None and forecast.may_run)
        or node.step in images.refused,
        retry=definition.settings.retry_policy,
        timeout=definition.settings.timeout,
        cache=definition.settings.reusable,
        cache_expires=definition.settings.cache_expires,
        secrets=own_secrets,
        docker=definition.settings.docker.explicit() if definition.settings.docker else {},
        docker_origins=origins_of(definition),
        images=place.backend.capabilities.images,
        launch=proposal.launch,
        launch_origin=definition.settings.origins.get("launch"),
        remarks=proposal.remarks,
        image=images.prepared.get(node.step),
    )


def _values(definition: StepDefinition) -> tuple[PlannedValue, ...]:
    """What a step asks for, and who said it."""
    request = definition.settings.resources
    said = [
        PlannedValue(field=f, value=v, origin=definition.settings.origins.get(f))
        for f, v in request.explicit().items()
    ]
    if request.implied_count is not None:
        origin = "nothing says how many"
        said.append(PlannedValue(field="gpu_count", value=request.implied_count, origin=origin))
    return tuple(said)


def _edges(node: Node, position: Mapping[str, int]) -> tuple[Edge, ...]:
    edges: dict[Edge, None] = {}
    for parameter, source in node.inputs.items():
        for reference in references(source):
            by_item = parameter in node.over and reference is source
            edges[Edge(step=reference.node, kind="item" if by_item else "data")] = None
    edges.update({Edge(step=name, kind="after"): None for name in node.after})
    if node.when is not None:
        edges[Edge(step=node.when.node, kind="when")] = None
    return tuple(sorted(edges, key=lambda edge: position[edge.step]))


def _code(
    code: Code, places: Mapping[str | None, Place], store: Store, exclude: Sequence[Path]
) -> tuple[PlannedCode, UsageError | None]:
    """What the package would hold; the error too, where the run cannot do without one."""
    try:
        preview = preview_package(Path(code.project), store, exclude=exclude)
    except UsageError as error:
        needed = any(place.backend.capabilities.remote for place in places.values())
        return PlannedCode(project=code.project, problem=error.what), error if needed else None
    return PlannedCode(
        project=code.project,
        files=len(preview.files),
        bytes=preview.bytes,
        parts=preview.parts,
        left_out=preview.left_out,
    ), None


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
