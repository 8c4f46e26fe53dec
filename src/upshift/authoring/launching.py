"""``@run_with_accelerate`` and ``@run_with_torchrun``: many processes for one step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import attrs

from upshift.authoring.composing.scope import current_scope
from upshift.authoring.options import StepOptions
from upshift.authoring.steps import Step, add_options
from upshift.errors import MisuseError, SettingsError, user_frame, user_location
from upshift.model.checks import MOST_NODES, MOST_PROCESSES, bad_value, local_path, shown
from upshift.model.settings.step import Seconds, checked_seconds
from upshift.runtime import usercode
from upshift.runtime.launch.accelerate import CONFIG, DEEPSPEED
from upshift.runtime.launch.arguments import check, refuse_idle
from upshift.runtime.launch.launchers import ACCELERATE, TORCHRUN, Launcher
from upshift.runtime.launch.merging import LaunchRequest, right_way, wrapped_twice
from upshift.runtime.step.context import current

F = TypeVar("F", bound=Callable[..., Any])

_OWN = ("hang",)
_CALLERS = ("upshift.authoring.composing.graph", "upshift.runtime.")
"""What calls functions of pipelines and of steps."""


@overload
def run_with_accelerate(function: F, /) -> F: ...
@overload
def run_with_accelerate(*, hang: Seconds | None = None, **arguments: Any) -> Callable[[F], F]: ...
def run_with_accelerate(function: Any = None, /, *, hang: Seconds | None = None, **arguments: Any) -> Any:
    """Run a step in several processes, as ``accelerate launch`` does.

    Each process calls the function with the same arguments; the value that the one of rank 0 returns is the
    step's output. The step makes its own ``accelerate.Accelerator``.

    Parameters
    ----------
    hang
        Seconds, or a ``datetime.timedelta``, without progress after which the processes are stopped; default:
        that is only said.
    arguments
        Those of ``accelerate launch`` by their Python names: ``num_processes=4`` over all nodes,
        ``multi_gpu=True``, ``mixed_precision="bf16"``, …. What becomes of each is in the documentation.

    Raises
    ------
    SettingsError
        An argument is unknown, its value is invalid, or it cannot mean anything here.
    MisuseError
        It is applied inside a pipeline, or to a step that is run with a launcher already.
    """
    return _launched(ACCELERATE, _accelerate, function, hang, arguments)


@overload
def run_with_torchrun(function: F, /) -> F: ...
@overload
def run_with_torchrun(*, hang: Seconds | None = None, **arguments: Any) -> Callable[[F], F]: ...
def run_with_torchrun(function: Any = None, /, *, hang: Seconds | None = None, **arguments: Any) -> Any:
    """Run a step in several processes, as ``torchrun`` does.

    Each process calls the function with the same arguments; the value that the one of rank 0 returns is the
    step's output. The step calls ``torch.distributed.init_process_group()`` itself.

    Parameters
    ----------
    hang
        Seconds, or a ``datetime.timedelta``, without progress after which the processes are stopped; default:
        that is only said.
    arguments
        Those of ``torchrun`` by their Python names: ``nproc_per_node=4``, or ``"gpu"`` for one for each GPU,
        ``nnodes=2``, …. What becomes of each is in the documentation.

    Raises
    ------
    SettingsError
        An argument is unknown, its value is invalid, or it cannot mean anything here.
    MisuseError
        It is applied inside a pipeline, or to a step that is run with a launcher already.
    """
    return _launched(TORCHRUN, _torchrun, function, hang, arguments)


def _launched(
    launcher: Launcher,
    request_of: Callable[[Mapping[str, Any], Seconds | None], LaunchRequest],
    function: Any,
    hang: Seconds | None,
    arguments: Mapping[str, Any],
) -> Any:
    """The decorator, or what it makes of a function."""
    said = _said(launcher, arguments, hang)
    _refuse_misuse(launcher, function, said)
    try:
        request = request_of(_by_name(launcher, function, arguments), hang)
        options = StepOptions(launch=attrs.evolve(request, said=said))
    except SettingsError:
        if not usercode.loading_to_work():
            raise
        # A worker may have another version of the launcher, or none: it is there for another step.
        return (lambda target: target) if function is None else function

    def decorate(target: F) -> F:
        _refuse_misuse(launcher, target, said)
        return add_options(target, options)

    return decorate if function is None else decorate(function)


def _accelerate(arguments: Mapping[str, Any], hang: Seconds | None) -> LaunchRequest:
    checked = check("accelerate", arguments, own=_OWN)
    owner = ACCELERATE.decorator
    alone = CONFIG not in checked  # which may switch things on
    if alone:
        refuse_idle("accelerate", checked, arguments)
    given = [name for name in ACCELERATE.rivals if checked.get(name)]
    if len(given) > 1:
        raise SettingsError(
            f"{owner}: {' and '.join(f'{name}=True' for name in given)} contradict each other",
            where=user_location(),
            fix="Choose one of them.",
        )
    sharded = checked.get("use_fsdp") and checked.get("fsdp_version") == "2"
    if alone and checked.get("use_parallelism_config") and not sharded:
        raise SettingsError(
            f"{owner}: use_parallelism_config=True needs use_fsdp=True and fsdp_version=2",
            where=user_location(),
            fix="Set these two, or leave it out.",
        )
    on_devices = any(checked.get(name) for name in ACCELERATE.on_devices)
    return LaunchRequest(
        launcher="accelerate",
        where=user_location(),
        counted=ACCELERATE.processes in checked,
        processes=checked.pop(ACCELERATE.processes, None),
        nodes=checked.pop(ACCELERATE.nodes, None),
        devices=True if on_devices else False if checked.get("cpu") else None,
        port=checked.pop(ACCELERATE.port, None),
        files={name: _file(checked.pop(name)) for name in (CONFIG, DEEPSPEED) if name in checked},
        hang=checked_seconds(owner, "hang", hang),
        numa_binding=checked.pop(ACCELERATE.numa, None),
        arguments={name: value for name, value in checked.items() if name not in ("quiet", "same_network")},
    )


def _torchrun(arguments: Mapping[str, Any], hang: Seconds | None) -> LaunchRequest:
    checked = check("torchrun", arguments, own=_OWN)
    owner = TORCHRUN.decorator
    alone = checked.pop("standalone", False)
    nodes = _nodes(owner, checked.pop(TORCHRUN.nodes, None), arguments.get(TORCHRUN.nodes))
    if alone and nodes not in (None, 1):
        raise SettingsError(
            f"{owner}: standalone=True contradicts nnodes={shown(arguments[TORCHRUN.nodes])}",
            where=user_location(),
            why="It is for the processes of one node.",
            fix="Leave standalone out.",
        )
    near = checked.pop(TORCHRUN.numa, None)
    if near not in (None, "node"):
        raise SettingsError(
            f"{owner}: {TORCHRUN.numa}={near!r} cannot be honoured",
            where=user_location(),
            why="Upshift keeps each process to the CPUs of one NUMA node, no closer and no wider.",
            fix='Write numa_binding="node", or leave it out.',
        )
    counted = TORCHRUN.processes in checked
    each = checked.pop(TORCHRUN.processes, "1")
    per_node, devices = _per_node(owner, each, arguments.get(TORCHRUN.processes))
    return LaunchRequest(
        launcher="torchrun",
        where=user_location(),
        counted=counted,
        per_node=per_node,
        devices=devices,
        devices_by=f"{TORCHRUN.processes}={shown(each)}" if devices else None,
        nodes=nodes,
        port=checked.pop(TORCHRUN.port, None),
        hang=checked_seconds(owner, "hang", hang),
        numa_binding=None if near is None else True,
        arguments=checked,
        one_node="standalone=True" if alone else None,
    )


def _by_name(launcher: Launcher, function: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments, where none was given by position."""
    if function is None or (callable(function) and not arguments):
        return arguments
    said = "…" if callable(function) else repr(function)
    raise SettingsError(
        f"{launcher.decorator} takes its arguments by name, not by position",
        where=user_location(),
        fix=f"Write {launcher.decorator}({launcher.processes}={said}) above the step.",
    )


