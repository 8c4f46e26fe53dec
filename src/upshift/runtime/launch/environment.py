"""The environment variables by which a rank knows which one it is, and by which a failure leaves evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from upshift.model.spec.hardware import Launch, Rank

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
    from upshift.runtime.launch.arguments.meanings import ACCELERATE  # no other step needs its tables

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
