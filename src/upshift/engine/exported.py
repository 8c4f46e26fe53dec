"""A pipeline for an orchestrator that starts its steps itself: what is exported, and what is left for them.

::

    here:   checks, images, code package, engine, and an Order: all by content, into the store
            └─► the orchestrator's own file, whose pods are told the order's digest
    there:  each pod makes the spec of its own task from the order and the results so far: :mod:`.one_step`
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.registry import open_backend as open_registered
from upshift.engine import RunOptions
from upshift.engine.images import IMAGE, MadeImage
from upshift.engine.offers import Proposal
from upshift.engine.preflight import Preflight, preflight
from upshift.engine.targets import OpenBackend
from upshift.errors import RequestRefused, StoreError, UpshiftError, UsageError, together
from upshift.model.configuration import Configuration, Target, user_name
from upshift.model.graph import Graph, Node, expansion, needs, ordered
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.secrets import at_node, secret_files
from upshift.model.spec.codec import encode, to_json
from upshift.model.spec.hardware import Hardware, Launch
from upshift.model.spec.task import Code
from upshift.runs.needed import write_export
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.replica import blob_key
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:
    from upshift.images.base import Announce, Image
    from upshift.images.preparing import Prepared

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


@attrs.frozen(kw_only=True)
class Exported:
    """A pipeline that is in the bucket, and how its tasks are started there."""

    order: Order
    digest: str  # of the order, by which pods find it
    found: Preflight
    environment: Mapping[str, str]
    words: tuple[str, ...]  # what follows the interpreter on each command line

    @property
    def graph(self) -> Graph:
        """As it begins."""
        return self.order.graph

    def command(self, step: str) -> tuple[str, ...]:
        """What starts a task of a step, but for what it is to do."""
        return (self.order.steps[step].interpreter or "python3", *self.words)

    def settings(self, step: str) -> dict[str, Any]:
        """What the target and the step say for its backend."""
        own = getattr(self.found.places[None].backend, "options", {})
        said = self.graph.steps[step].settings.backends.get(self.order.target.backend, {})
        return {**own, **_said(said)}

    def image(self, step: str) -> str:
        """The image that a step runs in."""
        return _image_of(step, self.order.steps[step], self.found)

    def written(self, text: str, documents: Sequence[Mapping[str, Any]] = ()) -> Written:
        """The same in the form of a tool."""
        return Written(order=self.order, digest=self.digest, documents=tuple(documents), text=text)


@attrs.frozen(kw_only=True)
class Written:
    """A pipeline in the form of a tool, and what its tasks are told."""

    order: Order
    digest: str
    documents: tuple[Mapping[str, Any], ...]
    text: str


Refuse = Callable[[Graph], None]
"""Raises what of a graph a tool cannot express."""


def export_kubeflow(
    graph: Graph,
    *,
    source: Mapping[str, Any],
    store: Store,
    **said: Any,  # what :func:`exported` takes beside them
) -> Written:
    """Put what a pipeline needs into the bucket, and give it as Kubeflow has pipelines."""
    from upshift.backends.kubeflow.components import Pod
    from upshift.backends.kubeflow.pipeline import pipeline_of, refuse_inexpressible, text_of

    params = _settable(graph, store)

    def refuse(graph: Graph) -> None:
        for name in graph.used:
            refuse_inexpressible(name, graph.steps[name])
        sketch = {name: Pod(image="", command=()) for name in graph.used}
        pipeline_of(graph, sketch, Pod(image="", command=()), params=params, description="")

    with exported(graph, "kubeflow", refuse, params=params, source=source, store=store, **said) as made:

        def pod(name: str) -> Pod:
            definition = made.graph.steps[name]
            return Pod(
                image=made.image(name),
                command=made.command(name),
                environment=made.environment,
                granted=made.order.steps[name].granted,
                settings=made.settings(name),
                secrets=at_node(definition.settings.secret_sources),
                retry=definition.settings.retry_policy,
            )

        pods = {name: pod(name) for name in made.graph.used}
        first = pods[made.graph.nodes[0].step]
        own = getattr(made.found.places[None].backend, "options", {})
        end = Pod(image=first.image, command=first.command, environment=made.environment, settings=own)
        description = f"Exported by Upshift from {source.get('file')}"
        documents = pipeline_of(made.graph, pods, end, params=params, description=description)
        return made.written(text_of(documents), documents)


def export_skypilot(graph: Graph, *, source: Mapping[str, Any], **said: Any) -> Written:
    """Put what a pipeline needs into the bucket, and give it as a chain of SkyPilot's tasks."""
    from upshift.backends.skypilot.backend import SkyPilotBackend
    from upshift.backends.skypilot.task import Link, pipeline_of, refuse_inexpressible

    def unasked(target: Target, **where: Any) -> Any:
        backend = open_registered(target, **where)
        if isinstance(backend, SkyPilotBackend):
            backend.ask_nobody()
        return backend

    said.setdefault("open_backend", unasked)
    with exported(graph, "skypilot", refuse_inexpressible, params={}, source=source, **said) as made:
        links = [
            Link(
                node=name,
                command=made.command(step),
                image=made.image(step),
                granted=made.order.steps[step].granted,
                settings=made.settings(step),
                environment=made.environment,
                retry=made.graph.steps[step].settings.retry_policy,
            )
            for name, step in chain_of(made.graph)
        ]
        return made.written(pipeline_of(made.graph.pipeline, links, file=str(source.get("file"))))


