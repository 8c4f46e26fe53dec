"""The graph of a flow: its parameters as the first state, and the nodes that are certain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from upshift.authoring.composing import parameters_saved, texts_of
from upshift.authoring.composition import Composition
from upshift.authoring.flow.parallel import launches
from upshift.authoring.project import begun_with, project_of
from upshift.model.graph.flow import FOREACH, SWITCH
from upshift.model.graph.growth import Growth
from upshift.model.graph.model import FromStep, Graph
from upshift.runtime.storage.state import State

if TYPE_CHECKING:
    from upshift.authoring.flow.pipeline import FlowPipeline
    from upshift.runtime.storage.store import Store


def compose(pipeline: FlowPipeline, arguments: Mapping[str, object], store: Store) -> Graph:
    """The graph of a flow for these arguments."""
    callee, shape = pipeline.callee, pipeline.shape
    callee.signature.check(arguments)
    composition = Composition(store, project_of(callee.function), begun_with(callee.function))
    options = pipeline.options
    values: dict[str, object] = {n: p.value(arguments) for n, p in pipeline.parameters.items()}
    values.update(pipeline.constants)
    values.update({name: config.value for name, config in pipeline.configs.items()})
    parallel = launches(pipeline, values)
    for name in shape.steps:
        step = pipeline.steps[name]
        alone = step.options.flow.get("alone")  # it does without the packages of the others
        outer = attrs.evolve(options, steps=attrs.evolve(options.steps, docker=None)) if alone else options
        if shape.steps[name].kind in (FOREACH, SWITCH):  # where it fails, nothing says how to go on
            outer = attrs.evolve(outer, steps=attrs.evolve(outer.steps, catch=None))
        own = attrs.evolve(step.options, name=name, launch=parallel.get(name, step.options.launch))
        composition.define(pipeline.method(step), own, outer)
    params = parameters_saved(composition, callee, arguments)
    first = composition.source(State(values), f"the parameters of {pipeline.name}", callee.location)
    nodes = Growth(shape, first).first()
    composition.analyse()
    composition.close()
    return Graph(
        pipeline=pipeline.name,
        steps=dict(composition.definitions),
        nodes=nodes,
        output=FromStep(node=[*shape.steps][-1]),
        params=params,
        texts=texts_of(callee.signature, arguments, params),
        flow=shape,
        sources=composition.sources,
    )
