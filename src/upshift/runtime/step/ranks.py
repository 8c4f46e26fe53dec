"""One of several processes of a task, made what its launcher would have made of it before any user code runs.

Which one it is has been in its environment since it was started (:mod:`upshift.runtime.launch.ranks`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import Any, Final

from upshift.errors import UpshiftError
from upshift.model.spec import Launch, Rank, TaskSpec
from upshift.runtime.launch.ranks import GROUP, SEVERAL_A_DEVICE, alone, devices_of, own_device
from upshift.runtime.messages import tell
from upshift.runtime.step.context import current
from upshift.runtime.usercode import ImportHook

STAYS: Final = 2.0
"""Seconds that the process of rank 0 stays for the others at most."""
_STATES: Final = ("Accelerator", "AcceleratorState", "PartialState")
"""Classes of Accelerate that know how many processes there are."""
_ACCELERATE: Final = "accelerate.state"
"""The module with these."""
_OTHER_WAYS: Final = ("jax", "tensorflow", "mpi4py", "horovod", "dask", "ray")
"""Packages by which processes may work together without PyTorch."""


class Misplaced(UpshiftError):
    """A process is not the one that it was to be."""


def world_size(launch: Launch, rank: Rank) -> int | None:
    """How many processes the environment says that there are; None: it says nothing that makes sense."""
    if alone(launch, rank):
        return 1
    found = os.environ.get("WORLD_SIZE", "")
    return int(found) if found.isdecimal() else None


def enter(spec: TaskSpec, launch: Launch, rank: Rank) -> None:
    """Make this process the one that ``rank`` says, and compare what it finds with that."""
    if alone(launch, rank):
        for name in GROUP:  # of a group that somebody else is in, who has started all of this
            os.environ.pop(name, None)
    if launch.launcher == "accelerate":
        from upshift.runtime.launch.accelerate import ask

        asked = ask(launch, rank, devices_of(spec, rank.node))
        os.environ.update(asked.variables)
        tell(asked.remarks)
    _compare(spec, launch, rank)
    _watch_count(spec, rank)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None:  # it was imported before the variable was there
        getattr(distributed, "set_debug_level_from_env", lambda: None)()


def look_at(function: Callable[..., object], where: str | None) -> None:
    """Raise if a function that travels by value has brought along an ``Accelerator`` of another process."""
    for name, value in getattr(function, "__globals__", {}).items():
        kind = type(value)
        if kind.__module__.startswith("accelerate.") and kind.__name__ in _STATES:
            raise Misplaced(
                f"the step uses {name!r}, which was made by one process and knows of no other",
                where=where,
                why="What a step of a notebook uses travels with it, as it is.",
                fix=f"Make it in the step: {name} = {kind.__name__}().",
            )


def _compare(spec: TaskSpec, launch: Launch, rank: Rank) -> None:
    if not alone(launch, rank):
        for name, expected in (("RANK", rank.rank), ("WORLD_SIZE", rank.world_size)):
            found = os.environ.get(name)
            if found != str(expected):
                raise Misplaced(
                    f"a process of {spec.task} was started as {name}={expected} and finds {found!r}",
                    fix=f"Do not set {name} for the step: Upshift does.",
                )
    devices = devices_of(spec, rank.node)
    several = any(device.vendor in SEVERAL_A_DEVICE for device in devices)
    if launch.devices and devices and not several and rank.local_world_size > len(devices):
        raise Misplaced(
            f"{rank.local_world_size} processes of {spec.task} are to have a device each, "
            f"and its node has {len(devices)}",
            fix="Ask for as many processes on each node as devices.",
        )


# -- whether they work together -------------------------------------------------------------------


def _watch_count(spec: TaskSpec, rank: Rank) -> None:
    """Look at how many processes Accelerate counts as soon as it has counted them."""
    devices = devices_of(spec, rank.node)
    if rank.world_size == 1 or any(device.vendor in SEVERAL_A_DEVICE for device in devices):
        return

    def watch(_: str, module: Any) -> None:
        count = module.PartialState.__init__

        @wraps(count)
        def counted(self: object, *args: Any, **kwargs: Any) -> None:
            count(self, *args, **kwargs)
            confirm_count(rank)

        module.PartialState.__init__ = counted

    if (state := sys.modules.get(_ACCELERATE)) is not None:
        watch(_ACCELERATE, state)
    else:
        ImportHook(lambda name: name == _ACCELERATE, after=watch).begin()


def confirm_count(rank: Rank) -> None:
    """Compare how many processes Accelerate counts, if it has, with how many there are."""
    found = _counted()
    if found in (None, rank.world_size) or current.shares():
        return
    raise Misplaced(
        f"Accelerate counts {found} process{'' if found == 1 else 'es'} where {rank.world_size} were started",
        why="PartialState() alone does not join processes on CPUs, so that each would do all of the work.",
        fix="Make an Accelerator() before any PartialState(), or PartialState(cpu=True).",
    )


def confirm_world(rank: Rank) -> None:
    """Compare the world in which the step has worked, now that it has returned, with the one asked for."""
    if rank.world_size == 1 or current.shares():
        return
    confirm_count(rank)
    if _group_of_torch() == 1:
        raise Misplaced(
            f"each of the {rank.world_size} processes has worked in a group of its own",
            why="Each would have done all of the work.",
            fix="Leave out rank and world_size where the step calls init_process_group(); "
            "to share the work out without a group, ask for upshift.current.rank.",
        )


# -- afterwards -----------------------------------------------------------------------------------


def linger(rank: Rank) -> None:
    """Stay a little, once the step has returned here, where the others may need this process to get on.

    The process of rank 0 has the store by which all meet: without it one fails that is still about to join
    the group, or to leave it. It stays until all have returned. Not for long, though: who waits for this
    process's part in a computation is to see that it has ended.
    """
    if rank.rank == 0 and rank.world_size > 1 and joined():
        from upshift.runtime.launch.network import wait_until_free  # no other rank needs it

        wait_until_free(rank.port, STAYS)


def group_size() -> int | None:
    """How many processes the group has in which this one works, as PyTorch or Accelerate found it.

    None: there is no group, or none any more.
    """
    size = _group_of_torch()
    return _counted() if size is None else size


def joined() -> bool:
    """Whether this process has ever been in a group, so that no other one waits for it to join."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and _had_a_group(distributed)


