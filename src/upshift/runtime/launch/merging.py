"""What a decorator asks of a launcher, and what that is beside the request of its step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.errors import MisuseError, SettingsError, user_location
from upshift.model.checks import MOST_PROCESSES_EACH
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.hardware import Launch
from upshift.runtime.launch.accelerate import CONFIG, DEEPSPEED, read_config, read_deepspeed
from upshift.runtime.launch.launchers import Launcher, launcher
from upshift.runtime.launch.ranks import SEVERAL_A_DEVICE


@attrs.frozen(kw_only=True)
class LaunchRequest:
    """How many processes, and how they are started: as one decorator said it."""

    launcher: str  # "accelerate", "torchrun" or "parallel"
    where: str | None = None  # the user's line
    said: str = ""  # the decorator with what it was given there
    processes: int | None = None  # how many over all nodes; None: it does not say
    per_node: int | None = None  # how many on each node; None: it does not say
    counted: bool = True  # whether these are what somebody has said
    devices: bool | None = None  # whether each has a device of its own; None: if the step asks for any
    # The argument that says so, as it was given; None: one of the launcher's on_devices, or its file.
    devices_by: str | None = None
    nodes: int | tuple[int, int] | None = None  # how many; the least and the most, where a range will do
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    port: int | None = None
    hang: float | None = None
    numa_binding: bool | None = None
    files: Mapping[str, Path] = attrs.field(factory=dict)  # files that its arguments name, by argument
    one_node: str | None = None  # the argument by which there is one node only; None: none says so

    @property
    def meant(self) -> Launcher:
        """The launcher, and what it calls things."""
        return launcher(self.launcher)

    @property
    def origin(self) -> str:
        """Who said it: ``train.py:3 (@run_with_accelerate)``."""
        decorator = self.meant.decorator
        return f"{self.where} ({decorator})" if self.where else decorator

    def beside(
        self, request: ResourceSettings, origins: Mapping[str, str]
    ) -> tuple[Launch, ResourceSettings, dict[str, str]]:
        """The launch of a step, what the step then asks for, and where that comes from."""
        asked, texts = _with_files(self)
        launch, request, found = merged(asked, request, origins)
        return attrs.evolve(launch, files=texts), request, found


def wrapped_twice(first: LaunchRequest, second: str, said: str, name: str = "train") -> MisuseError:
    """The error for two launchers on one step."""
    either = first.said if said == first.said else f"{first.said}  # or {said}"
    return MisuseError(
        f"step {name!r} runs with {first.launcher} already, and is wrapped again with run_with_{second}",
        where=" and ".join(filter(None, dict.fromkeys((user_location(), first.where)))),
        why="One launcher starts the processes of a step.",
        fix=f"Put one of them above the step, with all of its arguments:\n{right_way(either, name)}",
    )


def right_way(said: str, name: str) -> str:
    """Where a decorator stands that was written so."""
    return f"    {said}\n    @step\n    def {name}(…): ..."


def merged(
    asked: LaunchRequest, request: ResourceSettings, origins: Mapping[str, str]
) -> tuple[Launch, ResourceSettings, dict[str, str]]:
    """One request of a launcher and one of hardware, made into one: nodes, then processes, then devices."""
    request, by_launcher = _with_nodes(asked, request, origins)
    nodes = request.most_nodes
    processes = asked.processes if asked.per_node is None else asked.per_node * nodes
    if processes is not None and processes % nodes:
        raise _contradiction(
            asked,
            origins,
            _count(asked, processes),
            ("num_nodes", request.num_nodes),
            "Every node starts as many processes as the others"
            + (", and there are so many on the most nodes." if request.is_elastic else "."),
            f"Ask for a multiple of {nodes} processes.",
        )
    each = None if processes is None else processes // nodes
    if (each or 0) > MOST_PROCESSES_EACH:
        raise SettingsError(
            f"{_count(asked, processes or 0)}: more than {MOST_PROCESSES_EACH:,} processes on one node",
            where=asked.origin,
            fix="Start fewer, or ask for more nodes: num_nodes=….",
        )
    devices = _devices(asked, request, origins, each, nodes)
    said = request.gpu_count if request.implied_count is None else None
    added: dict[str, int] = {}
    if devices and said is None and each is not None:
        added["gpu_count"] = each
    request = ResourceSettings(**{**request.explicit(), **added}) if added else request
    if each is None:  # one for each device, or one on each node
        each = (request.gpu_count or 1) if devices else 1
    launch = Launch(
        launcher=asked.launcher,
        processes=each * nodes,
        counted=asked.counted or devices,
        devices=devices,
        arguments=asked.arguments,
        port=asked.port or None,
        hang=asked.hang,
        numa_binding=asked.numa_binding,
    )
    return launch, request, {**origins, **dict.fromkeys((*by_launcher, *added, "launch"), asked.origin)}


def _with_files(asked: LaunchRequest) -> tuple[LaunchRequest, dict[str, str]]:
    """A request with what its files say where it does not say it itself, and their texts by argument."""
    texts: dict[str, str] = {}
    deepspeed = asked.files.get(DEEPSPEED)
    if CONFIG in asked.files:
        config = read_config(asked.files[CONFIG], where=asked.where)
        texts[CONFIG] = config.text
        deepspeed = deepspeed or config.deepspeed
        asked = attrs.evolve(
            asked,
            processes=config.processes if asked.processes is None else asked.processes,
            counted=asked.counted or config.processes is not None,
            nodes=config.nodes if asked.nodes is None else asked.nodes,
            devices=config.devices if asked.devices is None else asked.devices,
            port=config.port if asked.port is None else asked.port,
            numa_binding=config.numa_binding if asked.numa_binding is None else asked.numa_binding,
        )
    if deepspeed is not None:
        texts[DEEPSPEED] = read_deepspeed(deepspeed, where=asked.where)
    return asked, texts


def _with_nodes(
    asked: LaunchRequest, request: ResourceSettings, origins: Mapping[str, str]
) -> tuple[ResourceSettings, tuple[str, ...]]:
    """The request with the number of nodes, and the field if it comes from the launcher.

    Both may say it, and then the same.
    """
    said, name = request.num_nodes, asked.meant.nodes
    if asked.one_node and request.most_nodes > 1:
        why, fix = "It is for the processes of one node.", f"Leave {asked.one_node.partition('=')[0]} out."
        raise _contradiction(asked, origins, asked.one_node, ("num_nodes", said), why, fix)
    if asked.nodes is not None and said is not None and asked.nodes != said:
        why, fix = "Both are the number of nodes.", f"Leave {name} out."
        raise _contradiction(asked, origins, f"{name}={asked.nodes}", ("num_nodes", said), why, fix)
    if said is not None or asked.nodes in (None, 1):
        return request, ()
    return ResourceSettings(**{**request.explicit(), "num_nodes": asked.nodes}), ("num_nodes",)


def _devices(
    asked: LaunchRequest, request: ResourceSettings, origins: Mapping[str, str], each: int | None, nodes: int
) -> bool:
    """Whether each process has a device of its own."""
    if not (bool(request.gpu_count) if asked.devices is None else asked.devices):
        return False
    said = request.gpu_count if request.implied_count is None else None
    if said == 0:
        why = "Each process is to have a GPU."
        fix = "Leave gpu_count out: then as many are asked for as there are processes."
        raise _contradiction(asked, origins, _of_devices(asked), ("gpu_count", 0), why, fix)
    named = list(map(str, request.named))
    accelerator = ("accelerator", named) if named else ("gpu_vendor", request.gpu_vendor)
    several = [one.vendor in SEVERAL_A_DEVICE for one in request.alternatives]
    if any(several):
        why = "Its devices take several processes each, one for each core."
        if not all(several):
            fix = "Ask for the one or the other: how many processes there are follows from the kind."
            raise _contradiction(asked, origins, asked.meant.decorator, accelerator, why, fix)
        if each is None and asked.devices:
            fix = f"Set the number of processes: {asked.meant.processes}=…."
            raise _contradiction(asked, origins, _of_devices(asked), accelerator, why, fix)
        return False
    if said is None and each is None and request.implied_count is None:
        raise SettingsError(
            f"{_of_devices(asked)} asks for one process per GPU, and the number of GPUs is not set",
            where=asked.origin,
            fix=f"Set {asked.meant.processes}=…, or gpu_count=… of the step's resources.",
        )
    if len({one.count for one in request.alternatives}) > 1:
        why = "How many processes there are follows from the number of devices."
        fix = "Ask for the same number of each kind."
        raise _contradiction(asked, origins, asked.meant.decorator, accelerator, why, fix)
    if each is not None and said is not None and each > said:
        of_each, there = ("", "") if nodes == 1 else (f" on each of {nodes} nodes", " on each")
        why = "Each process needs its own GPU."
        fix = f"Ask for {each} GPUs, or start {said} processes{there}."
        raise _contradiction(
            asked, origins, _count(asked, each * nodes), ("gpu_count", f"{said}{of_each}"), why, fix
        )
    return True


def _of_devices(asked: LaunchRequest) -> str:
    """The arguments that give each process a device."""
    if asked.devices_by is not None:
        return asked.devices_by
    given = [f"{name}=True" for name in asked.meant.on_devices if asked.arguments.get(name)]
    return given[0] if given else f"distributed_type of {CONFIG}"


def _count(asked: LaunchRequest, processes: int) -> str:
    """The number of processes, as the user said it."""
    return f"{asked.meant.processes}={processes if asked.per_node is None else asked.per_node}"


def _contradiction(
    asked: LaunchRequest,
    origins: Mapping[str, str],
    said: str,
    requested: tuple[str, Any],
    why: str,
    fix: str,
) -> SettingsError:
    """What was said of the launcher, against a field of the request and its value."""
    field, value = requested
    decorator = asked.meant.decorator
    return SettingsError(
        f"{said} contradicts {field}={value}"
        if said == decorator
        else f"{decorator}: {said} contradicts {field}={value}",
        where=" and ".join(dict.fromkeys(filter(None, (asked.origin, origins.get(field))))),
        why=why,
        fix=fix,
    )
