"""Tasks of SkyPilot's: a managed job for one attempt, and a whole pipeline as a chain of them.

::

    name: training
    --- load    its machine, its image, and a script: one step of the run, from the bucket
    --- train
    --- …       the last one records how the run ended, as does one that fails

The tasks of a chain run one after the other. The run's id is that of SkyPilot's job, which all of them know.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.scheduler import Launch, yaml_of
from upshift.errors import RequestRefused
from upshift.model.graph import LINEAR, SPLIT, Graph, Node
from upshift.model.settings.accelerator import Wanted
from upshift.model.settings.kinds import kind_of_model
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import Retry
from upshift.model.spec.hardware import SCHEDULER, SUPERVISOR, Device, Hardware, Shortfall

_GIB, _GB = 1 << 30, 10**9
FIRST_NODE = "SKYPILOT_FIRST_NODE_IP"
"""Variable of a job of several nodes: the address of the first."""
_FIRST = f'export {FIRST_NODE}="$(printf %s "$SKYPILOT_NODE_IPS" | head -n 1)"\n'
"""SkyPilot lists the addresses of all nodes, one per line, that of rank 0 first."""
_NAMES = {
    "Gaudi": "Gaudi HL-205",
    "A100-40GB": "A100",
    "V100-16GB": "V100",
    "H100-80GB": "H100",
    "RTX-A6000": "RTXA6000",
    "RTX-6000-Ada": "RTX6000-Ada",
    "tpu-v5e": "tpu-v5litepod",
}
"""Kinds that SkyPilot's catalogs call otherwise (``sky show-gpus --all``, 0.14)."""
_RESOURCES = (
    *("infra", "cloud", "region", "zone", "instance_type", "use_spot", "disk_tier", "network_tier"),
    *("local_disk", "max_hourly_cost", "priority", "labels", "accelerator_args"),
)
"""Settings that are fields of a task's resources."""


def unnamed(request: ResourceSettings, said: Mapping[str, Any]) -> Shortfall | None:
    """That a request does not say which accelerators it wants; None: it does, or wants none."""
    nameless = next((one for one in request.alternatives if one.count and one.name is None), None)
    if nameless is None or said.get("accelerators") is not None:
        return None
    return Shortfall(
        field="gpu_count",
        asked=str(nameless),
        got="none",
        why="SkyPilot rents machines by the name of their accelerators. Name them: "
        'accelerator="A100:2", or several, the best first: accelerator=["H100:8", "A100-80GB:8"]',
    )


def grants(request: ResourceSettings, said: Mapping[str, Any]) -> tuple[Hardware, ...]:
    """What would meet a request, the best first; a step has its machines for itself.

    Raises
    ------
    RequestRefused
        It asks for accelerators that SkyPilot does not rent.
    """
    return tuple(
        Hardware(
            cpu_count=request.cpu_count,
            memory=request.memory,
            gpus=devices,
            nodes=request.most_nodes,
            disk=request.disk,
            shared_memory=request.shared_memory,
            details={
                "enforced_by": {
                    "cpu": SCHEDULER,
                    "memory": SUPERVISOR,
                    **({"gpus": SCHEDULER} if devices else {}),
                }
            },
        )
        for devices in _alternatives(request, said.get("accelerators"))
    )


def _alternatives(request: ResourceSettings, own: str | None) -> list[tuple[Device, ...] | None]:
    """The devices of a node, as the request or the settings name them."""
    wanted = request.alternatives
    if own is None:
        if not wanted:
            return [None]
        return [_devices(_name_of(one), one.count) if one.count else () for one in wanted]
    name, _, count = own.rpartition(":")
    kind = kind_of_model(name)
    vendor, kind_name, memory = (kind.vendor, kind.name, kind.memory) if kind else (None, None, None)
    for one in wanted:
        anything = one.kind is None and one.name is None and one.vendor is None and one.memory is None
        is_it = anything or one.admits(vendor=vendor, model=name, kind=kind_name, memory=memory)
        if one.count == int(count) and is_it:
            break
    else:
        if wanted:
            asked = " or ".join(map(str, wanted)) if wanted[0].count else "no GPUs"
            raise RequestRefused(
                f"SkyPilotSettings(accelerators={own!r}) is not what ResourceSettings asks for: {asked}",
                fix="Set it in one of them only.",
            )
    return [_devices(name, int(count))]


def _devices(name: str, count: int) -> tuple[Device, ...]:
    kind = kind_of_model(name)
    if kind is None:
        return (Device(model=name),) * count
    return (Device(vendor=kind.vendor, model=name, kind=kind.name),) * count


def _name_of(wanted: Wanted) -> str:
    """SkyPilot's name of what is wanted; that of a TPU slice has its size."""
    if wanted.partition is not None:
        raise RequestRefused(
            f"SkyPilot rents no slices of GPUs: {wanted}", fix="Ask for a whole one, or name another target."
        )
    name = _NAMES.get(wanted.name or "", wanted.name or "")
    slices = None if wanted.kind is None else wanted.kind.slices
    return name if slices is None else f"{name}-{wanted.count * slices.cores}"


