"""One step of a run whose tasks somebody else starts, in the pod that was started for it.

No engine works on such a run. Each pod walks its graph from the beginning, with what the store has of it in
place of work, until it comes to the task that it is for::

    Order, and results ──► Walk ──► its own task ──► spec ──► the supervisor, in this very pod
                                        │
                                        └─ is to be skipped, or is done: nothing runs

Only what that task comes after is looked at. The last pod does the same for all tasks, and records how the
run ended. Each attempt has a number that nobody has taken, by the exclusive creation of its spec.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import SimpleQueue

import attrs

from upshift.backends.registry import open_backend
from upshift.engine.exported import Order, StepOrder, confirm_same_shape
from upshift.engine.offers import GrantPlan
from upshift.engine.schedule import Demand
from upshift.engine.specs import Shipped, Specs
from upshift.engine.targets import OpenTarget, fence
from upshift.engine.tasks import (
    CANCELLED,
    COMPLETED,
    FAILED,
    RUNNING,
    SKIPPED,
    TaskState,
    task_inputs,
    why_skipped,
)
from upshift.engine.walk import Walk
from upshift.errors import GraphError, StoreError
from upshift.images.base import Image
from upshift.model.graph import FOREACH, FlowShape, Graph, expansion, needs
from upshift.model.settings.retry import STOPPED
from upshift.model.spec.codec import encode, from_json, to_json
from upshift.model.spec.task import Failure, TaskId, TaskResult
from upshift.runs.catalog.opening import ORCHESTRATOR
from upshift.runs.catalog.rebuild import ENDING, Ending
from upshift.runs.catalog.rows import UNFINISHED, AttemptRow, RunRow, TaskRow, attempt_of
from upshift.runs.history.records import growth_of
from upshift.runs.lease import here
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.objects import side_by_side
from upshift.runtime.storage.store import Store

_LOST = Failure(reason="infrastructure", message="its pod has gone without a result")
Compose = Callable[[], Graph]
"""Makes the graph anew, with the parameters of the run."""


@attrs.frozen(kw_only=True)
class Prepared:
    """What a pod is to do now."""

    attempt: int | None = None  # the number of the attempt whose spec it is to run; None: nothing runs
    spec: str | None = None  # the path of that, relative to the store
    said: str = ""  # what a person is told
    failed: bool = False  # whether it ends as one that failed


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of it."""

    failure: Failure | None = None  # why it failed; None: it has completed, or was not to run
    goes_on: bool = False  # whether the flow goes on all the same, with one more attempt


