"""A pipeline of Kubeflow's, version 2 of its form: from a graph to plain tables, and nothing else.

::

    root:  steps ──────────────────────────────────────► end, whatever became of them
             │
             ├─ load ─► if-train: a condition ─► train
             ├─ load ─► for-score: one iteration for each item ─► score
             └─ the nodes of a flow, its foreaches and switches one inside the other

Every pod is started alike, and told which node it is of and, inside loops, of which items. What steps hand
each other goes through the store. Between them Kubeflow carries what it has to know itself: the numbers of
the items of a list, a boolean, the case of a switch.

What it consists of is in :mod:`.components`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upshift.backends.kubeflow.components import (
    RUN,
    Channel,
    Condition,
    Dag,
    Object,
    Pipeline,
    Pod,
    output_name,
    slug,
)
from upshift.backends.scheduler import yaml_of
from upshift.errors import RequestRefused
from upshift.model.graph import (
    CHOICE,
    FOREACH,
    GANG,
    ITEMS,
    LINEAR,
    SPLIT,
    SWITCH,
    FromStep,
    Graph,
    Node,
    StepDefinition,
    expansion,
    needs,
)

STEPS, END = "steps", "end"
"""The tasks of the root: all that the graph has, and what records how it ended."""
MOST_TASKS = 2000
"""A flow in which what follows a switch is written once for each case may become too large to submit."""


def pipeline_of(
    graph: Graph, pods: Mapping[str, Pod], end: Pod, *, params: Mapping[str, object], description: str
) -> tuple[Object, ...]:
    """The pipeline as tables; the second one is of what only Kubernetes has, if there is such.

    Parameters
    ----------
    graph
        As it begins.
    pods
        By definition.
    end
        What records the end of the run.
    params
        Parameters that a run may set, and their defaults, as plain data.
    description
        For whoever reads the file, or the page of Kubeflow.

    Raises
    ------
    RequestRefused
        Kubeflow cannot express something of the graph.
    """
    made = Pipeline(graph, pods, params)
    made.root.place(STEPS, made.add(STEPS, {}))
    steps = Dag(made, STEPS, made.root)
    if graph.flow is None:
        _Functions(graph, steps).add_all()
    else:
        _Flow(graph, made).follow(steps, next(iter(graph.flow.steps)), (), None)
    if not steps.tasks:
        raise RequestRefused(
            f"pipeline {graph.pipeline} has no steps", fix="Kubeflow takes pipelines with one step at least."
        )
    last = made.add(END, {"executorLabel": made.executor(END, end, ["end", "--run", RUN])})
    made.root.place(END, last, after=[STEPS], triggerPolicy={"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"})
    spec = {
        "pipelineInfo": {"name": slug(graph.pipeline), "description": description},
        "schemaVersion": "2.1.0",
        "sdkVersion": "upshift",
        "root": made.root.component(),
        "components": made.finished(),
        "deploymentSpec": {"executors": made.executors},
    }
    if not made.platforms:
        return (spec,)
    return spec, {"platforms": {"kubernetes": {"deploymentSpec": {"executors": made.platforms}}}}


def text_of(documents: Sequence[Mapping[str, object]]) -> str:
    """A pipeline as YAML."""
    return "---\n".join(map(yaml_of, documents))


def refuse_inexpressible(name: str, definition: StepDefinition) -> None:
    """Raise what Kubeflow cannot do for a step, whatever its place in the graph."""
    settings = definition.settings
    if settings.retry_policy.memory_factor > 1:
        raise RequestRefused(
            f"step {name} asks for more memory when it is tried again, which Kubeflow cannot give",
            where=definition.location,
            why="All attempts of a task have the same pod.",
            fix="Leave memory_factor out, and ask for the memory at once.",
        )


# -- Pipelines of functions ----------------------------------------------------------------------------


class _Functions:
    """A pipeline of functions: its nodes beside each other, each in its own loop and under its condition."""

    def __init__(self, graph: Graph, dag: Dag) -> None:
        self._graph = graph
        self._dag = dag
        self._nodes = {node.name: node for node in graph.nodes}
        self._tasks: dict[str, str] = {}  # the task that a node is, by name
        self._told = self._all_told()

    def add_all(self) -> None:
        """Add the nodes, in order."""
        for node in self._graph.nodes:
            self._tasks[node.name] = self._add(node)

    def _add(self, node: Node) -> str:
        after = [self._tasks[name] for name in sorted(needs(node))]
        condition = None if node.when is None else self._condition(node, node.when)
        if not node.mapped:
            return self._dag.step(
                node.name, node.step, after=after, tells=self._told.get(node.name, {}), condition=condition
            )
        name, items = slug(node.name), self._source_of(node)
        over = items if isinstance(items, int) else self._channel_of(items, "items")
        if condition is None:
            loop = self._dag.loop(name, over, after=after)
        else:
            alone = self._dag.only_if(name, condition, after=after)
            loop = alone.loop(name, over, after=())
        loop.step(node.name, node.step, after=(), tells={})
        return loop.task if condition is None else alone.task

    def _condition(self, node: Node, when: FromStep) -> Condition:
        return Condition(self._channel_of(when, "flag"), "BOOLEAN", "true")

    def _channel_of(self, source: FromStep, what: str) -> Channel:
        return self._tasks[source.node], output_name(f"{what}:{source.output}")

    def _all_told(self) -> dict[str, dict[str, str]]:
        """By node, those of its outputs that decide how many tasks others have, or whether they have any."""
        found: dict[str, dict[str, str]] = {}
        for node in self._graph.nodes:
            if node.when is not None:
                found.setdefault(node.when.node, {})[f"flag:{node.when.output}"] = "BOOLEAN"
            items = self._source_of(node) if node.mapped else 0
            if isinstance(items, FromStep):
                found.setdefault(items.node, {})[f"items:{items.output}"] = "LIST"
        return found

    def _source_of(self, node: Node) -> FromStep | int:
        """What says how many items a mapped node has: an output of a node that is one task, or the graph."""
        plan = expansion(node, self._nodes.__getitem__)
        for items in plan.static.values():
            return len(items)
        for source in plan.lists.values():
            return source if isinstance(source, FromStep) else source.artifact.items or 0
        return self._source_of(self._nodes[plan.peers[0]])


# -- Flows ---------------------------------------------------------------------------------------------


_TOLD = {FOREACH: {f"items:{ITEMS}": "LIST"}, SWITCH: {f"choice:{CHOICE}": "STRING"}}
"""What steps of a flow say to Kubeflow, by how they go on."""


class _Flow:
    """A flow: its splits beside each other, its foreaches and switches one inside the other."""

    def __init__(self, graph: Graph, pipeline: Pipeline) -> None:
        assert graph.flow is not None
        self._shape = graph.flow
        self._count = 0
        self._open: list[str] = []  # the steps on the way here

    def follow(self, dag: Dag, name: str, after: Sequence[str], last: str | None) -> list[str]:
        """Add a step and all that follows it, up to a join; gives the tasks that come to that.

        What follows a switch is there in each case, since no task of Kubeflow's can wait for one of several.
        """
        depth = len(self._open)
        try:
            while name != last:
                step = self._shape.steps[name]
                self._enter(name, step.location)
                tells = _TOLD.get(step.kind, {})
                task = dag.step(name, name, after=after, tells=tells)
                if step.kind == LINEAR:
                    after, name = [task], step.then[0]
                elif step.kind == SPLIT:
                    join = self._shape.joins[name]
                    after = [end for arm in step.then for end in self._arm(dag, arm, task, join)]
                    name = join
                elif step.kind == FOREACH:
                    join = self._shape.joins[name]
                    items = task, output_name(f"items:{ITEMS}")
                    inside = dag.loop(slug(step.then[0]), items, after=[task])
                    self.follow(inside, step.then[0], (), join)
                    after, name = [inside.task], join
                elif step.kind == SWITCH:
                    return self._cases(dag, step.then, task, last)
                else:  # its end
                    return [task]
            return list(after)
        finally:
            del self._open[depth:]

    def _cases(self, dag: Dag, cases: Sequence[str], task: str, last: str | None) -> list[str]:
        """What follows in each case of a switch."""
        ends = []
        for case in cases:
            condition = Condition((task, output_name(f"choice:{CHOICE}")), "STRING", f"'{case}'")
            inside = dag.only_if(slug(case), condition, after=[task])
            self.follow(inside, case, (), last)
            ends.append(inside.task)
        return ends

    def _arm(self, dag: Dag, name: str, task: str, join: str) -> list[str]:
        """One of the steps that a split goes on with. What has a switch is a task of its own to the join."""
        if not self._switches(name, join):
            return self.follow(dag, name, [task], join)
        inside = dag.within(f"arm-{slug(name)}", after=[task])
        self.follow(inside, name, (), join)
        return [inside.task]

    def _switches(self, name: str, last: str) -> bool:
        """Whether there is a switch on the way to a join, outside of the loops on it."""
        seen, pending = {last}, [name]
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            step = self._shape.steps[current]
            if step.kind == SWITCH:
                return True
            pending += [self._shape.joins[current]] if step.kind == FOREACH else step.then
        return False

    def _enter(self, name: str, where: str | None) -> None:
        step = self._shape.steps[name]
        if name in self._open:
            raise RequestRefused(
                f"step {name} is in a loop, which Kubeflow cannot express",
                where=where,
                why="A task of Kubeflow's runs once.",
                fix="Loop inside a step, or run it elsewhere: upshift run --on kubernetes.",
            )
        if step.kind == GANG:
            raise RequestRefused(
                f"step {name} goes on with several processes (num_parallel), which Kubeflow cannot express",
                where=where,
                fix="Use foreach, or run it elsewhere: upshift run --on kubernetes.",
            )
        self._open.append(name)
        self._count += 1
        if self._count > MOST_TASKS:
            raise RequestRefused(
                f"the flow has more than {MOST_TASKS:,} tasks",
                where=where,
                why="What follows a switch is there once for each case.",
                fix="Use fewer switches one after the other.",
            )
