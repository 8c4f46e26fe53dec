"""What a run would do, found out without one: :func:`make_plan`. Nothing runs, no run is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.registry import open_backend as open_registered
from upshift.code.packages import preview_package
from upshift.engine.clock import Clock, SystemClock
from upshift.engine.forecast import Forecast, Forecaster, launcher_missing
from upshift.engine.images import StepImages, origins_of, step_images
from upshift.engine.keys import CodeNamed, Keys
from upshift.engine.options import RunOptions
from upshift.engine.places import (
    OpenBackend,
    Place,
    Proposal,
    close_places,
    open_places,
    proposals,
    refusal,
)
from upshift.engine.secrets import missing_secrets, needed_secrets
from upshift.errors import UsageError
from upshift.model.configuration import Configuration
from upshift.model.graph import Graph, Node, StepDefinition, references
from upshift.model.settings.secrets import NeededSecret, secret_files
from upshift.model.spec.hardware import Hardware
from upshift.model.spec.task import Code
from upshift.report.plan import Edge, Plan, PlannedCode, PlannedStep, PlannedValue
from upshift.runs.catalog import open_catalog
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
    """What :func:`upshift.engine.execute` would do with the same arguments.

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
