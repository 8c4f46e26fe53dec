"""The nodes that a flow's graph has grown by, from what its steps have made: while it runs, and afterwards.

What a graph grows by is recorded nowhere: it follows from the graph, and from which cases and lists its steps
have chosen, so that whoever reads these comes to the same nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from upshift.model.graph import CHOICE, ITEMS, STATE, Graph, Node
from upshift.model.growth import Growth
from upshift.model.spec.artifact import Artifact
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

Outputs = Mapping[str, Artifact]


def growth_of(graph: Graph, store: Store) -> Callable[[str, Outputs], Sequence[Node]] | None:
    """What gives the nodes that follow from what a node has made; None: this graph does not grow."""
    growth = _begun(graph)
    if growth is None:
        return None
    return lambda node, outputs: _after(growth, node, lambda: outputs, store)


def grown(graph: Graph, outputs_of: Callable[[str], Outputs | None], store: Store) -> Graph:
    """The graph with the nodes that it has grown by.

    Parameters
    ----------
    graph
        As it was when the run started.
    outputs_of
        What a node has made; None: it is not done.
    store
        Where cases and lists are.
    """
    growth = _begun(graph)
    if growth is None:
        return graph
    nodes = list(graph.nodes)
    for node in nodes:  # which grows
        nodes.extend(_after(growth, node.name, lambda name=node.name: outputs_of(name), store))  # type: ignore[misc]
    return attrs.evolve(graph, nodes=tuple(nodes))


def _begun(graph: Graph) -> Growth | None:
    if graph.flow is None:
        return None
    growth = Growth(graph.flow, graph.nodes[0].inputs[STATE])
    growth.first()  # the nodes that the graph has already
    return growth


def _after(
    growth: Growth, node: str, outputs_of: Callable[[], Outputs | None], store: Store
) -> Sequence[Node]:
    outputs = outputs_of() if growth.grows(node) else None
    if outputs is None:
        return ()
    choice = artifacts.plain_value(outputs[CHOICE], store) if CHOICE in outputs else None
    items = artifacts.items_of(outputs[ITEMS], store) if ITEMS in outputs else ()
    return growth.after(node, choice=choice if isinstance(choice, str) else None, items=items)
