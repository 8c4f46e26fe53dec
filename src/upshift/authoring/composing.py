"""A pipeline's function, called to compose: as a graph of its own, or inside another pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs

from upshift.authoring.composition import RETURNED, Composition
from upshift.authoring.inlined import Inlined
from upshift.authoring.placeholders import Placeholder
from upshift.authoring.project import begun_with, project_of
from upshift.authoring.scope import PipelineScope
from upshift.authoring.words import in_words
from upshift.model.graph.model import FromStep, Graph
from upshift.model.plain import UNKNOWN, has_parts, is_opaque, plain_of, type_name
from upshift.model.settings.sizes import format_size
from upshift.model.spec.calls import bind
from upshift.runtime.storage.artifacts import described
from upshift.runtime.storage.store import open_store

if TYPE_CHECKING:
    from upshift.authoring.callee import Callee
    from upshift.authoring.pipelines import Pipeline
    from upshift.authoring.signatures import CallSignature
    from upshift.model.spec.artifact import Artifact
    from upshift.runtime.storage.store import Store


def compose(pipeline: Pipeline[Any, Any], arguments: Mapping[str, object], store: Store) -> Graph:
    """The graph of a pipeline for these arguments; see :meth:`Pipeline.build`."""
    callee = pipeline.callee
    callee.signature.check(arguments)
    composition = Composition(store, project_of(callee.function), begun_with(callee.function))
    # The outermost pipeline's place to run is the run's own, not that of each of its steps.
    options = attrs.evolve(pipeline.options, steps=attrs.evolve(pipeline.options.steps, on=None))
    try:
        with PipelineScope(composition, options, (pipeline.name,)):
            params = parameters_saved(composition, callee, arguments)
            composition.composes(callee.function, {**callee.signature.defaults, **arguments})
            args, kwargs = bind(callee.function, arguments)
            returned = callee.function(*args, **kwargs)
            output = None if returned is None else composition.source(returned, RETURNED, callee.location)
        composition.analyse()
    finally:
        nodes = composition.close()
    return Graph(
        pipeline=pipeline.name,
        steps=dict(composition.definitions),
        nodes=nodes,
        output=output,
        params=params,
        texts=texts_of(callee.signature, arguments, params),
        sources=composition.sources,
    )


def sketch(pipeline: Pipeline[Any, Any]) -> Graph | None:
    """The graph that a pipeline's defaults make, to look at; None: it takes arguments, or cannot be made."""
    if pipeline.callee.signature.required:
        return None
    with TemporaryDirectory() as folder:
        store = open_store(folder)
        try:
            with store.claims.held():
                return pipeline.build({}, store)
        except Exception:  # of the pipeline's own function, which is told where it is run
            return None


def parameters_saved(
    composition: Composition, callee: Callee, arguments: Mapping[str, object]
) -> dict[str, Artifact]:
    """Every parameter that says something in a record, in the order of the signature.

    A default that is no plain data, as a configuration object, is recorded for whoever looks later.
    """
    signature = callee.signature
    values = {**signature.recorded, **arguments}
    others = {name: value for name, value in signature.defaults.items() if name not in values}
    others = {name: value for name, value in others.items() if has_parts(value)}
    saved = composition.params(values, others, callee.location)
    return {name: saved[name] for name in dict.fromkeys((*signature.names, *saved)) if name in saved}


def texts_of(
    signature: CallSignature, arguments: Mapping[str, object], params: Mapping[str, Artifact]
) -> dict[str, Any]:
    """What the parameters are whose records do not say it: in plain form, else in words."""
    texts: dict[str, Any] = {}
    for name, value in {**signature.defaults, **arguments}.items():
        saved = params.get(name)
        if saved is None or is_opaque(described(saved)):
            size = "" if saved is None else f", {format_size(saved.bytes)}"
            plain = plain_of(value) if has_parts(value) else UNKNOWN
            texts[name] = plain if plain is not UNKNOWN else in_words(value) or f"<{type_name(value)}{size}>"
    return texts


def inline(
    pipeline: Pipeline[Any, Any], scope: PipelineScope, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Inlined:
    """The steps of a pipeline as part of the one that calls it.

    Parameters
    ----------
    scope
        The pipeline that calls.
    args, kwargs
        The arguments of the call: plain values, or results of steps.
    """
    callee = pipeline.callee
    bound = callee.signature.bind(args, kwargs)
    composition = scope.composition
    before = composition.size
    with PipelineScope(composition, pipeline.options.over(scope.options), (*scope.path, pipeline.name)):
        composition.composes(callee.function, {**callee.signature.defaults, **bound})
        positional, keywords = bind(callee.function, bound)
        output = callee.function(*positional, **keywords)
    names = composition.names_since(before)
    results = tuple(Placeholder(FromStep(node=name), composition, False) for name in names)
    return Inlined(pipeline.name, output.output if type(output) is Inlined else output, results)
