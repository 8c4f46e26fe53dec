"""A pipeline for an orchestrator that starts its steps itself: what is exported, and what is left for them.

::

    here:   checks, images, code package, engine, and an Order: all by content, into the store
            └─► the orchestrator's own file, whose pods are told the order's digest
    there:  each pod makes the spec of its own task from the order and the results so far: :mod:`.one_step`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.registry import open_backend as open_registered
from upshift.engine import RunOptions
from upshift.engine.prospects import Prospect, prospects
from upshift.engine.targets import OpenBackend, Proposal
from upshift.errors import RequestRefused, UpshiftError, UsageError, together
from upshift.model.configuration import Configuration, Target
from upshift.model.graph import Graph
from upshift.model.home import user_name
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.secrets import at_node, secret_files
from upshift.model.spec.codec import encode, to_json
from upshift.model.spec.hardware import Hardware
from upshift.model.spec.launch import Launch
from upshift.model.spec.task import Code
from upshift.runtime.storage.replica import blob_key
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:
    from upshift.backends.kubeflow.pipeline import Pod
    from upshift.images.base import Announce, Image, Tell

MODULE = "upshift.cli.one_step"
"""What pods start."""


@attrs.frozen(kw_only=True)
class StepOrder:
    """What a step gets, whichever of its tasks it is."""

    granted: Hardware
    strict: bool
    degraded: bool = False
    request: ResourceSettings = ResourceSettings()
    launch: Launch | None = None
    image: str | None = None
    interpreter: str | None = None
    user: str | None = None


@attrs.frozen(kw_only=True)
class Order:
    """A pipeline as it was exported: all that its pods need beside what steps have made."""

    graph: Graph
    steps: Mapping[str, StepOrder]  # by definition
    code: Code  # with its package
    runtime: str  # digest of the engine, which is a runtime, too
    target: Target
    store: str  # as nodes have it
    options: Mapping[str, str]  # how it is opened
    source: Mapping[str, Any]  # where the pipeline comes from
    params: Mapping[str, Any] = attrs.field(factory=dict)  # parameters that a run may set, as plain data
    user: str | None = None
    tags: tuple[str, ...] = ()


def export_kubeflow(
    graph: Graph,
    *,
    code: Code,
    source: Mapping[str, Any],
    configuration: Configuration,
    options: RunOptions,
    store: Store,
    params: Mapping[str, Any],
    tell: Tell,
    announce: Announce | None = None,
    open_backend: OpenBackend = open_registered,
) -> str:
    """Put what a pipeline needs into the bucket, and give it as Kubeflow has pipelines.

    Parameters
    ----------
    store
        That of the target, opened as nodes do; what the graph names is there.
    params
        Parameters that a run may set, and their defaults, as plain data.
    tell
        Told how far images are.

    Raises
    ------
    UpshiftError
        Kubeflow cannot express something of it, or something that it needs is not there.
    """
    from upshift.backends.kubeflow.pipeline import Pod, pipeline_of, refuse_inexpressible
    from upshift.code.engine_package import engine_package
    from upshift.code.packages import make_package
    from upshift.code.runtime_package import bootstrap

    with prospects(
        graph,
        configuration,
        options,
        project=code.project,
        inbox=SimpleQueue(),
        announce=announce,
        builds=True,
        open_backend=open_backend,
    ) as found:
        graph = attrs.evolve(found.graph, sources={})
        problem = together([*found.problems, *_elsewhere(found)])
        if problem is not None:
            raise problem
        for name in graph.used:
            refuse_inexpressible(name, graph.steps[name])
        sketch = {name: Pod(image="", command=()) for name in graph.used}
        pipeline_of(
            graph, sketch, Pod(image="", command=()), params=params, description=""
        )  # or it is refused
        made = {name: prepared.make(tell) for name, prepared in found.images.prepared.items()}
        package = (
            code.package or make_package(Path(code.project), store, exclude=secret_files(code.project)).digest
        )
        order = Order(
            graph=graph,
            steps={name: _step(one, made.get(name)) for name, one in found.offered.items()},
            code=attrs.evolve(code, package=package),
            runtime=engine_package(store),
            target=found.target,
            store=store.name,
            options={"durability": store.durability, "verify": store.verify},
            source={name: encode(value) for name, value in source.items()},
            params=params,
            user=options.user or user_name(),
            tags=options.tags,
        )
        digest, _ = store.put(to_json(order), algorithm="sha256")  # which any Python can compare
        environment = {} if store.replica is None else store.replica.objects.environment
        words = ("-c", bootstrap(store.name), f"{store.name}/{blob_key(order.runtime)}", "-m", MODULE)
        own = getattr(found.places[None].backend, "options", {})

        def pod(name: str) -> Pod:
            definition, step = graph.steps[name], order.steps[name]
            return Pod(
                image=_image_of(name, step, found),
                command=(step.interpreter or "python3", *words, store.name, digest),
                environment=environment,
                granted=step.granted,
                settings={**own, **_said(definition.settings.backends.get("kubeflow", {}))},
                secrets=at_node(definition.settings.secret_sources),
                retry=definition.settings.retry_policy,
            )

        pods = {name: pod(name) for name in graph.used}
        first = pods[graph.nodes[0].step]
        end = Pod(image=first.image, command=first.command, environment=environment, settings=own)
        return pipeline_of(
            graph, pods, end, params=params, description=f"Exported by Upshift from {source.get('file')}"
        )


def _elsewhere(found: Prospect) -> list[UpshiftError]:
    """Steps that say themselves that they run on something else."""
    own = found.places[None]
    wrong: list[UpshiftError] = []
    if own.backend.name != "kubeflow":
        raise UsageError(
            f"target {own.target.name!r} is one of backend {own.backend.name}, and not of Kubeflow",
            fix='Name one with backend = "kubeflow" by --on.',
        )
    for name in found.graph.used:
        on = found.graph.steps[name].settings.on
        if found.places[on].target.name != own.target.name:
            settings = found.graph.steps[name].settings
            wrong.append(
                RequestRefused(
                    f"step {name} runs on {on!r}, and in a pipeline of Kubeflow's all steps are its own",
                    where=settings.origins.get("on") or found.graph.steps[name].location,
                    fix="Leave on= out, or the decorator that says it.",
                )
            )
    return wrong


def _step(proposal: Proposal, image: Image | None) -> StepOrder:
    granted = proposal.offer.granted
    assert granted is not None  # else it was refused
    return StepOrder(
        granted=granted,
        strict=proposal.strict,
        degraded=bool(proposal.offer.shortfalls),
        request=proposal.definition.settings.resources,
        launch=proposal.launch,
        image=None if image is None else image.reference,
        interpreter=None if image is None else image.interpreter,
        user=None if image is None else image.user,
    )


def _image_of(name: str, step: StepOrder, found: Prospect) -> str:
    own = found.target.options.get("image")
    if step.image or own:
        return step.image or str(own)
    raise RequestRefused(
        f"step {name} names no image, and target {found.target.name!r} none for such steps",
        where=found.graph.steps[name].location,
        fix='Describe one, DockerSettings(parent_image="…"), or name one for all: options = { image = "…" }.',
    )


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value not in (None, (), [], {})}