def _group_of_torch() -> int | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return None


def _counted() -> int | None:
    """How many processes Accelerate has counted; None: it has not."""
    state: Any = sys.modules.get(_ACCELERATE)
    shared = getattr(getattr(state, "PartialState", None), "_shared_state", None) or {}
    found = shared.get("num_processes")
    return found if isinstance(found, int) else None


def remarks(rank: Rank) -> Iterator[str]:
    """What is said of processes that have returned without ever having worked together, all of them."""
    if rank.rank != 0 or rank.world_size == 1:
        return
    size = group_size()
    if joined():
        if size not in (None, rank.world_size):
            yield (
                f"of the {rank.world_size} processes rank 0 is in a group of {size}: leave out rank and "
                "world_size where the step calls init_process_group(), and all of them are in one"
            )
        return
    if current.shares() or size == rank.world_size:
        return
    if size is None and any(name in sys.modules for name in _OTHER_WAYS):
        return
    yield (
        f"the {rank.world_size} processes never formed a group, so each of them did all of the work, unless "
        "the step shares it out by itself. Make an Accelerator() in the step, or call "
        "torch.distributed.init_process_group(); or share the work out by upshift.current.rank."
    )


def strayed(spec: TaskSpec, rank: Rank) -> Iterator[str]:
    """What is said of a rank that has computed on the device of another one, and never on its own."""
    torch: Any = sys.modules.get("torch")
    if torch is None or own_device(spec, rank) is None or not torch.cuda.is_initialized():
        return
    visible = range(torch.cuda.device_count())
    used = [number for number in visible if torch.cuda.max_memory_allocated(number) > 0]
    if used and rank.local_rank in visible and rank.local_rank not in used:
        yield (
            f"rank {rank.rank} has worked on GPU {', '.join(map(str, used))} and never on its own, "
            f'GPU {rank.local_rank}: call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first'
        )


def _had_a_group(distributed: ModuleType) -> bool:
    """Whether a process group of PyTorch was made in this process, and be it that it is gone again.

    ``destroy_process_group`` leaves behind the name of the method by which the processes met, and a hook for
    uncaught exceptions (``init_process_group``, PyTorch 2.0 to 2.13).
    """
    made: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return bool(
        (distributed.is_available() and distributed.is_initialized())
        or getattr(made, "_default_pg_init_method", None) is not None
        or getattr(sys.excepthook, "__name__", "") == "_distributed_excepthook"
    )
