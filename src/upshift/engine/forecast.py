"""What a run would do, found out without one: :func:`make_plan`. Nothing runs, no run is recorded.

The walk itself is walked, with earlier results in place of work. Where there is no earlier result a
task stays unfinished, and what needs it stays open. So a plan and a run decide by the same rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.base import Job
from upshift.backends.registry import open_backend as open_registered
from upshift.engine import RunOptions
from upshift.engine.images import IMAGE, origins_of
from upshift.engine.keys import CodeNamed, Keys
from upshift.engine.offers import GrantPlan, grant_plans
from upshift.engine.preflight import Preflight, preflight
from upshift.engine.reuse import Hit, Reuse
from upshift.engine.schedule import Clock, SystemClock
from upshift.engine.specs import Specs
from upshift.engine.targets import OpenBackend
from upshift.engine.tasks import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    SKIPPED,
    NodeState,
    TaskState,
    task_inputs,
    why_skipped,
)
from upshift.engine.walk import Walk
from upshift.errors import BlobDamaged, BlobMissing, MissingExtra, UsageError
from upshift.model.configuration import Configuration
from upshift.model.graph import Graph, Node, StepDefinition, needs, references, taken_by
from upshift.model.settings.secrets import at_node, read_secrets, secret_files
from upshift.model.spec.hardware import Hardware
from upshift.model.spec.task import UNCACHED, Artifact, Code, TaskId
from upshift.report.views.plan import Edge, Plan, PlannedCode, PlannedStep, PlannedTask, PlannedValue
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import open_catalog
from upshift.runs.history.records import growth_of
from upshift.runtime.masking import Mask
from upshift.runtime.storage import artifacts

if TYPE_CHECKING:
    from upshift.images.base import Announce, Image


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
    scripts: bool = False,
    source: Mapping[str, Any] | None = None,  # where the pipeline comes from; None: nothing is known of it
) -> Plan:
    """What :func:`upshift.engine.run.execute` would do; with the ``scripts`` that it would submit."""
    with (
        preflight(
            graph,
            configuration,
            options,
            project=code.project,
            inbox=SimpleQueue(),
            announce=announce,
            look=True,
            open_backend=open_backend,
        ) as found,
        contextlib.closing(open_catalog(configuration)) as catalog,
    ):
        now = (clock or SystemClock()).now()
        forecasts = forecast(found, catalog, Keys(code_named), reusing=options.reuse, now=now)
        nodes = {node.name: node for node in graph.nodes}
        position = {name: i for i, name in enumerate(forecasts)}
        planned_code, problem = _code(code, found)
        launcher = launcher_missing(found, forecasts)
        planned = [_step(nodes[name], position, found, one) for name, one in forecasts.items()]
        document = None
        if scripts and not found.places[None].backend.capabilities.steps:
            said = {"configuration": configuration, "options": options, "store": found.store}
            document = _document(found, code=code, source=source or {}, **said)
        elif scripts:
            drafts = _Drafts(found, code)
            planned = [attrs.evolve(step, scripts=drafts.of(step, forecasts[step.name])) for step in planned]
        return Plan(
            pipeline=graph.pipeline,
            target=found.target.name,
            store=found.store.name,
            params=graph.params,
            texts=graph.texts,
            steps=tuple(planned),
            code=planned_code,
            refusals=(*found.problems, *filter(None, (launcher, problem))),
            to_come=tuple(name for name in graph.used if name not in {node.step for node in graph.nodes}),
            document=document,
        )


def _document(found: Preflight, **said: Any) -> str | None:
    """The whole pipeline in the form of the target's tool; None: it would be refused."""
    if found.problems:
        return None
    from upshift.engine.exported import TOOLS  # other targets have no such form

    return TOOLS[found.target.backend](found.graph, planned=found, **said).text


