"""How many processes of a launch a node starts, by the hardware that it grants, and which device each has."""

from __future__ import annotations

import attrs

from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.hardware import Device, Hardware
from upshift.model.spec.launch import Launch, Rank
from upshift.model.spec.task import TaskSpec

SEVERAL_A_DEVICE = ("neuron", "tpu")
"""Vendors whose devices take several processes, one for each core."""


def placed(launch: Launch, request: ResourceSettings, granted: Hardware) -> Launch:
    """The launch with its number of processes on each node.

    With devices there is one process for each that is granted, or one on CPUs where there is none. Where
    processes have no devices as many start as can be shared out equally over the nodes, be these fewer too;
    but one on each at least. Where several numbers of nodes will do, each has as many as it had of the most.
    """
    if launch.devices:
        each = min(launch.processes // request.most_nodes, len(granted.gpus or ()))
    elif request.is_elastic:
        each = launch.processes // request.most_nodes
    else:
        each = launch.processes // (granted.nodes or 1)
    return attrs.evolve(launch, per_node=max(each, 1))


def evenly(launch: Launch, granted: Hardware) -> Hardware:
    """The hardware, with no more nodes than share the processes of a flow's ``num_parallel`` equally."""
    from upshift.runtime.launch.arguments.meanings import PARALLEL  # no other step needs its tables

    nodes = granted.nodes or 1
    if launch.launcher != PARALLEL.name or launch.processes % nodes == 0:
        return granted
    nodes = next(fewer for fewer in range(nodes, 0, -1) if launch.processes % fewer == 0)
    gpus = granted.gpus and tuple(gpu for gpu in granted.gpus if (gpu.node or 0) < nodes)
    return attrs.evolve(granted, nodes=nodes, gpus=gpus)


def devices_of(spec: TaskSpec, node: int) -> tuple[Device, ...]:
    """The devices that the processes of a node have been granted."""
    devices = (spec.granted.gpus if spec.granted is not None else None) or ()
    own = tuple(device for device in devices if device.node == node)
    return own or devices


def own_device(spec: TaskSpec, rank: Rank) -> Device | None:
    """Which of the devices granted is for one process: that which ``LOCAL_RANK`` names; None: none is."""
    devices = devices_of(spec, rank.node) if spec.launch is not None and spec.launch.devices else ()
    return devices[rank.local_rank] if rank.local_rank < len(devices) else None


def why_fewer(launch: Launch, granted: Hardware) -> str:
    """Why a launch that is placed has fewer processes than it asked for."""
    nodes = granted.nodes or 1
    if launch.devices and not granted.gpus:
        return "each was to have a GPU, and it gets none"
    if launch.devices and launch.each == len(granted.gpus or ()):
        return "one for each GPU that it gets"
    return f"{launch.each} on each node, and it gets {nodes} node{'' if nodes == 1 else 's'}"


def world_size(launch: Launch, granted: Hardware) -> int:
    """How many processes start over all nodes of a launch that is placed."""
    return launch.each * (granted.nodes or 1)


def remarks(launch: Launch, granted: Hardware, machine: Hardware | None = None) -> list[str]:
    """What is worth a word though it is done as it was asked for."""
    return [*_alone(launch, granted), *_of_cpus(launch, granted, machine), *_of_devices(launch, granted)]


def _alone(launch: Launch, granted: Hardware) -> list[str]:
    if launch.counted or world_size(launch, granted) > 1:
        return []
    from upshift.runtime.launch.arguments.meanings import launcher  # no other step needs its tables

    return [f"it is one process, since nothing says how many: {launcher(launch.launcher).processes}=…"]


def _of_cpus(launch: Launch, granted: Hardware, machine: Hardware | None) -> list[str]:
    """Processes that get in each other's way."""
    cpus, those = granted.cpu_count, "that the step is granted"
    if cpus is None and machine is not None:
        cpus, those = machine.cpu_count, "that there are"
    if cpus is None or launch.each <= max(cpus, 1):
        return []
    return [f"{launch.each:,} processes share the {cpus:g} CPU{'' if cpus == 1 else 's'} {those}"]


def _of_devices(launch: Launch, granted: Hardware) -> list[str]:
    from upshift.runtime.launch.arguments.meanings import PARALLEL  # no other step needs its tables

    gpus = len(granted.gpus or ()) * (granted.nodes or 1)
    if launch.launcher == PARALLEL.name:  # each process has all those of its node
        return []
    if not gpus or any(gpu.vendor in SEVERAL_A_DEVICE for gpu in granted.gpus or ()):
        return []
    the_gpus = "the GPU" if gpus == 1 else f"the {gpus} GPUs"
    if not launch.devices:
        return [f"its processes are to use CPUs: {the_gpus} will be idle"]
    size = world_size(launch, granted)
    if size < gpus:
        use = "1 process uses 1" if size == 1 else f"{size} processes use {size}"
        return [f"{use} of {the_gpus}: each has one of its own"]
    return []
