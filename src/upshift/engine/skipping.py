"""Why a task was skipped, in words: a condition that was false, or something skipped that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from upshift.engine.tasks import COMPLETED, SKIPPED, NodeState, Task
from upshift.model.graph import references


def why_skipped(task: Task, nodes: Mapping[str, NodeState]) -> str:
    """``is_good gave False``; ``needs deploy, which was skipped``.

    Parameters
    ----------
    task
        A task that was skipped; without an index it may stand for a mapped step of unknown length.
    nodes
        All nodes of the graph, by name.
    """
    when = task.node.node.when
    if when is not None and nodes[when.node].ended == COMPLETED:
        return f"{when.node} gave False"
    skipped = sorted(set(_skipped(task, nodes)), key=lambda name: nodes[name].order)
    return f"needs {skipped[0]}, which was skipped" if skipped else "what it needs was skipped"


def _skipped(task: Task, nodes: Mapping[str, NodeState]) -> Iterator[str]:
    """The nodes that it needs and that were skipped, or whose task of its own index was."""
    plan = task.node.expansion
    needed = set(plan.gates)
    for items in plan.static.values():
        own = items if task.index is None else (items[task.index],)
        needed |= {reference.node for item in own for reference in references(item)}
    for name in plan.peers:
        peer = nodes[name]
        if task.index is None or peer.length is None:
            needed.add(name)
        elif peer.tasks[task.index].status == SKIPPED:
            yield name
    yield from (name for name in needed if nodes[name].ended == SKIPPED)
