"""``--debug STEP``: one step of a run in the engine's own process, the others where they always run."""

from __future__ import annotations

import re
from queue import SimpleQueue
from typing import Any

import attrs

from upshift.backends.inline import InlineBackend
from upshift.engine.offers import short_of_processes
from upshift.engine.places import Place, Terms
from upshift.engine.schedule import Need
from upshift.engine.tasks import Task
from upshift.errors import NotFound, suggestion
from upshift.model.configuration import Target
from upshift.model.graph import Graph

_TASK = re.compile(r"(?P<node>.+?)(?:\[(?P<index>\d+)\])?")


@attrs.frozen(kw_only=True)
class Debugged:
    """The tasks that are debugged, and what they get.

    Parameters
    ----------
    node, index
        The step in the pipeline, and which of its tasks; None: all of them.
    terms
        What they get.
    """

    node: str
    index: int | None
    terms: Terms

    def holds(self, task: Task) -> bool:
        """Whether this task is one of them."""
        return task.node.node.name == self.node and self.index in (None, task.index)


def debugged(text: str, graph: Graph, *, store: str, inbox: SimpleQueue[Any]) -> Debugged:
    """What ``--debug TEXT`` means in a graph.

    Parameters
    ----------
    text
        A step, or one task of a mapped step: ``train``, ``train[3]``.
    graph
        The graph.
    store, inbox
        As for any other place.

    Raises
    ------
    NotFound
        The pipeline has no such step.
    """
    match = _TASK.fullmatch(text)
    known = {node.name: node for node in graph.nodes}
    if match is None or match["node"] not in known:
        raise NotFound(f"pipeline {graph.pipeline!r} has no step {text!r}", fix=suggestion(text, known))
    node = known[match["node"]]
    if match["index"] is not None and not node.mapped:
        raise NotFound(f"step {node.name!r} is not mapped", fix=f"Write --debug {node.name}.")
    target = Target(name="this process", backend=InlineBackend.name)
    place = Place(
        target, store=store, inbox=inbox, open_backend=lambda target, *, store, sink: InlineBackend(sink=sink)
    )
    definition = graph.definition(node)
    offer = place.backend.offer(definition.settings.resources)
    assert offer.granted is not None
    launch = definition.launch
    return Debugged(
        node=node.name,
        index=None if match["index"] is None else int(match["index"]),
        terms=Terms(
            place=place,
            granted=offer.granted,
            need=Need.of(offer.granted),
            strict=False,
            shortfalls=(*offer.shortfalls, *short_of_processes(launch)),
            launch=None if launch is None else attrs.evolve(launch, per_node=1),
        ),
    )
