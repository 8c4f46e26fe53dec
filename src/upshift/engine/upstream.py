"""What a task comes after, in a walk that is for this task alone: nothing else needs to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from upshift.engine.tasks import TaskState
from upshift.engine.walk import Walk
from upshift.model.graph import FOREACH, FlowShape, Graph, expansion, needs


def task_of(walk: Walk, name: str, at: Sequence[int]) -> TaskState | None:
    """A task by its step and the items of the loops around it: of a node for it alone, or of a mapped one.

    None: the graph, as far as it has grown, has no such task.
    """
    path = [str(number) for number in at]
    state = walk.nodes.get(".".join((name, *path)))
    if state is not None and not state.node.mapped and state.tasks:
        return state.tasks[0]
    state = walk.nodes.get(".".join((name, *path[:-1])))
    if state is None or not at or not state.node.mapped or not state.tasks:
        return None
    if state.tasks[0].index is None:  # it was refused before anybody knew how many there are
        return state.tasks[0]
    return state.tasks[at[-1]] if at[-1] < len(state.tasks) else None


def upstream_of(graph: Graph, name: str, at: Sequence[int]) -> Callable[[TaskState], bool]:
    """What says of a task whether that of these items of a step may come after it."""
    return _of_nodes(graph, name, at) if graph.flow is None else _of_steps(graph.flow, name, at)


def _of_nodes(graph: Graph, name: str, at: Sequence[int]) -> Callable[[TaskState], bool]:
    """All tasks of the nodes that it needs, but of those that it follows item by item the one of its own."""
    by_name = {node.name: node for node in graph.nodes}
    found: dict[str, int | None] = {}  # the only item that matters; None: all of them
    pending: list[tuple[str, int | None]] = [(name, at[0] if at else None)]
    while pending:
        current, index = pending.pop()
        if current in found and found[current] in (None, index):
            continue
        found[current] = None if current in found else index
        node = by_name[current]
        peers = expansion(node, by_name.__getitem__).peers if found[current] is not None else ()
        pending += [(other, found[current] if other in peers else None) for other in needs(node)]

    def matters(task: TaskState) -> bool:
        node = task.node.node.name
        return node in found and found[node] in (None, task.index)

    return matters


def _of_steps(shape: FlowShape, name: str, at: Sequence[int]) -> Callable[[TaskState], bool]:
    """The tasks of steps that lead to it, in the items of the foreaches that both are in."""
    leading, loops = _leading(shape, name), _loops(shape)

    def matters(task: TaskState) -> bool:
        step = task.node.node.step
        if step not in leading:
            return False
        common = sum(1 for one, other in zip(loops[step], loops[name], strict=False) if one == other)
        place = task.node.node.name.partition("#")[0].split(".")[1:]
        path = [*map(int, place), *([] if task.index is None else [task.index])]
        return path[:common] == list(at[:common])

    return matters


def _leading(shape: FlowShape, name: str) -> set[str]:
    """The steps from which one comes to a step."""
    before: dict[str, list[str]] = {}
    for step, where in shape.steps.items():
        for following in where.then:
            before.setdefault(following, []).append(step)
    found: set[str] = set()
    pending = [name]
    while pending:
        for step in before.get(pending.pop(), ()):
            if step not in found:
                found.add(step)
                pending.append(step)
    return found


def _loops(shape: FlowShape) -> dict[str, tuple[str, ...]]:
    """For each step the foreaches that it is in, the outermost one first."""
    found: dict[str, tuple[str, ...]] = {}
    pending: list[tuple[str, tuple[str, ...]]] = [(next(iter(shape.steps)), ())]
    while pending:
        name, around = pending.pop()
        while around and shape.joins.get(around[-1]) == name:
            around = around[:-1]
        if name in found:
            continue
        found[name] = around
        inside = (*around, name) if shape.steps[name].kind == FOREACH else around
        pending += [(following, inside) for following in shape.steps[name].then]
    return found
