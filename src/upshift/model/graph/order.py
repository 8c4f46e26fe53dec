"""What needs what: references, order, cycles, and how much lies ahead of a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from upshift.errors import GraphError
from upshift.model.graph.growth import INPUTS, STATE
from upshift.model.graph.model import Collection, FromStep, Node, Source


def references(source: Source | None) -> Iterator[FromStep]:
    """Every output of a node that a source is made of, in order."""
    pending = [source]
    while pending:
        current = pending.pop()
        if isinstance(current, FromStep):
            yield current
        elif isinstance(current, Collection):
            pending.extend(reversed(current.items))


def taken_by(node: Node) -> dict[str, Source]:
    """The inputs of a node, but for the state of the split, which a join of a flow comes after anyway."""
    joins = any(name.startswith(INPUTS) for name in node.inputs)
    return {name: source for name, source in node.inputs.items() if not (joins and name == STATE)}


def needs(node: Node) -> frozenset[str]:
    """Names of the nodes that have to end before ``node``: through data, ``after`` or ``when``."""
    names = {r.node for source in taken_by(node).values() for r in references(source)}
    names.update(node.after)
    if node.when is not None:
        names.add(node.when.node)
    return frozenset(names)


def ordered(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes in an order in which each comes after what it needs; otherwise as they were given.

    Raises
    ------
    GraphError
        Two nodes share a name, a node needs one that is not there, or the nodes form a cycle.
    """
    by_name: dict[str, Node] = {}
    for node in nodes:
        if node.name in by_name:
            raise GraphError(f"two nodes are named {node.name!r}", where=node.location)
        by_name[node.name] = node
    required = {name: needs(node) for name, node in by_name.items()}
    for name, names in required.items():
        unknown = sorted(needed for needed in names if needed not in by_name)
        if unknown:
            raise GraphError(
                f"{name} needs {unknown[0]}, which is not in the pipeline", where=by_name[name].location
            )
    done: set[str] = set()
    result: list[Node] = []
    for name in by_name:
        if name not in done:
            _visit(name, by_name, required, done, result)
    return tuple(result)


def _visit(
    start: str,
    by_name: Mapping[str, Node],
    required: Mapping[str, frozenset[str]],
    done: set[str],
    result: list[Node],
) -> None:
    # An explicit stack: a chain of 100,000 nodes is deeper than Python's own.
    path: dict[str, Iterator[str]] = {start: iter(sorted(required[start]))}
    while path:
        name = next(reversed(path))
        for needed in path[name]:
            if needed in path:
                cycle = [*list(path)[list(path).index(needed) :], needed]
                raise GraphError(
                    "these steps wait for each other: " + " needs ".join(cycle),
                    where=by_name[name].location,
                    fix="Take one of these dependencies (data, .after or .when) away.",
                )
            if needed not in done:
                path[needed] = iter(sorted(required[needed]))
                break
        else:
            del path[name]
            done.add(name)
            result.append(by_name[name])


def remaining_path(nodes: Sequence[Node]) -> dict[str, int]:
    """Nodes on the longest path from each node to an end of the graph, itself included.

    Parameters
    ----------
    nodes
        In an order in which each comes after what it needs. What is not among them does not count.
    """
    longest = {node.name: 1 for node in nodes}
    for node in reversed(nodes):
        ahead = longest[node.name] + 1
        for name in needs(node):
            if longest.get(name, ahead) < ahead:
                longest[name] = ahead
    return longest
