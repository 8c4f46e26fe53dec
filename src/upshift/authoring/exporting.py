"""A pipeline in the form of another tool; and composed again in its pods, with the parameters of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.authoring.options import PipelineOptions
from upshift.authoring.parameters import parse_params
from upshift.authoring.pipelines import Pipeline
from upshift.errors import NotFound
from upshift.model.spec.codec import decode

if TYPE_CHECKING:
    from upshift.engine import RunOptions
    from upshift.engine.exported import Order
    from upshift.images.base import Announce
    from upshift.model.configuration import Configuration
    from upshift.model.graph import Graph
    from upshift.runtime.storage.store import Store


def export(
    pipeline: Pipeline[Any, Any],
    arguments: Mapping[str, object],
    tool: str,
    *,
    options: RunOptions,
    announce: Announce,
) -> str:
    """A pipeline in the form of a tool; what its tasks need is put into the bucket of the target.

    Raises
    ------
    UpshiftError
        The tool cannot express something of it, or a target, an image or a secret is not there.
    """
    from upshift.authoring.project import code_of
    from upshift.authoring.running import as_graph_errors, merged, source_of
    from upshift.backends.registry import open_backend
    from upshift.engine.exported import TOOLS
    from upshift.model.configuration import load_configuration
    from upshift.runtime import usercode
    from upshift.runtime.storage.store import open_direct

    usercode.adopt_main()
    configuration = load_configuration()
    options = merged(pipeline, options)
    options = attrs.evolve(options, target=options.target or _only_target(configuration, tool))
    target = configuration.target(options.target)
    address = configuration.store_address(target)
    open_backend(target, store=address, sink=lambda event: None).close()  # before the bucket is asked
    store = open_direct(address, **configuration.store_options)
    if store.replica is not None:
        store.replica.prepare()
    with store.claims.held():
        with as_graph_errors(pipeline):
            graph = pipeline.build(arguments, store)
        return TOOLS[tool](
            graph,
            code=code_of(pipeline.callee.function),
            source=source_of(pipeline),
            configuration=configuration,
            options=options,
            store=store,
            announce=announce,
        ).text


def _only_target(configuration: Configuration, backend: str) -> str:
    found = [target.name for target in configuration.targets.values() if target.backend == backend]
    if len(found) == 1:
        return found[0]
    raise NotFound(
        f"{'several targets have' if found else 'no target has'} the backend {backend}",
        why=", ".join(found) or None,
        fix="Name one: --on TARGET."
        if found
        else f'Add one to upshift.toml: [targets.NAME] with backend = "{backend}" and '
        'store = "s3://team/upshift".',
    )


def changed(order: Order, given: Mapping[str, str]) -> dict[str, str]:
    """Those parameters of a run whose values are not those of the export, as texts."""
    texts = {name: _text(text, order.params[name]) for name, text in given.items()}
    return {name: text for name, text in texts.items() if text != _written(order.params[name])}


def _text(text: str, default: object) -> str:
    """A value as it was given, written as :func:`_written` has it."""
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        return text.lower()
    try:
        value = json.loads(text)
    except ValueError:  # whoever reads it by the annotation says what is wrong
        return text
    if isinstance(default, int) and isinstance(value, float) and value.is_integer():
        value = int(value)  # Kubeflow's numbers are all of one kind
    return _written(float(value) if isinstance(default, float) and type(value) is int else value)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def composed_again(order: Order, store: Store, given: Mapping[str, str]) -> Graph:
    """The graph with these parameters, from the code that was exported.

    Its nodes are new; what its steps are is as it was exported, but for functions that have no name.

    Raises
    ------
    UpshiftError
        A value is not what its annotation says, or the pipeline cannot be composed with it.
    """
    from upshift.authoring.loading import find_pipeline, load_module
    from upshift.authoring.running import as_graph_errors
    from upshift.runtime.storage.artifacts import load
    from upshift.runtime.storage.home_folders import unpacked
    from upshift.runtime.usercode import add_paths

    code, name = order.code, order.source.get("pipeline")
    if code.package is None or code.file is None or name is None:
        raise NotFound(
            f"parameters {', '.join(given)} cannot be set",
            why="The pipeline is not defined by a name in a file.",
            fix="Export it with these parameters: upshift export kubeflow -p NAME=VALUE.",
        )
    folder = unpacked(code.package, store)
    add_paths([Path(folder, path) for path in code.paths])
    file = Path(folder, code.file)
    pipeline = find_pipeline(load_module(file), file, name)
    if order.source.get("options"):
        pipeline = pipeline.changed(decode(PipelineOptions, order.source["options"]))
    earlier = {param: load(artifact, store) for param, artifact in order.graph.params.items()}
    arguments = parse_params(pipeline, [f"{param}={text}" for param, text in given.items()], None, earlier)
    with as_graph_errors(pipeline):
        graph = pipeline.build(arguments, store)
    places = {node.name: node.location for node in order.graph.nodes}
    return attrs.evolve(
        graph,
        steps={
            step: attrs.evolve(definition, entry=graph.steps[step].entry)
            if step in graph.steps
            else definition
            for step, definition in order.graph.steps.items()
        },
        nodes=tuple(
            attrs.evolve(node, location=places.get(node.name, node.location)) for node in graph.nodes
        ),
    )
