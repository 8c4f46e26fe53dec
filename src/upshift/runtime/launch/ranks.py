"""The processes of a launch: how many on each node, the device, CPUs and variables of each.

On a machine with several NUMA nodes a process gets the CPUs near its device. A NUMA node is a part of the
CPUs with the memory and the devices that are attached to it; all of that is reached from the CPUs of another
one, too, but later::

    NUMA node 0   CPUs 0-31    GPU 0, GPU 1   ◀── ranks 0 and 1
    NUMA node 1   CPUs 32-63   GPU 2, GPU 3   ◀── ranks 2 and 3

Source: Linux, ``Documentation/ABI/stable/sysfs-devices-node`` and ``sysfs-bus-pci`` (``numa_node``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import attrs

from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec.hardware import Device, Hardware, Launch, Rank
from upshift.model.spec.task import TaskSpec
from upshift.runtime.accelerators import files

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
    from upshift.runtime.launch.launchers import PARALLEL  # no other step needs its tables

    nodes = granted.nodes or 1
    if launch.launcher != PARALLEL.name or launch.processes % nodes == 0:
        return granted
    nodes = next(fewer for fewer in range(nodes, 0, -1) if launch.processes % fewer == 0)
    gpus = granted.gpus and tuple(gpu for gpu in granted.gpus if (gpu.node or 0) < nodes)
    return attrs.evolve(granted, nodes=nodes, gpus=gpus)


def processes(spec: TaskSpec) -> int:
    """How many processes a task has on each node."""
    return 1 if spec.launch is None else spec.launch.each


def ranks_of(spec: TaskSpec, *, address: str, port: int, node: int = 0, nodes: int = 1) -> list[Rank]:
    """Which processes of a task with a launch are to be on a node, by the address of the first of all."""
    count = processes(spec)
    return [
        Rank(
            rank=node * count + number,
            world_size=nodes * count,
            local_rank=number,
            local_world_size=count,
            node=node,
            nodes=nodes,
            address=address,
            port=port,
        )
        for number in range(count)
    ]


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
    from upshift.runtime.launch.launchers import launcher  # no other step needs its tables

    return [f"one process, because the number is not set: {launcher(launch.launcher).processes}=…"]


def _of_cpus(launch: Launch, granted: Hardware, machine: Hardware | None) -> list[str]:
    """Processes that get in each other's way."""
    cpus, those = granted.cpu_count, "that the step is granted"
    if cpus is None and machine is not None:
        cpus, those = machine.cpu_count, "that there are"
    if cpus is None or launch.each <= max(cpus, 1):
        return []
    return [f"{launch.each:,} processes share the {cpus:g} CPU{'' if cpus == 1 else 's'} {those}"]


def _of_devices(launch: Launch, granted: Hardware) -> list[str]:
    from upshift.runtime.launch.launchers import PARALLEL  # no other step needs its tables

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


# -- CPUs near devices ---------------------------------------------------------------------------

_MOST = 1 << 16
"""CPUs of a machine, at most."""


def numa_nodes(root: Path) -> dict[int, frozenset[int]]:
    """The CPUs of each NUMA node, by its number; empty: the kernel says nothing of any."""
    folder = root / "sys/devices/system/node"
    found = {
        number: files.text(folder / f"node{number}/cpulist") for number in files.numbered(folder, "node")
    }
    return {number: frozenset(cpu_numbers(text or "")) for number, text in found.items()}


def cpus_near(devices: Sequence[int | None], known: Mapping[int, frozenset[int]]) -> list[frozenset[int]]:
    """The CPUs near each of these devices, by their nodes; none where all CPUs are equally near."""
    if len(known) < 2:
        return []
    return [known[node] for node in devices if node is not None and known.get(node)]