TOOLS = {"kubeflow": export_kubeflow, "skypilot": export_skypilot}
"""What gives a pipeline in the form of a tool, by the name of its backend."""


def _settable(graph: Graph, store: Store) -> dict[str, Any]:
    """The parameters that a form of Kubeflow's can hold: plain data, as JSON has it."""
    found: dict[str, Any] = {}
    for name, artifact in graph.params.items():
        with contextlib.suppress(TypeError, ValueError, UpshiftError):
            value = artifacts.load(artifact, store)
            kinds = (bool, int, float, str, list, dict)
            if type(value) in kinds and json.loads(json.dumps(value, allow_nan=False)) == value:
                found[name] = value
    return found


def chain_of(graph: Graph) -> list[tuple[str, str]]:
    """Nodes and their steps, each after what it needs."""
    if graph.flow is None:
        return [(node.name, node.step) for node in ordered(graph.nodes)]
    found: list[tuple[str, str]] = []
    pending = list(graph.flow.steps)
    before: dict[str, set[str]] = {name: set() for name in pending}
    for name, shape in graph.flow.steps.items():
        for following in shape.then:
            before[following].add(name)
    while pending:
        done = {name for name, _ in found}
        name = next(one for one in pending if before[one] <= done)
        pending.remove(name)
        found.append((name, name))
    return found


@contextlib.contextmanager
def exported(
    graph: Graph,
    backend: str,
    refuse: Refuse,
    *,
    code: Code,
    source: Mapping[str, Any],
    configuration: Configuration,
    options: RunOptions,
    store: Store,  # that of the target, opened as nodes do; what the graph names is there
    params: Mapping[str, Any],
    announce: Announce | None = None,
    open_backend: OpenBackend = open_registered,
    planned: Preflight | None = None,  # what it would get, if nothing is to be made or put anywhere
) -> Iterator[Exported]:
    """Put what a pipeline needs into the bucket, for tasks that something else starts.

    Raises ``UpshiftError`` where the tool cannot express something of it, or something is missing.
    """
    if planned is not None:
        yield _sketch(planned, backend, refuse, code=code, source=source, options=options, params=params)
        return
    with preflight(
        graph,
        configuration,
        options,
        project=code.project,
        inbox=SimpleQueue(),
        announce=announce,
        builds=True,
        open_backend=open_backend,
    ) as found:
        _refuse(found, backend, refuse)
        made = found.images.made_now(announce or (lambda text: None))
        yield _laid_out(found, made, store, code=code, source=source, options=options, params=params)


def _refuse(found: Preflight, backend: str, refuse: Refuse) -> None:
    problem = together([*found.problems, *_elsewhere(found, backend)])
    if problem is not None:
        raise problem
    refuse(found.graph)


def _sketch(found: Preflight, backend: str, refuse: Refuse, **said: Any) -> Exported:
    """What an export would put into the bucket, put into a folder that goes at once: digests are the same."""
    _refuse(found, backend, refuse)
    made = {name: _image_to_be(one) for name, one in found.images.prepared.items()}
    with tempfile.TemporaryDirectory() as folder:
        return _laid_out(found, made, Store(Path(folder)), **said)


