"""What ``accelerate launch`` would put into the environment of its processes, asked of the installed one.

Its parser takes the arguments, and its own functions make variables of them, so that a version knows what it
knows. Left out is what Upshift decides itself: where the processes meet, how many threads each has, and which
devices it sees. Only a process that is to run the user's function may import this: it takes as long as torch.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from upshift.errors import MissingExtra, UpshiftError
from upshift.model.spec.hardware import Device, Launch, Rank
from upshift.runtime.launch.config_file import CONFIG, DEEPSPEED
from upshift.runtime.launch.launchers import ACCELERATE
from upshift.runtime.launch.ranks import THREADS
from upshift.runtime.storage import home_folders

_OWN: Final = ("MASTER_ADDR", "MASTER_PORT", THREADS, "PYTHONPATH")
_PINS: Final = ("KMP_AFFINITY", "KMP_BLOCKTIME")
"""They pin the threads of one process to the first CPUs there are: of several, all to the same ones."""
_NO_P2P: Final = "RTX 40"
"""Models that Accelerate knows to need NCCL's detours with older drivers (``check_cuda_p2p_ib_support``)."""


class Asked(NamedTuple):
    """Accelerate's answer."""

    variables: Mapping[str, str]  # to be set
    remarks: Sequence[str]  # lines for the step's log


def ask(launch: Launch, rank: Rank, devices: Sequence[Device]) -> Asked:
    """What the installed Accelerate would set for a launch, in this process."""
    commands, preparing = _imported()
    arguments = {name: value for name, value in launch.arguments.items() if name not in ACCELERATE.decided}
    remarks = list(_default_config(commands, launch, rank))
    kinds, config = ACCELERATE.on_devices, launch.files.get(CONFIG)
    cpu = bool(arguments.get("cpu")) or not devices
    if cpu:
        asked = [name for name in kinds if arguments.pop(name, False) and name != "multi_gpu"]
        remarks += [f"{name} is for devices, and here are none: Accelerate leaves it out" for name in asked]
        arguments["cpu"] = True
    elif rank.world_size == 1:
        arguments.pop("multi_gpu", None)  # it takes two, by Accelerate
    elif config is None and not any(arguments.get(name) for name in kinds):
        arguments["multi_gpu"] = True
    threads = os.environ.get(THREADS, "")  # "4,2" is allowed there, too
    with _file(config) as file:
        given = arguments | {
            "num_processes": rank.world_size,
            "num_machines": 1,  # as if all were on one: nothing but the meeting point depends on it
            "main_process_port": 0,  # any: so none is looked for
            "num_cpu_threads_per_process": int(threads) if threads.isdecimal() else 1,
            CONFIG: file,
            DEEPSPEED: _kept(launch),
        }
        if file is None:
            given = {"mixed_precision": "no", "dynamo_backend": "no"} | given
        try:
            found = _prepared(commands, preparing, given)
        except UpshiftError:
            raise
        except Exception as error:  # whatever that version has to say
            raise UpshiftError(
                f"accelerate {_version()} does not take what the launch of this step asks for",
                why=f"{type(error).__name__}: {error}",
                fix="Change the arguments of @run_with_accelerate, or install another version of accelerate.",
            ) from None
    found = {name: value for name, value in found.items() if _is_accelerates(name, rank)}
    if (
        any(_NO_P2P in (device.model or "") for device in devices)
        and not commands.check_cuda_p2p_ib_support()
    ):
        found |= {name: "1" for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE") if name not in os.environ}
    return Asked(found, remarks)


def _imported() -> tuple[Any, Any]:
    try:
        return importlib.import_module("accelerate.commands.launch"), importlib.import_module(
            "accelerate.utils.launch"
        )
    except ImportError as error:
        raise MissingExtra(
            "this step runs with Accelerate, which cannot be imported where it runs",
            why=str(error),
            fix='pip install accelerate; in an image: DockerSettings(requirements=["accelerate"]).',
        ) from None


def _version() -> str:
    return str(getattr(importlib.import_module("accelerate"), "__version__", "(of unknown version)"))


def _default_config(commands: Any, launch: Launch, rank: Rank) -> Iterator[str]:
    """That the file which ``accelerate config`` has written means nothing here, if there is one."""
    file = str(getattr(commands, "default_config_file", ""))
    if rank.rank == 0 and CONFIG not in launch.files and os.path.isfile(file):
        yield f"{file} is not read, since it is of this machine and not of the step: name it by config_file=…"


@contextlib.contextmanager
def _file(text: str | None) -> Iterator[str | None]:
    """A file with this text, while it is read. JSON is YAML, too."""
    if text is None:
        yield None
        return
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield file.name


def _kept(launch: Launch) -> str | None:
    """A file with what DeepSpeed is told, for as long as this process lives: user code has it read."""
    text = launch.files.get(DEEPSPEED)
    if text is None:
        return None
    file = Path(home_folders.new_folder()) / f"{DEEPSPEED}.json"
    file.write_text(text, encoding="utf-8")
    return str(file)


def _prepared(commands: Any, preparing: Any, given: Mapping[str, Any]) -> dict[str, str]:
    """What its functions add to the environment, or change in it."""
    parser = commands.launch_command_parser()
    parser.error = _refuse
    parsed = parser.parse_args(_command_line(parser, given))
    default = getattr(commands, "default_config_file", None)
    commands.default_config_file = os.devnull  # which is not a file: that of this machine is not read
    try:
        args, config, precision_from_config = commands._validate_launch_command(parsed)
    finally:
        commands.default_config_file = default
    args.gpu_ids = "all"
    # As launch_command does it.
    if args.use_deepspeed and not args.cpu:
        fields = [*config.deepspeed_config] if config else []
        fields += ["mixed_precision"] if precision_from_config else []
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = preparing.prepare_deepspeed_cmd_env(args)
    elif (args.use_fsdp or args.use_megatron_lm or args.multi_gpu) and not args.cpu:
        environment = preparing.prepare_multi_gpu_env(args)
    else:
        _, environment = preparing.prepare_simple_launcher_cmd_env(args)
    return {name: value for name, value in environment.items() if os.environ.get(name) != value}


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _command_line(parser: Any, given: Mapping[str, Any]) -> list[str]:
    """The arguments as on a command line: so the parser converts them, and knows which were given."""
    actions = {action.dest: action for action in parser._actions if action.option_strings}
    line: list[str] = []
    for name, value in given.items():
        action = actions.get(name)
        if value is None:
            continue
        if action is None:
            raise UpshiftError(
                f"accelerate {_version()}, which is installed where this step runs, has no argument {name!r}",
                fix="Install a newer version of accelerate there, or leave the argument out.",
            )
        option = f"--{name}"
        if action.nargs == 0:
            line += [option] if value else []
        elif isinstance(value, bool):
            line.append(f"{option}={_switch(value, action)}")
        elif isinstance(value, (list, tuple)):
            line.append(f"{option}={','.join(map(str, value))}")
        else:
            line.append(f"{option}={value}")
    return [*line, "the-step"]


def _switch(value: bool, action: Any) -> str:
    """True or False as text; where the parser calls ``bool`` on it, any text is True but none."""
    if action.type is bool:
        return "true" if value else ""
    return str(value).lower()


def _is_accelerates(name: str, rank: Rank) -> bool:
    """Whether a variable is Accelerate's to set."""
    if name in _PINS:
        return rank.local_world_size == 1
    return name not in _OWN
