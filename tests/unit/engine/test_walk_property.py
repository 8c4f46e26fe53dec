"""Random graphs, walked in random orders, compared with a reference that is too simple to be wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from upshift.engine.tasks import TaskState
from upshift.engine.walk import Walk
from upshift.model.graph import Collection, Constant, FromStep, Graph, Node, StepDefinition
from upshift.model.spec import Artifact, EntryPoint, Failure

STEP = StepDefinition(entry=EntryPoint(module="m", qualname="f"))
FAILURE = Failure(reason="user-error", message="scripted")


def artifact(items: int | None = None) -> Artifact:
    return Artifact(digest=f"test:{items}", serializer="json", type="list", bytes=1, items=items)


@dataclass
class World:
    """A graph, and what becomes of its tasks."""

    nodes: list[Node] = field(default_factory=list)
    length: dict[str, int] = field(default_factory=dict)
    """Of the list that a node returns."""
    flag: dict[str, bool] = field(default_factory=dict)
    failing: set[tuple[str, int | None]] = field(default_factory=set)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World()
    for number in range(draw(st.integers(1, 9))):
        name = f"n{number}"
        earlier = [node.name for node in world.nodes]
        single = [node.name for node in world.nodes if not node.over]
        mapped = [node.name for node in world.nodes if node.over]
        inputs: dict[str, Constant | FromStep | Collection] = {}
        over = []
        for parameter in ("a", "b")[: draw(st.integers(0, 2))]:
            kind = draw(st.sampled_from(["whole", "static", "runtime", "peer", "mixed"]))
            if kind == "whole" and earlier:
                inputs[parameter] = FromStep(node=draw(st.sampled_from(earlier)))
            elif kind == "static":
                size = draw(st.sampled_from([0, 2, 2, 2, 3]))
                inputs[parameter] = Collection(items=(Constant(artifact=artifact()),) * size)
                over.append(parameter)
            elif kind == "mixed" and earlier:
                chosen = draw(st.lists(st.sampled_from(earlier), min_size=2, max_size=2))
                inputs[parameter] = Collection(items=tuple(FromStep(node=n) for n in chosen))
                over.append(parameter)
            elif kind == "runtime" and single:
                inputs[parameter] = FromStep(node=draw(st.sampled_from(single)))
                over.append(parameter)
            elif kind == "peer" and mapped:
                inputs[parameter] = FromStep(node=draw(st.sampled_from(mapped)))
                over.append(parameter)
        after = tuple(draw(st.sets(st.sampled_from(earlier), max_size=1))) if earlier else ()
        when = None
        if single and draw(st.integers(0, 3)) == 0:
            when = FromStep(node=draw(st.sampled_from(single)))
        world.nodes.append(Node(name=name, step="f", inputs=inputs, over=tuple(over), after=after, when=when))
        world.length[name] = draw(st.sampled_from([0, 2, 2, 2]))
        world.flag[name] = draw(st.integers(0, 3)) != 0
        if draw(st.integers(0, 3)) == 0:
            world.failing.add((name, draw(st.sampled_from([None, 0, 1]))))
    return world


def expected(world: World) -> dict[str, tuple[set[str], list[tuple[int | None, set[str]]]]]:
    """For each node the ways in which it may end, and for each of its tasks likewise.

    Whether a task completes is certain. Which of several bad ends of what it needs it inherits
    depends on which came first, so there may be several.
    """
    found: dict[str, tuple[set[str], list[tuple[int | None, set[str]]]]] = {}
    by_name = {node.name: node for node in world.nodes}

    def node_end(name: str) -> set[str]:
        return found[name][0]

    def inherited(ends: set[str]) -> set[str]:
        return {"skipped" if end == "skipped" else "cancelled" for end in ends if end != "completed"}

    for node in world.nodes:
        gates: set[str] = set()
        lengths = []
        unknown: set[str] = set()
        for name in node.after:
            gates |= inherited(node_end(name))
        if node.when is not None:
            ends = node_end(node.when.node)
            refused = ends == {"completed"} and not world.flag[node.when.node]
            gates |= {"skipped"} if refused else inherited(ends)
        for parameter, source in node.inputs.items():
            if parameter not in node.over:
                assert isinstance(source, FromStep)
                gates |= inherited(node_end(source.node))
            elif isinstance(source, Collection):
                lengths.append(len(source.items))
            elif isinstance(source, FromStep) and by_name[source.node].over:
                tasks = found[source.node][1]
                if any(index is None for index, _ in tasks) or (
                    not tasks and "completed" not in node_end(source.node)
                ):
                    unknown |= inherited(node_end(source.node))
                if not tasks:
                    gates |= inherited(node_end(source.node))
                lengths.append(len(tasks))
            elif isinstance(source, FromStep):
                bad = inherited(node_end(source.node))
                unknown |= bad
                if not bad:
                    lengths.append(world.length[source.node])
        if unknown:
            # An empty list that is skipped may still be seen to be of another length.
            mismatch = {"failed"} if len(set(lengths)) > 1 else set()
            found[node.name] = (unknown | gates | mismatch, [])
            continue
        if len(set(lengths)) > 1:
            # The mismatch is seen as soon as the lengths are known, a bad end of what it needs as soon
            # as that ends; a peer that ends badly may do so before its own length is known.
            sources = [node.inputs[parameter] for parameter in node.over]
            peers = [s.node for s in sources if isinstance(s, FromStep)]
            bad = gates.union(*(inherited(node_end(peer)) for peer in peers))
            found[node.name] = ({"failed"} | bad, [] if bad else [(None, {"failed"})])
            continue
        indices: list[int | None] = list(range(lengths[0])) if node.over else [None]
        tasks = []
        for index in indices:
            bad = set(gates)
            for parameter in node.over:
                source = node.inputs[parameter]
                assert index is not None
                if isinstance(source, Collection):
                    item = source.items[index]
                    if isinstance(item, FromStep):
                        bad |= inherited(node_end(item.node))
                elif isinstance(source, FromStep) and by_name[source.node].over:
                    bad |= inherited(found[source.node][1][index][1])
            if bad:
                tasks.append((index, bad))
            else:
                fails = (node.name, index) in world.failing
                tasks.append((index, {"failed"} if fails else {"completed"}))
        ends = set().union(*(ends for _, ends in tasks)) if tasks else (gates or {"completed"})
        found[node.name] = (ends - {"completed"} or {"completed"}, tasks)
    return found


def walk_through(world: World, seed: int) -> tuple[Walk, list[TaskState]]:
    chance = random.Random(seed)
    graph = Graph(pipeline="p", steps={"f": STEP}, nodes=tuple(world.nodes))
    digests: dict[int, str] = {}
    walk = Walk(graph, truth=lambda a: world.flag[digests[id(a)]])
    walk.start()
    begun: list[TaskState] = []
    running: list[TaskState] = []
    kept = []
    while True:
        while walk.ready:
            running.append(walk.ready.popleft())
            walk.began(running[-1])
        if not running:
            break
        task = running.pop(chance.randrange(len(running)))
        begun.append(task)
        name = task.node.node.name
        if (name, task.index) in world.failing:
            walk.failed(task, FAILURE)
        else:
            output = artifact(world.length[name])
            kept.append(output)
            digests[id(output)] = name
            walk.completed(task, {"output": output})
    return walk, begun


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 2**32))
def test_every_task_ends_as_the_reference_says_whatever_the_order(world: World, seed: int) -> None:
    walk, begun = walk_through(world, seed)
    assert walk.finished
    assert len(begun) == len(set(begun)), "a task was started twice"
    reference = expected(world)
    for name, state in walk.nodes.items():
        ends, tasks = reference[name]
        assert state.ended in ends, name
        for index, allowed in tasks:
            if index is None and state.node.over:
                assert state.tasks[0].status in allowed
                continue
            if state.length is None:  # it was skipped or cancelled before its length was known
                assert not allowed & {"completed", "failed"}
                continue
            task = state.tasks[index or 0]
            assert task.status in allowed, (name, index)
            assert (task in begun) == bool(allowed & {"completed", "failed"})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 2**32), st.integers(0, 6))
def test_after_a_stop_nothing_starts_and_everything_ends(world: World, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    graph = Graph(pipeline="p", steps={"f": STEP}, nodes=tuple(world.nodes))
    walk = Walk(graph, truth=lambda a: True)
    walk.start()
    running: list[TaskState] = []
    for _ in range(steps):
        while walk.ready:
            running.append(walk.ready.popleft())
            walk.began(running[-1])
        if running:
            task = running.pop(chance.randrange(len(running)))
            walk.completed(task, {"output": artifact(world.length[task.node.node.name])})
    walk.stop()
    for task in running:
        assert not walk.ready
        walk.cancelled(task)
    assert not walk.ready
    assert walk.finished
    assert all(state.ended is not None for state in walk.nodes.values())
    assert all(
        task.status not in ("pending", "running") for state in walk.nodes.values() for task in state.tasks
    )