def shares_of_cpus(
    cpus: Collection[int], known: Mapping[int, frozenset[int]], devices: Sequence[int | None]
) -> list[tuple[int, ...]]:
    """Which of these CPUs each process gets; without a device that is known to be near some, all of them."""
    everywhere = tuple(sorted(cpus))
    local = {node: tuple(sorted(own.intersection(cpus))) for node, own in known.items()}
    local = {node: own for node, own in sorted(local.items()) if own}
    if len(local) < 2:
        return [everywhere] * len(devices)
    if any(node is not None for node in devices):
        return [local.get(-1 if node is None else node, everywhere) for node in devices]
    if len(devices) < len(local):
        return [everywhere] * len(devices)
    in_order = [own for own in local.values() for _ in own]
    return [in_order[(2 * at + 1) * len(in_order) // (2 * len(devices))] for at in range(len(devices))]


def cpu_numbers(text: str) -> list[int]:
    """The CPUs of a list as the kernel writes it: ``0-3,8``."""
    return files.chosen(text, _MOST)


def listed_cpus(cpus: Iterable[int]) -> str:
    """CPUs as the kernel lists them."""
    parts = []
    for _, group in groupby(enumerate(sorted(cpus)), key=lambda pair: pair[1] - pair[0]):
        run = [cpu for _, cpu in group]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return ",".join(parts)


# -- the environment by which a rank knows which one it is, and by which a failure leaves evidence ------

GROUP: Final = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""What a process that is one of several has in its environment, and a process by itself has not."""


THREADS: Final = "OMP_NUM_THREADS"
"""The variable that sizes native thread pools."""


def environment_of(
    launch: Launch,
    rank: Rank,
    *,
    task: str,
    devices: bool,
    own: Mapping[str, str],
    inherited: Mapping[str, str],
    interface: str | None = None,
) -> dict[str, str]:
    """The variables of a rank: of its group, of its step, and the usual ones that nobody has set."""
    usual = defaults(rank, devices=devices, interface=interface)
    missing = {name: value for name, value in usual.items() if name not in inherited}
    return {**missing, **own, **variables(launch, rank, task=task)}


def variables(launch: Launch, rank: Rank, *, task: str) -> dict[str, str]:
    """What torchrun gives a rank, whatever that had before.

    As ``LocalElasticAgent._start_workers`` of PyTorch 2.13 sets it, but for the file that torchrun has errors
    written to. Every attempt is a start of its own, so none is ever a restart. Rank 0 has the store of the
    rendezvous itself: ``TORCHELASTIC_USE_AGENT_STORE`` is False.
    """
    threads = launch.arguments.get("num_cpu_threads_per_process")
    found = {} if threads is None else {THREADS: str(threads)}
    if alone(launch, rank):
        return found
    return found | {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(rank.world_size),
        "LOCAL_WORLD_SIZE": str(rank.local_world_size),
        "GROUP_RANK": str(rank.node),
        "GROUP_WORLD_SIZE": str(rank.nodes),
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(rank.world_size),
        "ROLE_NAME": str(launch.arguments.get("role", "default")),
        "MASTER_ADDR": rank.address,
        "MASTER_PORT": str(rank.port),
        "TORCHELASTIC_RUN_ID": task,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def alone(launch: Launch, rank: Rank) -> bool:
    """Whether this is the one process that ``accelerate launch`` starts without a word of any group."""
    if launch.launcher != "accelerate" or rank.world_size > 1 or "config_file" in launch.files:
        return False
    from upshift.runtime.launch.launchers import ACCELERATE  # no other step needs its tables

    return not any(launch.arguments.get(name) for name in ACCELERATE.on_devices)


def threads_of(launch: Launch, room: int) -> int:
    """Size of the native thread pools of a rank: as was asked for, else its part of the CPUs: ``room``."""
    asked = launch.arguments.get("num_cpu_threads_per_process")
    return max(1, room) if asked is None else int(asked)


def defaults(rank: Rank, *, devices: bool, interface: str | None = None) -> dict[str, str]:
    """What a rank is given where its user has said nothing of it."""
    found = dict(_EVIDENCE)
    if not devices:
        # Without a word of it, Accelerate (1.15, PartialState._prepare_backend) and with it the Trainer of
        # transformers form no group on CPUs: each process takes itself for the only one.
        found["ACCELERATE_USE_CPU"] = "true"
    if rank.nodes == 1:
        interface = "lo"
    if interface is not None:
        # gloo listens where the name of the host leads (ProcessGroupGloo::createDefaultDevice): on Debian to
        # 127.0.1.1, which no other node reaches, and behind a name server that does not answer, for seconds.
        # NCCL looks at the interfaces themselves, and may use several at once: it is left alone.
        found["GLOO_SOCKET_IFNAME"] = interface
    return found


_EVIDENCE: Final[Mapping[str, str]] = {
    # As torchrun does: a collective that times out ends the process, instead of leaving it to wait for ever.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    # NCCL says which call failed, and why; it is silent otherwise. "Production minimum", by
    # https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html (November 2026).
    "NCCL_DEBUG": "WARN",
    # DistributedDataParallel names the parameters that got no gradient when ranks wait for these:
    # https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug (November 2026).
    # DETAIL would compare every collective over all ranks, which costs.
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
}
"""The flight recorder of NCCL's collectives is on as PyTorch comes (2.13, ``FlightRecorder.hpp``)."""
