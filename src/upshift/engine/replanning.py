"""What a task gets instead of what was planned for its step.

After a failure, that is more memory, or other nodes; a task that is debugged runs in this process.
"""

from __future__ import annotations

import math
import re
from queue import SimpleQueue
from typing import Any

import attrs

from upshift.backends.base import Ask
from upshift.engine.offers import GrantPlan, Offered, ask, offered, short_of_processes
from upshift.engine.schedule import Demand
from upshift.engine.targets import OpenTarget
from upshift.engine.tasks import TaskState
from upshift.errors import NotFound, UpshiftError, suggestion
from upshift.model.configuration import Target
from upshift.model.graph import Graph, StepDefinition
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec.task import Failure

OF_NODES = frozenset({"infrastructure", "hardware", "preempted"})
"""Causes of failure that other nodes may not have."""


def replanned(
    plan: GrantPlan, definition: StepDefinition, failure: Failure, *, project: str
) -> tuple[GrantPlan, list[str]]:
    """The plan of the next attempt, and what is different in it, in words; the same plan if nothing is."""
    said = []
    resources = plan.request or definition.settings.resources
    if failure.reason in OF_NODES and ((plan.granted.nodes or 1) > 1 or resources.is_elastic):
        plan, change = without_lost_nodes(plan, definition, _lost_node(failure), project=project)
        said.append(change)
    factor = definition.settings.retry_policy.memory_factor
    if failure.memory is not None and factor > 1:
        plan, change = with_more_memory(
            plan, definition, reached=failure.memory, factor=factor, project=project
        )
        said.append(change)
    return plan, [change for change in said if change]


def with_more_memory(
    plan: GrantPlan, definition: StepDefinition, *, reached: int, factor: float, project: str
) -> tuple[GrantPlan, str]:
    """The plan of the next attempt, and what is different then, in words.

    Where the place has less than that the attempt gets what there is. That is no shortfall: nobody but
    this very rule has asked for so much.
    """
    request, backend = plan.request or definition.settings.resources, plan.place.backend

    def asking_for(memory: int) -> tuple[ResourceSettings, Offered]:
        more = ResourceSettings(**(request.explicit() | {"memory": memory}))
        offer = backend.offer(ask(definition, backend, more, plan.avoid))
        return more, offered(offer, definition, backend, request=more, project=project)

    had = plan.granted.memory
    wanted = max(math.ceil((had or reached) * factor), reached)
    more, found = asking_for(wanted)
    short = next((one for one in found.offer.shortfalls if one.field == "memory"), None)
    if short is not None and found.offer.granted is not None and found.offer.granted.memory is not None:
        more, found = asking_for(found.offer.granted.memory)
    offer, granted = found.offer, found.offer.granted
    lacks = [shortfall for shortfall in offer.shortfalls if shortfall.field != "memory"]
    if plan.strict and lacks:  # the attempt before had it: space on a disk, for one
        return (
            plan,
            f"no more memory than it had: asked {lacks[0].asked}, gets {lacks[0].got}: {lacks[0].why}",
        )
    if granted is None or granted.memory is None or granted.memory <= (had or 0):
        why = f": {short.why}" if short is not None else ""
        return plan, f"no more memory than it had{why}"
    said = f"{format_size(granted.memory)} of memory"
    if short is not None:
        said += f", not {format_size(wanted)}: {short.why}"
    known = {shortfall.field for shortfall in plan.shortfalls}
    said += "".join(f"; asked {s.asked}, gets {s.got}: {s.why}" for s in lacks if s.field not in known)
    raised = attrs.evolve(
        plan,
        request=more,
        granted=granted,
        demand=Demand.of(granted, offer.alternatives, launch=found.launch),
        shortfalls=tuple(lacks),
        launch=found.launch,
        remarks=found.remarks,
    )
    return raised, said


def without_lost_nodes(
    plan: GrantPlan,
    definition: StepDefinition,
    lost: str | None,  # the node by which the last attempt failed; None: it is not known
    *,
    project: str,
) -> tuple[GrantPlan, str | None]:
    """The plan of the next attempt of a step on several nodes, and what is different then, in words.

    The place is looked at again. Where what is left is not enough, the attempt asks for what the last one
    had, and waits for it.
    """
    request, backend = plan.request or definition.settings.resources, plan.place.backend
    avoid = (plan.avoid or frozenset()) | ({lost} if lost else frozenset())
    plan = attrs.evolve(plan, avoid=avoid)
    try:
        offer = backend.offer(ask(definition, backend, request, avoid))
    except UpshiftError:
        return plan, None
    found = offered(offer, definition, backend, request=request, project=project)
    granted, had = found.offer.granted, plan.granted
    if granted is None or (plan.strict and found.offer.shortfalls):
        return plan, None
    changed = attrs.evolve(
        plan,
        granted=granted,
        demand=Demand.of(granted, offer.alternatives, launch=found.launch),
        shortfalls=found.offer.shortfalls,
        launch=found.launch,
        remarks=found.remarks,
    )
    nodes = granted.nodes or 1
    said = [f"{nodes} node{'s' * (nodes > 1)}"] if nodes != had.nodes else []
    if granted.details.get("avoids", ()) != had.details.get("avoids", ()):
        said.append(f"other nodes than {', '.join(granted.details.get('avoids', ()))}")
    return changed, ", ".join(said) or None


def _lost_node(failure: Failure) -> str | None:
    """The node that is to be avoided for it; a process that has failed is not the fault of its node."""
    return failure.node if failure.rank is None or failure.reason == "hardware" else None


# -- tasks that are debugged ------------------------------------------------------------------------------

_TASK = re.compile(r"(?P<node>.+?)(?:\[(?P<index>\d+)\])?")


@attrs.frozen(kw_only=True)
class Debugged:
    """The tasks that are debugged, and what they get."""

    node: str  # node, index: the step in the pipeline, and which of its tasks; None: all of them
    index: int | None
    plan: GrantPlan

    def holds(self, task: TaskState) -> bool:
        """Whether this task runs under the debugger."""
        return task.node.node.name == self.node and self.index in (None, task.index)


def debugged(text: str, graph: Graph, *, store: str, inbox: SimpleQueue[Any]) -> Debugged:
    """What ``--debug TEXT`` means in a graph."""
    from upshift.backends.inline import InlineBackend  # other runs have no step in this process

    match = _TASK.fullmatch(text)
    known = {node.name: node for node in graph.nodes}
    if match is None or match["node"] not in known:
        raise NotFound(f"pipeline {graph.pipeline!r} has no step {text!r}", fix=suggestion(text, known))
    node = known[match["node"]]
    if match["index"] is not None and not node.mapped:
        raise NotFound(f"step {node.name!r} is not mapped", fix=f"Write --debug {node.name}.")
    target = Target(name="this process", backend=InlineBackend.name)
    place = OpenTarget(
        target, store=store, inbox=inbox, open_backend=lambda target, *, store, sink: InlineBackend(sink=sink)
    )
    definition = graph.definition(node)
    offer = place.backend.offer(Ask(request=definition.settings.resources))
    assert offer.granted is not None
    launch = definition.launch
    return Debugged(
        node=node.name,
        index=None if match["index"] is None else int(match["index"]),
        plan=GrantPlan(
            place=place,
            granted=offer.granted,
            demand=Demand.of(offer.granted),
            strict=False,
            shortfalls=(*offer.shortfalls, *short_of_processes(launch)),
            launch=None if launch is None else attrs.evolve(launch, per_node=1),
        ),
    )