def _step(node: Node, position: Mapping[str, int], found: Preflight, forecast: Forecast) -> PlannedStep:
    proposal, images = found.offered[node.step], found.images
    definition, place = proposal.definition, proposal.place
    own_secrets = found.secrets.get(node.step, ())
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
    for parameter, source in taken_by(node).items():
        for reference in references(source):
            by_item = parameter in node.over and reference is source
            edges[Edge(step=reference.node, kind="item" if by_item else "data")] = None
    edges.update({Edge(step=name, kind="after"): None for name in node.after})
    if node.when is not None:
        edges[Edge(step=node.when.node, kind="when")] = None
    return tuple(sorted(edges, key=lambda edge: position[edge.step]))


def _code(code: Code, found: Preflight) -> tuple[PlannedCode, UsageError | None]:
    """What the package would hold; the error too, where the run cannot do without one."""
    from upshift.code.packages import preview_package  # a run needs none of it

    try:
        preview = preview_package(Path(code.project), found.store, exclude=secret_files(code.project))
    except UsageError as error:
        needed = any(place.backend.capabilities.remote for place in found.places.values())
        return PlannedCode(project=code.project, problem=error.what), error if needed else None
    return PlannedCode(
        project=code.project,
        files=len(preview.files),
        bytes=preview.bytes,
        parts=preview.parts,
        left_out=preview.left_out,
    ), None


RUN = "RUN"
"""What stands for the id of a run that nobody has started."""


class _Drafts:
    """What the places of steps would be given."""

    def __init__(self, found: Preflight, code: Code) -> None:
        self._found = found
        self._plans = grant_plans(found.offered)
        self._specs = Specs(found.graph, code, found.store, cwd=None, shipped=None, draws={})

    def of(self, step: PlannedStep, forecast: Forecast) -> tuple[str, ...] | None:
        """The scripts of a step; of one with as many tasks as nobody knows yet, that of one task."""
        plan = self._plans.get(step.step)
        if plan is None or step.refused:
            return ()
        jobs = [self._job(state, task.index, plan) for task, state in forecast.submitted]
        backend = plan.place.backend
        scripts = backend.scripts(jobs) if hasattr(backend, "scripts") else None  # not of an older package's
        if scripts is None:
            return None
        secrets = self._found.graph.steps[step.step].settings.secret_sources
        here = at_node(secrets, there=False)
        mask = Mask(read_secrets(here, project=self._found.project).values())
        return tuple(map(mask.text, scripts)) if secrets else tuple(scripts)

    def _job(self, task: TaskState, index: int | None, plan: GrantPlan) -> Job:
        task_id = TaskId(run=RUN, step=task.node.node.name, index=index)
        image = self._image(task.node.node.step)
        spec = self._specs.make(task, task_id, 1, {}, plan, degraded=plan.degraded, image=image)
        return Job(spec=spec, spec_path=self._found.store.spec_path(task_id, 1))

    def _image(self, step: str) -> Image | None:
        """What a step would run in: the image that is there, or one that only a run makes."""
        images = self._found.images
        if step in images.prepared:
            from upshift.images.base import Image  # for steps with images alone

            prepared = images.prepared[step]
            user = prepared.ingredients.recipe.user
            return prepared.image or Image(reference=IMAGE, recipe="", user=user)
        if step in images.environments:
            return images.environments[step].image
        return None


REUSED = "reused"
RUNS = "runs"
DEPENDS = "depends"
SKIPS = "skipped"
FAILS = "fails"

_ACTIONS = {RUNNING: RUNS, SKIPPED: SKIPS, FAILED: FAILS, CANCELLED: FAILS}


@attrs.frozen(kw_only=True)
class Forecast:
    """What will become of a node."""

    length: int | None  # number of its tasks; None: not to be known yet
    tasks: tuple[PlannedTask, ...]  # each of them; where their number is not known, one that stands for all
    states: tuple[TaskState, ...]  # what they are in the walk

    @property
    def submitted(self) -> list[tuple[PlannedTask, TaskState]]:
        """The tasks that will run, or may run."""
        pairs = zip(self.tasks, self.states, strict=True)
        return [(task, state) for task, state in pairs if task.action in (RUNS, DEPENDS)]

    @property
    def may_run(self) -> bool:
        """Whether a task of the step will run, or may run."""
        return bool(self.submitted)


