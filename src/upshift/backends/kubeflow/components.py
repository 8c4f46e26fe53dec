"""What a pipeline of Kubeflow's consists of: tasks, beside and in each other, components, executors and pods.

The form is that of ``pipeline_spec.proto``, 2.1.0, and of ``kubernetes_executor_config.proto``. Names of
channels are those that the ``kfp`` compiler gives, since ``kfp.local`` takes them apart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.kubernetes.nodes import POD, RESOURCES, resource_of_partition, tainted
from upshift.errors import RequestRefused
from upshift.model.graph import CHOICE, ITEMS, Graph
from upshift.model.settings.retry import Retry
from upshift.model.spec.hardware import Hardware

Object = dict[str, Any]

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


def container_of(pod: Pod, arguments: Sequence[str]) -> Object:
    """The container of a pod."""
    return filled(
        {
            "image": pod.image,
            "command": list(pod.command),
            "args": list(arguments),
            "env": [{"name": name, "value": value} for name, value in pod.environment.items()],
            "resources": _resources(pod.granted),
        }
    )


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


def platform_of(pod: Pod) -> Object:
    """The settings of a pod that only Kubernetes knows: the platform spec."""
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
    return filled(
        {
            "nodeSelector": {"labels": selector} if selector else {},
            "tolerations": [_toleration(one) for one in (*said.get("tolerations", ()), *own)],
            "imagePullSecret": [
                {"secretName": name, **_constant("secretName", name)}
                for name in said.get("image_pull_secrets", ())
            ],
            "imagePullPolicy": said.get("image_pull_policy") or "",
            "podMetadata": filled({"labels": dict(labels), "annotations": dict(annotations)}),
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


def filled(table: Mapping[str, Any], keep: str = "") -> Object:
    """The table without empty values, but for the one to keep."""
    empty: tuple[Any, ...] = ("", [], {}, None, {"parameters": {}})
    return {name: value for name, value in table.items() if name == keep or value not in empty}


Channel = tuple[str, str]
"""A task, and what it says to Kubeflow under this name."""

RUN = "{{$.pipeline_job_uuid}}"
"""What Kubeflow puts the id of its run in place of."""
_TYPES = {
    bool: "BOOLEAN",
    int: "NUMBER_INTEGER",
    float: "NUMBER_DOUBLE",
    str: "STRING",
    list: "LIST",
    dict: "STRUCT",
}


@attrs.frozen
class Condition:
    """True if a task has reported this value."""

    channel: Channel
    kind: str
    value: str

    @property
    def policy(self) -> Object:
        """The trigger policy in Kubeflow's form."""
        return {"condition": f"inputs.parameter_values['{_channel(*self.channel)}'] == {self.value}"}


class Pipeline:
    """Components and executors, each under a name of its own."""

    def __init__(self, graph: Graph, pods: Mapping[str, Pod], params: Mapping[str, object]) -> None:
        self.components: dict[str, Object] = {}
        self.executors: dict[str, Object] = {}
        self.platforms: dict[str, Object] = {}
        self.dags: dict[str, Dag] = {}
        self.params = params
        self._graph = graph
        self._pods = pods
        self._leaves: dict[tuple[Any, ...], str] = {}
        self.root = Dag(self, "root", None)

    def add(self, name: str, component: Object) -> str:
        """Take a component in; gives its name."""
        return _named(self.components, f"comp-{name}", component)

    def finished(self) -> dict[str, Object]:
        """All components, those that have tasks inside with these."""
        return {**self.components, **{name: dag.component() for name, dag in self.dags.items()}}

    def executor(self, name: str, pod: Pod, arguments: Sequence[str]) -> str:
        """Take in what runs; gives its name."""
        label = _named(self.executors, f"exec-{name}", {"container": container_of(pod, arguments)})
        platform = platform_of(pod)
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
        if len({output_name(said) for said in tells}) < len(tells):
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
            file = "{{$.outputs.parameters['" + output_name(said) + "'].output_file}}"
            arguments += ["--tell", said, file]
        for name in self.params:
            if f"param-{name}" in inputs:
                arguments += ["--param", name, _input(f"param-{name}")]
        label = self.executor(slug(step), self._pods[step], arguments)
        component = {"executorLabel": label, "inputDefinitions": _defined(inputs)}
        if tells:
            outputs = {output_name(said): kind for said, kind in tells.items()}
            component["outputDefinitions"] = _defined(outputs)
        self._leaves[key] = self.add(slug(step), component)
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


class Dag:
    """Tasks beside each other: the root, the body of a loop, what stands under a condition."""

    def __init__(self, pipeline: Pipeline, task: str, parent: Dag | None, depth: int = 0) -> None:
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
        condition: Condition | None = None,
    ) -> str:
        """Add a node of a step, which says this to Kubeflow; gives its task."""
        first = not after and self._is_first()
        params = self.pipeline.params if first else {}
        kinds = {"node": "STRING", **dict.fromkeys(_indices(self.depth), "STRING")}
        kinds |= {f"param-{param}": _TYPES[type(value)] for param, value in params.items()}
        if condition is not None:
            kinds[_channel(*condition.channel)] = condition.kind
        made = self.place(
            slug(name),
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

    def within(self, name: str, *, after: Iterable[str] = (), loops: bool = False, **more: Any) -> Dag:
        """Add a task that has tasks inside."""
        made = self.place(name, self.pipeline.add(name, {}), after=after, **more)
        return Dag(self.pipeline, made, self, self.depth + loops)

    def loop(self, name: str, items: int | Channel, *, after: Iterable[str]) -> Dag:
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

    def only_if(self, name: str, condition: Condition, *, after: Iterable[str]) -> Dag:
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
        """This graph as a component."""
        params = self.pipeline.params if self.parent is None else {}
        inputs = _defined(self.kinds)
        for name, value in params.items():
            if name in self.kinds:
                inputs["parameters"][name] |= {"defaultValue": value, "isOptional": True}
        return {
            **({"inputDefinitions": inputs} if self.kinds else {}),
            "dag": {
                "tasks": {name: filled(task, keep="cachingOptions") for name, task in self.tasks.items()}
            },
        }

    def _is_first(self) -> bool:
        """Whether nothing has to end before what is in here begins."""
        dag: Dag = self
        while dag.parent is not None:
            if dag.parent.tasks[dag.task].get("dependentTasks"):
                return False
            dag = dag.parent
        return True


def output_name(said: str) -> str:
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


def slug(name: str) -> str:
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