def _image_to_be(prepared: Prepared) -> Image:
    """The image that a run would make, or find."""
    from upshift.images.base import Image  # which only a sketch makes up

    image, parent = prepared.image, prepared.parent
    if image is None:
        return Image(reference=IMAGE, recipe="", user=prepared.ingredients.recipe.user)
    if parent is not None and image.reference == parent.pinned:  # as it is, with the Python on its own PATH
        return attrs.evolve(image, interpreter=None)
    return image


def _laid_out(
    found: Preflight,
    made: Mapping[str, Image | MadeImage],
    put: Store,  # where to put it
    *,
    code: Code,
    source: Mapping[str, Any],
    options: RunOptions,
    params: Mapping[str, Any],
) -> Exported:
    """Put code, engine and order somewhere, and say how tasks start that find them in the run's store."""
    from upshift.code.packages import make_package
    from upshift.code.runtime_package import bootstrap, engine_package

    store = found.store
    package = code.package or make_package(Path(code.project), put, exclude=secret_files(code.project)).digest
    order = Order(
        graph=attrs.evolve(found.graph, sources={}),
        steps={name: _step(one, made.get(name)) for name, one in found.offered.items()},
        code=attrs.evolve(code, package=package),
        runtime=engine_package(put),
        target=found.target,
        store=store.name,
        options={"durability": store.durability, "verify": store.verify},
        source={name: encode(value) for name, value in source.items()},
        params=params,
        user=options.user or user_name(),
        tags=options.tags,
    )
    written = to_json(order)
    digest, _ = put.put(written, algorithm="sha256")  # which any Python can compare
    write_export(put, digest, written)
    package_of_engine = f"{store.name}/{blob_key(order.runtime)}"
    return Exported(
        order=order,
        digest=digest,
        found=found,
        environment={} if store.replica is None else store.replica.objects.environment,
        words=("-Sc", bootstrap(store.name), package_of_engine, "-m", MODULE, store.name, digest),
    )


_TITLES = {"kubeflow": "Kubeflow", "skypilot": "SkyPilot"}


def _elsewhere(found: Preflight, backend: str) -> list[UpshiftError]:
    """Steps that say themselves that they run on something else."""
    own = found.places[None]
    wrong: list[UpshiftError] = []
    if own.backend.name != backend:
        raise UsageError(
            f"target {own.target.name!r} is one of backend {own.backend.name}, and not of {_TITLES[backend]}",
            fix=f'Name one with backend = "{backend}" by --on.',
        )
    for name in found.graph.used:
        on = found.graph.steps[name].settings.on
        if found.places[on].target.name != own.target.name:
            settings = found.graph.steps[name].settings
            wrong.append(
                RequestRefused(
                    f"step {name} runs on {on!r}, and an exported pipeline on {_TITLES[backend]} alone",
                    where=settings.origins.get("on") or found.graph.steps[name].location,
                    fix="Remove on=, or the decorator that sets it.",
                )
            )
    return wrong


def _step(proposal: Proposal, image: Image | MadeImage | None) -> StepOrder:
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


def _image_of(name: str, step: StepOrder, found: Preflight) -> str:
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


def confirm_same_shape(graph: Graph, exported: Graph) -> None:
    """Raise what of a graph is not as it was exported: Kubeflow has the steps of that, and no others."""
    before, now = _shape(exported), _shape(graph)
    if before == now:
        return
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    raise StoreError(
        f"with these parameters the pipeline has other steps than the exported one: {', '.join(names[:5])}",
        why="Steps, how they depend on each other, what they ask for, and lengths of lists that are known "
        "beforehand are part of the exported file.",
        fix="Export it with these parameters: upshift export kubeflow -p NAME=VALUE.",
    )


def _shape(graph: Graph) -> Mapping[str, object]:
    """What the exported file says of each node."""
    by_name = {node.name: node for node in graph.nodes}

    def of(node: Node) -> object:
        plan = expansion(node, by_name.__getitem__)
        lengths = [len(items) for items in plan.static.values()]
        lengths += [s.artifact.items or 0 for s in plan.lists.values() if hasattr(s, "artifact")]
        settings = attrs.evolve(graph.steps[node.step].settings, origins={})
        return node.step, node.over, node.when, needs(node), lengths, settings

    return {node.name: of(node) for node in graph.nodes}
