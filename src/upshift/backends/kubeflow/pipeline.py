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

The form is that of ``pipeline_spec.proto``, 2.1.0, and ``kubernetes_executor_config.proto``. Names of
channels are those that the ``kfp`` compiler gives, since ``kfp.local`` takes them apart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.kubernetes.devices import RESOURCES, resource_of_partition
from upshift.backends.kubernetes.nodes import POD, tainted
from upshift.backends.yaml_text import yaml_of
from upshift.errors import RequestRefused
from upshift.model.graph import FromStep, Graph, Node, StepDefinition, expansion, needs
from upshift.model.graph.flow import FOREACH, GANG, LINEAR, SPLIT, SWITCH
from upshift.model.graph.growth import CHOICE, ITEMS
from upshift.model.settings.retry import Retry
from upshift.model.spec.hardware import Hardware

Object = dict[str, Any]
Channel = tuple[str, str]
"""A task, and what it says to Kubeflow under this name."""

RUN = "{{$.pipeline_job_uuid}}"
"""What Kubeflow puts the id of its run in place of."""
STEPS, END = "steps", "end"
"""The tasks of the root: all that the graph has, and what records how it ended."""
MOST_TASKS = 2000
"""A flow in which what follows a switch is written once for each case may become too large to submit."""
_TYPES = {
    bool: "BOOLEAN",
    int: "NUMBER_INTEGER",
    float: "NUMBER_DOUBLE",
    str: "STRING",
    list: "LIST",
    dict: "STRUCT",
}
_GB = 10**9
_SHM = "/dev/shm"


@attrs.frozen(kw_only=True)
class Pod:
    """What runs a step, the same for all of its nodes."""

    image: str
    command: tuple[str, ...]  # to which its arguments are added
    environment: Mapping[str, str] = attrs.field(factory=dict)
    granted: Hardware = Hardware()
    settings: Mapping[str, Any] = attrs.field(factory=dict)  # of KubeflowSettings, as far as they are said
    secrets: Mapping[str, str] = attrs.field(factory=dict)  # ``k8s:name/key`` by variable
    retry: Retry = Retry()