# Misuse


def _refuse_misuse(launcher: Launcher, target: Any, said: str) -> None:
    """Refuse to be applied in a pipeline or in a step that runs, and to a step that has a launcher."""
    name = getattr(target, "__name__", None) or "train"
    inside = "a pipeline" if current_scope() is not None else "a running step" if current else None
    if inside and not _while_imported():
        shown = said if said.endswith(")") else f"{said}({launcher.processes}=…)"  # else it is one process
        raise MisuseError(
            f"run_with_{launcher.name} is applied inside {inside}",
            where=user_location(),
            why="It is an option of the step that sets how the step runs.",
            fix=f"Put it above the step, and call the step in the pipeline:\n{right_way(shown, name)}",
        )
    if isinstance(target, Step) and target.options.launch is not None:
        raise wrapped_twice(target.options.launch, launcher.name, said, name)


def _said(launcher: Launcher, arguments: Mapping[str, Any], hang: Seconds | None) -> str:
    """The decorator with what it was given."""
    given = {**arguments, **({} if hang is None else {"hang": hang})}
    refused = launcher.refused
    said = ", ".join(f"{n}={refused[n].shown(v) if n in refused else shown(v)}" for n, v in given.items())
    return f"{launcher.decorator}({said})" if said else launcher.decorator


