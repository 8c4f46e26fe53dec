"""The graph of a flow: its parameters as the first state, and the nodes that are certain."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from upshift.authoring.composing.composition import Composition
from upshift.authoring.composing.definitions import begun_with, project_of
from upshift.authoring.composing.graph import parameters_saved, texts_of
from upshift.authoring.flow.shape import StepReader, checked_size
from upshift.authoring.flow.task import known_before
from upshift.errors import GraphError
from upshift.model.graph import FOREACH, GANG, SWITCH, FromStep, Graph
from upshift.model.growth import Growth
from upshift.runtime.storage.manifest import State

if TYPE_CHECKING:
    from upshift.authoring.callee import Callee
    from upshift.authoring.flow.definition import FlowClass
    from upshift.authoring.steps import Step
    from upshift.runtime.launch.merging import LaunchRequest
    from upshift.runtime.storage.store import Store


def compose(
    flow: FlowClass,
    method: Callable[[Step[Any, Any]], Callee],
    arguments: Mapping[str, object],
    store: Store,
) -> Graph:
    """The graph of a flow for these arguments; ``method`` makes a step what a task calls."""
    callee, shape = flow.callee, flow.shape
    callee.signature.check(arguments)
    composition = Composition(store, project_of(callee.function), begun_with(callee.function))
    options = flow.options
    values: dict[str, object] = {n: p.value(arguments) for n, p in flow.parameters.items()}
    values.update(flow.constants)
    values.update({name: config.value for name, config in flow.configs.items()})
    parallel = _launches(flow, values)
    for name in shape.steps:
        step = flow.steps[name]
        alone = step.options.flow.get("alone")  # it does without the packages of the others
        outer = attrs.evolve(options, steps=attrs.evolve(options.steps, docker=None)) if alone else options
        if shape.steps[name].kind in (FOREACH, SWITCH):  # where it fails, nothing says how to go on
            outer = attrs.evolve(outer, steps=attrs.evolve(outer.steps, catch=None))
        own = attrs.evolve(step.options, name=name, launch=parallel.get(name, step.options.launch))
        composition.definitions.name_of(method(step), own, outer)
    params = parameters_saved(composition, callee, arguments)
    first = composition.source(State(values), f"the parameters of {flow.name}", callee.location)
    nodes = Growth(shape, first).first()
    composition.definitions.complete()
    composition.close()
    return Graph(
        pipeline=flow.name,
        steps=dict(composition.definitions.by_name),
        nodes=nodes,
        output=FromStep(node=[*shape.steps][-1]),
        params=params,
        texts=texts_of(callee.signature, arguments, params),
        flow=shape,
        sources=composition.definitions.sources,
    )


def _launches(flow: FlowClass, values: Mapping[str, object]) -> Mapping[str, LaunchRequest]:
    """The steps on several nodes by name, and what each asks for where parameters have these values.

    Raises
    ------
    GraphError
        How many nodes there are is no number, or not known before the step runs that says it.
    """
    from upshift.runtime.launch.merging import LaunchRequest  # with its tables, which no other flow needs

    found: dict[str, LaunchRequest] = {}
    for name, step in flow.shape.steps.items():
        if step.kind != GANG:
            continue
        own = flow.steps[name].callee.function
        said, where = StepReader(name, flow.steps, {}).size()
        size = checked_size(_value(said, own, flow, values, where), where)
        (gang,) = step.then
        if gang in found and found[gang].processes != size:
            raise GraphError(
                f"two steps go to {gang!r}, with num_parallel={found[gang].processes} and {size}",
                where=where,
                fix="Give both the same number.",
            )
        found[gang] = LaunchRequest(
            launcher="parallel",
            where=where,
            said="@parallel",
            processes=size,
            nodes=size,
            devices=False,
        )
    return found


def _value(
    said: ast.expr, own: Callable[..., Any], flow: FlowClass, values: Mapping[str, object], where: str
) -> object:
    """What an expression in a step comes to before the step runs: of parameters, constants and globals."""
    text = ast.unparse(said)
    its_own, *_ = own.__code__.co_varnames
    used = {node.id for node in ast.walk(said) if isinstance(node, ast.Name)}
    unknown = sorted(used.intersection(own.__code__.co_varnames) - {its_own})
    why = f"{', '.join(unknown)} is set while the step runs." if unknown else None
    if why is None:
        cells = zip(own.__code__.co_freevars, own.__closure__ or (), strict=True)
        names = {**own.__globals__, **{name: cell.cell_contents for name, cell in cells}}
        seen = known_before(flow.flow, values)
        try:
            return eval(compile(ast.Expression(said), where, "eval"), {**names, its_own: seen})
        except AttributeError as error:
            why = f"self.{error.name} is set while a step runs." if error.obj is None else str(error)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
    raise GraphError(
        f"num_parallel={text} is not known before the run",
        where=where,
        why=why,
        fix="Nodes are asked for before anything runs: give a number, a Parameter, a Config, a constant of "
        "the class, or one of the module.",
    )