def task_of(launch: Launch, *, script: str | None = None, restarts: int = 0) -> str:
    """The task of a job, as YAML; pure.

    Parameters
    ----------
    script
        What it runs; None: the command of the launch.
    restarts
        How often SkyPilot starts it again where that fails.
    """
    said, granted = launch.settings, launch.granted
    options = list(said.get("docker_run_options", ()))
    if granted.shared_memory is not None:
        options.append(f"--shm-size={granted.shared_memory}b")
    several = (granted.nodes or 1) > 1
    resources = _resources(launch)
    if restarts:
        resources["job_recovery"] = {"max_restarts_on_errors": restarts}
    run = f"exec {shlex.join(launch.command)}\n" if script is None else script
    task: dict[str, Any] = {
        "name": launch.name,
        **({"num_nodes": granted.nodes} if several else {}),
        "resources": resources,
        "envs": {**launch.environment, **said.get("envs", {})},
        "config": {"docker": {"run_options": options}} if options else {},
        "run": f"# {launch.comment}\n{_FIRST if several else ''}{run}",
    }
    return yaml_of({key: value for key, value in task.items() if value != {}})


def _resources(launch: Launch) -> dict[str, Any]:
    said, granted = launch.settings, launch.granted
    resources: dict[str, Any] = {}
    # At least so much: of a type of machine that is named, SkyPilot compares it.
    if granted.cpu_count is not None:
        resources["cpus"] = f"{math.ceil(granted.cpu_count)}+"
    if granted.memory is not None:
        resources["memory"] = f"{math.ceil(granted.memory / _GIB)}+"
    if granted.gpus:
        name = granted.gpus[0].model or ""
        resources["accelerators"] = f"{name}:{1 if name.startswith('tpu-') else len(granted.gpus)}"
    resources |= {name: said[name] for name in _RESOURCES if name in said}
    disk = max(said.get("disk_size", 0), math.ceil((granted.disk or 0) / _GB))
    if disk:
        resources["disk_size"] = disk
    if launch.image is not None:
        resources["image_id"] = f"docker:{launch.image}"
    return resources


_RUN = (
    'run="$(printf "%s\\n" "${SKYPILOT_TASK_IDS:-$SKYPILOT_TASK_ID}"'
    ' | head -n 1 | tr -c "A-Za-z0-9\\n-" "-")"'
)
"""SkyPilot lists the ids of a job's tasks, that of the first one first: the same in all of them."""
_ELSEWHERE = "Run it from here: upshift run FILE --on TARGET, which rents machines for each step as it comes."


@attrs.frozen(kw_only=True)
class Link:
    """One task of the chain."""

    node: str
    command: tuple[str, ...]  # which is told what to do
    image: str
    granted: Hardware
    settings: Mapping[str, Any]  # of SkyPilotSettings, as far as they are said
    environment: Mapping[str, str] = attrs.field(factory=dict)
    retry: Retry = Retry()


def pipeline_of(name: str, links: Sequence[Link], *, file: str) -> str:
    """The chain as YAML; pure."""
    documents = [yaml_of({"name": name})]
    for number, link in enumerate(links):
        sketch = Launch(
            name=link.node,
            comment=f"step {link.node} of {name}, exported by Upshift from {file}",
            command=(),
            granted=link.granted,
            settings=link.settings,
            image=link.image,
            environment=link.environment,
        )
        script = _script(link, is_last=number == len(links) - 1)
        documents.append(task_of(sketch, script=script, restarts=link.retry.times))
    return "---\n".join(documents)


def _script(link: Link, *, is_last: bool) -> str:
    lines = [
        _RUN,
        f'upshift() {{ {shlex.join(link.command)} "$@" --run "$run"; }}',
        f"upshift step --node {shlex.quote(link.node)} || {{ upshift end; exit 1; }}",
    ]
    return "\n".join([*lines, *(["upshift end"] if is_last else [])]) + "\n"


def refuse_inexpressible(graph: Graph) -> None:
    """Raise what of a graph a chain cannot express.

    Raises
    ------
    RequestRefused
    """
    if not graph.nodes:
        raise RequestRefused(
            f"pipeline {graph.pipeline} has no steps", fix="A chain of SkyPilot's has one task at least."
        )
    for node in graph.nodes:
        _refuse_mapped(node)
    for name, shape in graph.flow.steps.items() if graph.flow is not None else ():
        if shape.then and shape.kind not in (LINEAR, SPLIT):
            raise RequestRefused(
                f"step {name} goes on with {shape.kind}, which a chain of SkyPilot's tasks cannot express",
                where=shape.location,
                why="Its tasks are written down before anything runs.",
                fix=_ELSEWHERE,
            )
    for name in graph.used:
        definition = graph.steps[name]
        settings = definition.settings
        if settings.resources.most_nodes > 1:
            raise RequestRefused(
                f"step {name} asks for several nodes, which an exported step cannot have",
                where=definition.location,
                fix=_ELSEWHERE,
            )
        if settings.secret_sources:
            raise RequestRefused(
                f"step {name} has secrets, of which an exported file must know nothing",
                where=definition.location,
                fix="Give its machines a role that reads them, or envs of SkyPilotSettings. " + _ELSEWHERE,
            )
        if settings.retry_policy.memory_factor > 1:
            raise RequestRefused(
                f"step {name} asks for more memory when it is tried again, which SkyPilot cannot give",
                where=definition.location,
                fix="Leave memory_factor out, and ask for the memory at once.",
            )


def _refuse_mapped(node: Node) -> None:
    if node.mapped:
        raise RequestRefused(
            f"{node.name} is mapped, which a chain of SkyPilot's tasks cannot express",
            where=node.location,
            why="Its tasks are written down before anything runs, and run one after the other.",
            fix=f"Loop inside a step. {_ELSEWHERE}",
        )