def _while_imported() -> bool:
    """Whether this is at the top level of a module, which a pipeline or a step may import while it runs."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        if str(frame.f_globals.get("__name__")).startswith(_CALLERS):
            return False
        frame = frame.f_back
    return frame is not None


# Values that the parsers take as texts


def _nodes(owner: str, value: str | None, given: Any) -> int | tuple[int, int] | None:
    """The number of nodes that ``nnodes`` is, or the least and the most of a range, ``"1:4"``."""
    if value is None:
        return None
    texts = value.split(":")
    numbers = [
        _count(owner, "nnodes", text, given, MOST_NODES, 'a whole number, or a range such as "2:4",')
        for text in texts[:2]
    ]
    if len(texts) > 2 or numbers[0] > numbers[-1]:
        raise bad_value(owner, "nnodes", given, 'a range with the least before the most: "2:4"')
    return numbers[0] if numbers[0] == numbers[-1] else (numbers[0], numbers[-1])


def _per_node(owner: str, value: str, given: Any) -> tuple[int | None, bool | None]:
    """How many processes on a node, None for as many as GPUs; and whether each has one."""
    if value in ("gpu", "auto"):
        return None, True
    if value in ("cpu", "xpu"):
        raise SettingsError(
            f"{owner}: nproc_per_node={shown(value)} cannot be honoured",
            where=user_location(),
            why="How many processes a step has must not depend on the machine that it comes to.",
            fix="Give a number: nproc_per_node=4."
            if value == "cpu"
            else 'Use "gpu", and ResourceSettings(gpu_vendor="intel", gpu_count=…).',
        )
    return _count(owner, "nproc_per_node", value, given, MOST_PROCESSES, '"gpu", or a whole number'), None


def _count(owner: str, name: str, value: str, given: Any, most: int, what: str) -> int:
    if not value.isdecimal() or len(value) > len(str(most)) or not 1 <= int(value) <= most:
        raise bad_value(owner, name, given, f"{what} from 1 to {most:,}")
    return int(value)


def _file(value: str) -> Path:
    """A path, from the working folder; where there is none, from the folder of the user's code."""
    frame = user_frame()
    try:
        here = local_path(value)
    except ValueError as error:
        raise SettingsError(
            f"{ACCELERATE.decorator}: the path {shown(value)} {error}",
            where=user_location(),
            fix="Name a configuration file.",
        ) from None
    beside = Path(frame.f_code.co_filename).absolute().parent / value if frame else here
    return beside if beside.exists() and not here.exists() else here