def pipeline_of(
    graph: Graph, pods: Mapping[str, Pod], end: Pod, *, params: Mapping[str, object], description: str
) -> str:
    """The pipeline as YAML.

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
    made = _Pipeline(graph, pods, params)
    made.root.place(STEPS, made.add(STEPS, {}))
    steps = _Dag(made, STEPS, made.root)
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
        "pipelineInfo": {"name": _slug(graph.pipeline), "description": description},
        "schemaVersion": "2.1.0",
        "sdkVersion": "upshift",
        "root": made.root.component(),
        "components": made.finished(),
        "deploymentSpec": {"executors": made.executors},
    }
    documents = [yaml_of(spec)]
    if made.platforms:
        platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": made.platforms}}}}
        documents.append(yaml_of(platform))
    return "---\n".join(documents)


# -- What a pipeline consists of -----------------------------------------------------------------------


@attrs.frozen
class _Condition:
    """That a task has said a value."""

    channel: Channel
    kind: str
    value: str

    @property
    def policy(self) -> Object:
        """As Kubeflow has it."""
        return {"condition": f"inputs.parameter_values['{_channel(*self.channel)}'] == {self.value}"}


class _Pipeline:
    """Components and executors, each under a name of its own."""

    def __init__(self, graph: Graph, pods: Mapping[str, Pod], params: Mapping[str, object]) -> None:
        self.components: dict[str, Object] = {}
        self.executors: dict[str, Object] = {}
        self.platforms: dict[str, Object] = {}
        self.dags: dict[str, _Dag] = {}
        self.params = params
        self._graph = graph
        self._pods = pods
        self._leaves: dict[tuple[Any, ...], str] = {}
        self.root = _Dag(self, "root", None)

    def add(self, name: str, component: Object) -> str:
        """Take a component in; gives its name."""
        return _named(self.components, f"comp-{name}", component)

    def finished(self) -> dict[str, Object]:
        """All components, those that have tasks inside with these."""
        return {**self.components, **{name: dag.component() for name, dag in self.dags.items()}}

    def executor(self, name: str, pod: Pod, arguments: Sequence[str]) -> str:
        """Take in what runs; gives its name."""
        said = {
            "image": pod.image,
            "command": list(pod.command),
            "args": list(arguments),
            "env": [{"name": name, "value": value} for name, value in pod.environment.items()],
            "resources": _resources(pod.granted),
        }
        label = _named(self.executors, f"exec-{name}", {"container": _filled(said)})
        platform = _platform(pod)
        if platform:
            self.platforms[label] = platform
        return label

    def leaf(self, step: str, inputs: Mapping[str, str], tells: Mapping[str, str], depth: int) -> str:
        """The component of those nodes of a step that are alike; gives its name.

        Parameters
        ----------
        inputs
            What it gets from Kubeflow, with types; ``param-…`` are parameters of the run.
        tells
            What it says to Kubeflow, with types: ``items:OUTPUT``, ``flag:OUTPUT``, ``choice:OUTPUT``.
        depth
            In how many loops it is.
        """
        if len({_output(said) for said in tells}) < len(tells):
            raise RequestRefused(
                f"step {step} has lists named output and items, which Kubeflow would both call Output",
                where=self._graph.steps[step].location,
                fix="Give one of them another name.",
            )
        key = (step, tuple(inputs), tuple(tells), depth)
        if key in self._leaves:
            return self._leaves[key]
        arguments = ["step", "--run", RUN, "--node", _input("node")]
        for index in _indices(depth):
            arguments += ["--at", _input(index)]
        for said in tells:
            file = "{{$.outputs.parameters['" + _output(said) + "'].output_file}}"
            arguments += ["--tell", said, file]
        for name in self.params:
            if f"param-{name}" in inputs:
                arguments += ["--param", name, _input(f"param-{name}")]
        label = self.executor(_slug(step), self._pods[step], arguments)
        component = {"executorLabel": label, "inputDefinitions": _defined(inputs)}
        if tells:
            component["outputDefinitions"] = _defined({_output(said): kind for said, kind in tells.items()})
        self._leaves[key] = self.add(_slug(step), component)
        return self._leaves[key]

    def retry_of(self, step: str) -> Object:
        """How often Kubeflow tries a step again."""
        retry = self._pods[step].retry
        if not retry.times:
            return {}
        return {
            "retryPolicy": {
                "maxRetryCount": retry.times,
                "backoffDuration": f"{math.ceil(retry.delay)}s",
                "backoffFactor": retry.backoff,
                "backoffMaxDuration": f"{math.ceil(retry.max_delay)}s",
            }
        }


class _Dag:
    """Tasks beside each other: the root, the body of a loop, what stands under a condition."""

    def __init__(self, pipeline: _Pipeline, task: str, parent: _Dag | None, depth: int = 0) -> None:
        self.pipeline = pipeline
        self.parent = parent
        self.depth = depth  # in how many loops it is
        self.tasks: dict[str, Object] = {}
        self.task = task  # that of its parent which it is
        self.kinds: dict[str, str] = {}  # types of its inputs
        if parent is not None:
            pipeline.dags[parent.tasks[task]["componentRef"]["name"]] = self

    def place(self, name: str, component: str, *, after: Iterable[str] = (), **more: Any) -> str:
        """Add a task; gives its name, which no other one here has."""
        after = list(dict.fromkeys(after))
        task = {
            "taskInfo": {"name": name},
            "componentRef": {"name": component},
            **({"dependentTasks": after} if after else {}),
            "inputs": {"parameters": {}},
            **more,
        }
        made = _named(self.tasks, name, task)
        task["taskInfo"]["name"] = made
        return made

    def step(
        self,
        name: str,
        step: str,
        *,
        after: Iterable[str],
        tells: Mapping[str, str],
        condition: _Condition | None = None,
    ) -> str:
        """Add a node of a step, which says this to Kubeflow; gives its task."""
        first = not after and self._is_first()
        params = self.pipeline.params if first else {}
        kinds = {"node": "STRING", **dict.fromkeys(_indices(self.depth), "STRING")}
        kinds |= {f"param-{param}": _TYPES[type(value)] for param, value in params.items()}
        if condition is not None:
            kinds[_channel(*condition.channel)] = condition.kind
        made = self.place(
            _slug(name),
            self.pipeline.leaf(step, kinds, tells, self.depth),
            after=after,
            cachingOptions={},
            **self.pipeline.retry_of(step),
            **({} if condition is None else {"triggerPolicy": condition.policy}),
        )
        inputs = self.tasks[made]["inputs"]["parameters"]
        inputs["node"] = {"runtimeValue": {"constant": name}}
        for index in _indices(self.depth):
            inputs[index] = self.bring(index, "STRING")
        for param in params:
            inputs[f"param-{param}"] = self.bring(param, kinds[f"param-{param}"])
        if condition is not None:
            inputs[_channel(*condition.channel)] = self.bring_channel(condition.channel, condition.kind)
        return made

    def within(self, name: str, *, after: Iterable[str] = (), loops: bool = False, **more: Any) -> _Dag:
        """Add a task that has tasks inside."""
        made = self.place(name, self.pipeline.add(name, {}), after=after, **more)
        return _Dag(self.pipeline, made, self, self.depth + loops)

    def loop(self, name: str, items: int | Channel, *, after: Iterable[str]) -> _Dag:
        """Add a task whose tasks are there for each item: so many, or as many as another task says."""
        index = _indices(self.depth + 1)[-1]
        over: Object = {"itemInput": index}
        if isinstance(items, int):
            over["items"] = {"raw": json.dumps([str(number) for number in range(items)])}
        else:
            over["items"] = {"inputParameter": _channel(*items)}
        inside = self.within(f"for-{name}", after=after, loops=True, parameterIterator=over)
        inside.kinds[index] = "STRING"
        if not isinstance(items, int):
            inside.bring_channel(items, "LIST")
        return inside

    def only_if(self, name: str, condition: _Condition, *, after: Iterable[str]) -> _Dag:
        """Add a task whose tasks are there under a condition."""
        inside = self.within(f"if-{name}", after=after, triggerPolicy=condition.policy)
        inside.bring_channel(condition.channel, condition.kind)
        return inside

    def bring_channel(self, channel: Channel, kind: str) -> Object:
        """Where a task in here has what another one says from; that is in here, or beside what this is in."""
        if channel[0] in self.tasks:
            return {"taskOutputParameter": {"producerTask": channel[0], "outputParameterKey": channel[1]}}
        return self.bring(_channel(*channel), kind, channel)

    def bring(self, name: str, kind: str, channel: Channel | None = None) -> Object:
        """Where a task in here has an input of what this is in from."""
        if name not in self.kinds:
            self.kinds[name] = kind
            if self.parent is not None:
                outside = self.parent
                self.parent.tasks[self.task]["inputs"]["parameters"][name] = (
                    outside.bring(name, kind) if channel is None else outside.bring_channel(channel, kind)
                )
        return {"componentInputParameter": name}

    def component(self) -> Object:
        """It as a component."""
        params = self.pipeline.params if self.parent is None else {}
        inputs = _defined(self.kinds)
        for name, value in params.items():
            if name in self.kinds:
                inputs["parameters"][name] |= {"defaultValue": value, "isOptional": True}
        return {
            **({"inputDefinitions": inputs} if self.kinds else {}),
            "dag": {
                "tasks": {name: _filled(task, keep="cachingOptions") for name, task in self.tasks.items()}
            },
        }

    def _is_first(self) -> bool:
        """Whether nothing has to end before what is in here begins."""
        dag: _Dag = self
        while dag.parent is not None:
            if dag.parent.tasks[dag.task].get("dependentTasks"):
                return False
            dag = dag.parent
        return True


# -- Pipelines of functions ----------------------------------------------------------------------------


class _Functions:
    """A pipeline of functions: its nodes beside each other, each in its own loop and under its condition."""

    def __init__(self, graph: Graph, dag: _Dag) -> None:
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
        name, items = _slug(node.name), self._source_of(node)
        over = items if isinstance(items, int) else self._channel_of(items, "items")
        if condition is None:
            loop = self._dag.loop(name, over, after=after)
        else:
            alone = self._dag.only_if(name, condition, after=after)
            loop = alone.loop(name, over, after=())
        loop.step(node.name, node.step, after=(), tells={})
        return loop.task if condition is None else alone.task

    def _condition(self, node: Node, when: FromStep) -> _Condition:
        return _Condition(self._channel_of(when, "flag"), "BOOLEAN", "true")

    def _channel_of(self, source: FromStep, what: str) -> Channel:
        return self._tasks[source.node], _output(f"{what}:{source.output}")

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

    def __init__(self, graph: Graph, pipeline: _Pipeline) -> None:
        assert graph.flow is not None
        self._shape = graph.flow
        self._count = 0
        self._open: list[str] = []  # the steps on the way here

    def follow(self, dag: _Dag, name: str, after: Sequence[str], last: str | None) -> list[str]:
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
                    items = task, _output(f"items:{ITEMS}")
                    inside = dag.loop(_slug(step.then[0]), items, after=[task])
                    self.follow(inside, step.then[0], (), join)
                    after, name = [inside.task], join
                elif step.kind == SWITCH:
                    return self._cases(dag, step.then, task, last)
                else:  # its end
                    return [task]
            return list(after)
        finally:
            del self._open[depth:]

    def _cases(self, dag: _Dag, cases: Sequence[str], task: str, last: str | None) -> list[str]:
        """What follows in each case of a switch."""
        ends = []
        for case in cases:
            condition = _Condition((task, _output(f"choice:{CHOICE}")), "STRING", f"'{case}'")
            inside = dag.only_if(_slug(case), condition, after=[task])
            self.follow(inside, case, (), last)
            ends.append(inside.task)
        return ends

    def _arm(self, dag: _Dag, name: str, task: str, join: str) -> list[str]:
        """One of the steps that a split goes on with. What has a switch is a task of its own to the join."""
        if not self._switches(name, join):
            return self.follow(dag, name, [task], join)
        inside = dag.within(f"arm-{_slug(name)}", after=[task])
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


# -- The parts of a task -------------------------------------------------------------------------------


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


def _output(said: str) -> str:
    """Kubeflow's name of what a task says to it.

    A list is called ``Output``: ``kfp.local`` finds no other one that a loop goes over.
    """
    what, _, output = said.partition(":")
    if what == "items" and output in ("output", ITEMS):
        return "Output"
    return output if what == CHOICE else f"{what}_{output}"


def _channel(task: str, output: str) -> str:
    separator = "-" if output == "Output" else "--"
    return f"pipelinechannel--{task}{separator}{output}"


def _defined(kinds: Mapping[str, str]) -> Object:
    return {"parameters": {name: {"parameterType": kind} for name, kind in kinds.items()}}


def _input(name: str) -> str:
    return "{{$.inputs.parameters['" + name + "']}}"


def _indices(depth: int) -> list[str]:
    return [f"index-{number}" for number in range(1, depth + 1)]


def _resources(granted: Hardware) -> Object:
    """What a container asks for, as Kubeflow has it since 2.4 and as it had it before."""
    said: Object = {}
    if granted.cpu_count is not None:
        said |= {
            "cpuRequest": granted.cpu_count,
            "resourceCpuRequest": f"{math.ceil(granted.cpu_count * 1000)}m",
        }
    if granted.memory is not None:
        size, text = granted.memory / _GB, str(math.ceil(granted.memory))
        said |= {"memoryRequest": size, "memoryLimit": size}
        said |= {"resourceMemoryRequest": text, "resourceMemoryLimit": text}
    if granted.gpus:
        kind, count = _resource_of(granted), str(len(granted.gpus))
        said["accelerator"] = {"type": kind, "count": count, "resourceType": kind, "resourceCount": count}
    return said


def _resource_of(granted: Hardware) -> str:
    gpu = (granted.gpus or ())[0]
    if gpu.partition is not None:
        return resource_of_partition(gpu.partition)
    resource = granted.details.get(POD, {}).get("resource")
    return str(resource or RESOURCES[gpu.vendor or "nvidia"][0])


def _platform(pod: Pod) -> Object:
    """What only pods of Kubernetes have."""
    said, granted = pod.settings, pod.granted
    selector = {**granted.details.get(POD, {}).get("node_selector", {}), **said.get("node_selector", {})}
    own = (
        [{"key": key, "operator": "Exists"} for key in tainted([_resource_of(granted)])]
        if granted.gpus
        else []
    )
    shared = granted.shared_memory or granted.memory
    claims = said.get("persistent_volume_claims", {})
    labels, annotations = said.get("labels", {}), said.get("annotations", {})
    memory = {"volumeName": "shared-memory", "mountPath": _SHM, "medium": "Memory"}
    return _filled(
        {
            "nodeSelector": {"labels": selector} if selector else {},
            "tolerations": [_toleration(one) for one in (*said.get("tolerations", ()), *own)],
            "imagePullSecret": [
                {"secretName": name, **_constant("secretName", name)}
                for name in said.get("image_pull_secrets", ())
            ],
            "imagePullPolicy": said.get("image_pull_policy") or "",
            "podMetadata": _filled({"labels": dict(labels), "annotations": dict(annotations)}),
            "pvcMount": [
                {"constant": claim, "mountPath": path, **_constant("pvcName", claim)}
                for claim, path in claims.items()
            ],
            "secretAsEnv": list(_secrets(pod.secrets)),
            "emptyDirMounts": [{**memory, **({"sizeLimit": str(math.ceil(shared))} if shared else {})}],
        }
    )


def _constant(field: str, value: str) -> Object:
    """A name as newer versions of Kubeflow have it, beside the older form."""
    return {f"{field}Parameter": {"runtimeValue": {"constant": value}}}


def _toleration(one: Mapping[str, Any]) -> Object:
    """As in a manifest; numbers of 64 bits are texts in the JSON of a protocol buffer."""
    return {key: str(value) if key == "tolerationSeconds" else value for key, value in one.items()}


def _secrets(sources: Mapping[str, str]) -> Iterator[Object]:
    for variable, source in sources.items():
        secret, _, key = source.partition(":")[2].rpartition("/")
        yield {
            "secretName": secret,
            **_constant("secretName", secret),
            "keyToEnv": [{"secretKey": key, "envVar": variable}],
            "optional": False,
        }


def _filled(table: Mapping[str, Any], keep: str = "") -> Object:
    """What is said of a table."""
    empty: tuple[Any, ...] = ("", [], {}, None, {"parameters": {}})
    return {name: value for name, value in table.items() if name == keep or value not in empty}


def _slug(name: str) -> str:
    """A name as Kubeflow has those of tasks and pipelines: small letters, digits, single dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain if plain[:1].isalpha() else f"s-{plain}".strip("-")


def _named(taken: dict[str, Object], name: str, made: Object) -> str:
    """Keep something under a name that nothing else has; gives that."""
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}-{number}"
    taken[unique] = made
    return unique