class OneStep:
    """A run as one of its pods has it."""

    def __init__(self, order: Order, digest: str, store: Store, run: str) -> None:
        self._order = order  # what was exported
        self._digest = digest  # by which that is in the store
        self.store = store  # as nodes have it
        self._run = run
        self._listed: dict[str, Mapping[int, Sequence[int]]] = {}
        self._known: dict[TaskId, dict[int, TaskResult | None]] = {}
        self._lost = _LOST

    def begin(self, compose: Compose | None, *, submitted: Mapping[str, str] | None = None) -> None:
        """See that the run is on record; ``compose`` where its parameters are not those of the export.

        ``submitted``: whoever submits it says where it is; nothing of it runs here.
        """
        recorded = self.store.read_record(self._run, "run.json")
        if recorded is not None:
            row = from_json(RunRow, recorded)
            if row.status not in UNFINISHED:  # it is tried again
                self._write(attrs.evolve(row, status=RUNNING, ended=None))
            return
        graph = self._order.graph if compose is None else compose()
        if compose is not None:
            confirm_same_shape(graph, self._order.graph)
        self.store.create_record(self._run, "graph.json", to_json(attrs.evolve(graph, sources={})))
        graph = self._graph()
        row = RunRow(
            id=self._run,
            pipeline=graph.pipeline,
            status="running",
            target=self._order.target.name,
            user=self._order.user,
            tags=self._order.tags,
            started=time.time(),
            store=self._order.store,
            source={
                **self._order.source,
                "code": encode(self._order.code),
                "engine": here()
                if submitted is None
                else {"host": self._order.target.name, "home": self._run},
                # What a run names stays in the store, and so does what the next one of the same file needs.
                ORCHESTRATOR: {
                    "name": self._order.target.backend,
                    "order": self._digest,
                    "engine": self._order.runtime,
                    **(submitted or {}),
                },
            },
            params={name: encode(artifact) for name, artifact in graph.params.items()},
        )
        if not self.store.create_record(self._run, "run.json", to_json(row)) and submitted is not None:
            self._write(row)  # a pod was faster, and does not know where

    def prepare(self, node: str, at: Sequence[int], caught: Failure | None = None) -> Prepared:
        """What is to be done for a node, in these items of the loops around it.

        With ``caught``, the failure after which a flow goes on all the same.
        """
        walk, task, ready = self._walk_to(node, at)
        if task is None or task.status == SKIPPED:
            why = "the run took another way" if task is None else why_skipped(task, walk.nodes)
            return Prepared(said=f"{node} is skipped: {why}")
        if not ready:
            why = task.failure.message if task.failure else "something that it needs has not completed"
            return Prepared(said=f"{task} cannot run: {why}", failed=True)
        task_id, retry = self._id(task), task.node.definition.settings.retry_policy
        tries = self._tries(task_id)
        if any(result is not None and result.status == COMPLETED for result in tries.values()):
            return Prepared(said=f"{task} is done already")
        earlier = self._failures(task_id)
        if caught is None and earlier and len(earlier) <= retry.times and earlier[-1].reason not in retry.on:
            said = f"{task} is not tried again after {earlier[-1].reason}: on={list(retry.on)}"
            return Prepared(said=said, failed=True)
        task.caught = caught
        inputs, tainted = task_inputs(task, walk.nodes, lambda a: artifacts.items_of(a, self.store))
        specs, plan, image = self._specs(task)
        degraded, number = tainted or self._order.steps[task.node.node.step].degraded, max(tries, default=0)
        while True:
            number += 1
            spec = specs.make(task, task_id, number, inputs, plan, degraded=degraded, image=image)
            if self.store.create_spec(spec):
                return Prepared(attempt=number, spec=self.store.spec_path(task_id, number))

    def outcome(self, node: str, at: Sequence[int]) -> Outcome:
        """What has become of a task that was to run."""
        _, task, _ = self._walk_to(node, at)
        tries = {} if task is None else self._tries(self._id(task))
        if task is None or not tries:
            return Outcome()
        last = list(tries.values())[-1]
        if last is not None and last.status == COMPLETED:
            return Outcome()
        failures, settings = self._failures(self._id(task)), task.node.definition.settings
        again = settings.retry_policy.again(failures[-1].reason, len(failures))
        return Outcome(failure=failures[-1], goes_on=settings.catch is not None and not again)

    def told(self, node: str, at: Sequence[int], what: str) -> str:
        """What Kubeflow has to know of an output: ``items:OUTPUT``, ``flag:OUTPUT``, ``choice:OUTPUT``."""
        walk, task, _ = self._walk_to(node, at)
        kind, _, output = what.partition(":")
        if task is None or task.status == SKIPPED:
            return {"items": "[]", "flag": "false"}.get(kind, "")
        self._settle(walk, [task])
        artifact = task.outputs[output]
        if kind == "items":
            return json.dumps([str(number) for number in range(artifact.items or 0)])
        value = artifacts.plain_value(artifact, self.store)
        if kind == "flag" and not isinstance(value, bool):
            raise GraphError(
                f".when({node}) is of type {artifact.type}, and not a bool",
                where=task.node.definition.location,
                fix=f"Return True or False from {node}, for example bool(…).",
            )
        return json.dumps(value) if kind == "flag" else str(value)

    def end(self, lost: Failure | None = None) -> str:
        """Record how the run ended; gives its status. ``lost``: what became of tasks that left no result."""
        self._lost = lost or _LOST
        walk = self._walk(self._graph())
        while walk.ready:
            tasks = list(walk.ready)
            walk.ready.clear()
            self._settle(walk, tasks, failures=True, unstarted=lost)
        walk.stop()
        states = [task for state in walk.nodes.values() for task in state.tasks]
        status = COMPLETED if walk.went_well else walk.worst
        content = self.store.read_record(self._run, "run.json")
        assert content is not None  # the graph was there
        row = attrs.evolve(from_json(RunRow, content), status=status, ended=time.time())
        ending = Ending(
            tasks=tuple(TaskRow(task=self._id(task), status=task.status) for task in states),
            attempts=tuple(attempt for task in states for attempt in self._attempts(task)),
        )
        self.store.write_record(self._run, ENDING, to_json(ending))
        self._write(row)
        return status

    def _write(self, row: RunRow) -> None:
        self.store.write_record(self._run, "run.json", to_json(row))

    # -- the walk ----------------------------------------------------------------------------------

    def _graph(self) -> Graph:
        content = self.store.read_record(self._run, "graph.json")
        if content is None:
            raise StoreError(
                f"run {self._run} has not begun in {self.store.name}",
                why="The pods of its first steps record it, and have not.",
            )
        return from_json(Graph, content)

    def _walk(self, graph: Graph) -> Walk:
        grow = growth_of(graph, self.store)
        walk = Walk(graph, truth=lambda artifact: artifacts.plain_value(artifact, self.store), grow=grow)
        walk.start()
        return walk

    def _walk_to(self, name: str, at: Sequence[int]) -> tuple[Walk, TaskState | None, bool]:
        """The walk as far as a task, and whether that may start; None: the graph has not grown there."""
        graph = self._graph()
        walk, matters = self._walk(graph), upstream_of(graph, name, at)
        while walk.ready:
            tasks = list(walk.ready)
            walk.ready.clear()
            task = task_of(walk, name, at)
            if task in tasks:
                return walk, task, True
            self._settle(walk, [one for one in tasks if matters(one)])
        return walk, task_of(walk, name, at), False

    def _settle(
        self,
        walk: Walk,
        tasks: Sequence[TaskState],
        *,
        failures: bool = False,
        unstarted: Failure | None = None,
    ) -> None:
        """Have the walk know what became of tasks; those of which nothing is known stay as they are."""
        self._read_all([self._id(task) for task in tasks])
        for task in tasks:
            tries = self._tries(self._id(task))
            done = next((one for one in tries.values() if one is not None and one.status == COMPLETED), None)
            if done is not None:
                walk.completed(task, done.outputs, degraded=done.degraded)
            elif failures and (tries or unstarted is not None):
                failure = self._failure([None, *tries.values()][-1])
                (walk.cancelled(task) if failure.reason == CANCELLED else walk.failed(task, failure))

    def _read_all(self, tasks: Sequence[TaskId]) -> None:
        """Have what became of tasks read, several at once."""
        by_text = {f"{task.step} {task.index}": task for task in tasks if task not in self._known}

        def read(text: str) -> None:
            self._tries(by_text[text])

        for task in list(by_text.values())[:1]:  # its folder is listed once
            self._tries(task)
        side_by_side(read, by_text)

    def _tries(self, task: TaskId) -> dict[int, TaskResult | None]:
        """The attempts of a task so far, in order, and what became of each; None: that is not known."""
        if task not in self._known:
            if task.step not in self._listed:
                self._listed[task.step] = self.store.attempts_of(self._run, task.step)
            numbers = self._listed[task.step].get(task.index or 0, ())
            self._known[task] = {number: self.store.read_result(task, number) for number in numbers}
        return self._known[task]

    def _failures(self, task: TaskId) -> list[Failure]:
        """Why the attempts so far have failed. What has left no result never will."""
        found = []
        for number, result in self._tries(task).items():
            if result is None:
                fence(self.store, task, number)
                result = self.store.read_result(task, number)
            found.append(self._failure(result))
        return found

    def _attempts(self, task: TaskState) -> Iterator[AttemptRow]:
        """Attempts of a task of which their results do not tell all; if there are none, why it failed."""
        target, tries = self._order.target, self._tries(self._id(task))
        lost = {
            number: self._failure(result)
            for number, result in tries.items()
            if result is None or self._is_cancelled(result)
        }
        if not tries and task.failure is not None:
            lost = {1: task.failure}
        for number, failure in lost.items():
            result, status = tries.get(number), CANCELLED if failure.reason == CANCELLED else FAILED
            row = AttemptRow(
                task=self._id(task), number=number, status=status, target=target.name, backend=target.backend
            )
            known = row if result is None else attempt_of(result)
            yield attrs.evolve(known, status=status, reason=failure.reason, failure=failure)

    def _failure(self, result: TaskResult | None) -> Failure:
        """Why an attempt that has not completed has failed."""
        if result is None or result.failure is None or self._is_cancelled(result):
            return self._lost
        return result.failure

    def _is_cancelled(self, result: TaskResult) -> bool:
        """Whether its pod was told to stop because the run was terminated, which no pod can know."""
        known = result.failure
        return known is not None and known.reason == STOPPED and self._lost.reason == CANCELLED

    def _id(self, task: TaskState) -> TaskId:
        return TaskId(run=self._run, step=task.node.node.name, index=task.index)

    def _specs(self, task: TaskState) -> tuple[Specs, GrantPlan, Image]:
        """What makes the spec of a task, and what it gets."""
        order = self._order
        step: StepOrder = order.steps[task.node.node.step]
        place = OpenTarget(order.target, store=order.store, inbox=SimpleQueue(), open_backend=open_backend)
        plan = GrantPlan(
            place=place,
            granted=step.granted,
            demand=Demand.of(step.granted, (), launch=step.launch),
            strict=step.strict,
            launch=step.launch,
            request=step.request,
        )
        # Each run draws other random numbers, and all of its pods the same.
        drawn = hashlib.sha256(self._run.encode()).hexdigest()
        specs = Specs(
            self._graph(),
            code=order.code,
            store=self.store,
            cwd=None,
            shipped=Shipped(code=order.code, runtime=order.runtime),
            draws=dict.fromkeys(("random", "numpy.random", "torch.random"), drawn),
        )
        image = Image(reference=step.image or "", recipe="", interpreter=step.interpreter, user=step.user)
        return specs, plan, image


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