def launcher_missing(found: Preflight, forecasts: Mapping[str, Forecast]) -> MissingExtra | None:
    """The error for the first step that may run and has no launcher where it would; None: there is none."""
    may_run = {node.step for node in found.graph.nodes if forecasts[node.name].may_run}
    return next((one.missing for one in found.offered.values() if one.missing and one.step in may_run), None)


def forecast(
    found: Preflight, catalog: Catalog, keys: Keys, *, reusing: bool, now: float
) -> dict[str, Forecast]:
    """What will become of each node, by name, in the graph's order."""
    return _Forecaster(found, catalog, keys, reusing=reusing, now=now).forecast()


class _Forecaster:
    """Walks a graph without running anything."""

    def __init__(self, found: Preflight, catalog: Catalog, keys: Keys, *, reusing: bool, now: float) -> None:
        graph, store = found.graph, found.store
        grow = growth_of(graph, store)
        self._walk = Walk(graph, truth=lambda artifact: artifacts.plain_value(artifact, store), grow=grow)
        self._offered = found.offered
        self._graph = graph
        # No run has an empty name: none of the earlier runs is left out.
        self._reuse = Reuse("", graph, catalog, store, enabled=reusing, project=found.project)
        self._reusing = reusing
        self._store = store
        self._now = now
        self._keys = keys
        self._reasons: dict[TaskState, str] = {}
        self._origins: dict[TaskState, str] = {}
        self._conditional: set[str] = set()

    def forecast(self) -> dict[str, Forecast]:
        self._walk.start()
        while self._walk.ready:
            self._admit(self._walk.ready.popleft())
        return {name: self._of_node(state) for name, state in self._walk.nodes.items()}

    def _admit(self, task: TaskState) -> None:
        """Admit a task as the driver does, without submitting it."""
        try:
            inputs, _ = task_inputs(task, self._walk.nodes, self._items_of)
        except (BlobMissing, BlobDamaged) as error:
            self._runs(task, f"an input is lost and made again: {error.what}")
            return
        if task.redone_for is not None:
            self._runs(task, "its result was lost")
            return
        task.key = self._keys.key(task.node, inputs)
        found = self._reuse.find(task, task.key, self._offered[task.node.node.step].standard, now=self._now)
        if isinstance(found, Hit):
            self._reasons[task] = found.reason
            self._origins[task] = found.result.task.run
            self._walk.completed(task, found.result.outputs, degraded=found.result.degraded)
        else:
            self._runs(task, found or self._reuse.history.why(task, inputs))

    def _runs(self, task: TaskState, reason: str) -> None:
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
            lone = TaskState(state, None)
            lone.status = state.ended or PENDING
            tasks = [lone]
        told = tuple([self._told(self._of_task(task)) for task in tasks])
        return Forecast(length=state.length, tasks=told, states=tuple(tasks))

    def _told(self, task: PlannedTask) -> PlannedTask:
        """A flow that reuses nothing did not ask for it, and so is not told why."""
        uncached = task.reason == UNCACHED and self._graph.reuses_nothing
        return attrs.evolve(task, reason=None) if uncached else task

    def _of_task(self, task: TaskState) -> PlannedTask:
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

    def _open(self, task: TaskState) -> PlannedTask:
        """A task that waits for something that will run."""
        state = task.node
        behind = tuple(self._behind(task))
        certain = None
        if not state.definition.settings.reusable:
            certain = UNCACHED
        elif not self._reusing:
            certain = "reuse is switched off for this run"
        if certain is not None and state.node.name not in self._conditional:
            return PlannedTask(index=task.index, action=RUNS, reason=certain, depends_on=behind)
        reason = certain or self._reuse.history.changed(state)
        if reason is None and self._offered[state.node.step].strict:
            reason = self._reuse.history.degraded(task)
        return PlannedTask(index=task.index, action=DEPENDS, reason=reason, depends_on=behind)

    def _behind(self, task: TaskState) -> list[str]:
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
