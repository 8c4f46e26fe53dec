"""What only Accelerate can say: what the files that its arguments name hold, and what it tells its processes.

The files are read before a run. What ``accelerate launch`` would put into the environment of its processes is
asked of the installed one, in each of them: its parser takes the arguments, and its own functions make
variables of them, so that a version knows what it knows. Left out is what Upshift decides itself: where the
processes meet, how many threads each has, and which devices it sees. Only a process that is to run the user's
function may ask: it takes as long as the import of torch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import attrs

from upshift.errors import MissingExtra, SettingsError, UpshiftError, nearest, suggestion
from upshift.model.checks import shown, small_text
from upshift.model.spec.hardware import Device, Launch, Rank
from upshift.runtime.launch.argument_tables import ACCELERATE_FIELDS
from upshift.runtime.launch.arguments import Wrong, installed_fields, known_arguments, taken
from upshift.runtime.launch.launchers import ACCELERATE, RefusedArgument
from upshift.runtime.launch.ranks import THREADS
from upshift.runtime.storage import home_folders

CONFIG: Final = "config_file"
DEEPSPEED: Final = "deepspeed_config_file"

_ON_CPUS: Final = "MULTI_CPU"
_ALONE: Final = "NO"
_ON_DEVICES: Final = (
    *("MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_HPU"),
    *("MULTI_NEURON", "DEEPSPEED", "FSDP", "MEGATRON_LM"),
)
_XLA: Final = ("XLA", "TPU")
_OLD_FIELDS: Final = ("fp16", "dynamo_backend")
"""What newer versions take in a file still (``BaseConfig.process_config``)."""
_MISNAMED: Final[Mapping[str, str]] = {
    "amax_history_length": "fp8_amax_history_len",
    "amax_compute_algorithm": "fp8_amax_compute_algo",
    "optimization_level": "fp8_opt_level",
}
"""What ``accelerate config`` (1.15) calls otherwise than ``accelerate launch`` does, and so is not seen."""
_PREFIXES: Final[Mapping[str, str]] = {
    "deepspeed_config": "",
    "mpirun_config": "",
    "megatron_lm_config": "",
    "parallelism_config": "",
    "fsdp_config": "fsdp_",
    "fp8_config": "fp8_",
    "dynamo_config": "dynamo_",
}
"""The parts of a file that hold arguments, and what their names begin with there or without saying so."""

_ELSEWHERE: Final[Mapping[str, str]] = {
    "tpu_name": "vm",
    "tpu_zone": "vm",
    "tpu_vm": "vm",
    "tpu_env": "env",
    "command_file": "vm",
    "commands": "vm",
}
"""What the file calls otherwise than the arguments whose reasons hold for it."""
_SAGEMAKER: Final = RefusedArgument(
    "Where a step runs is its target, and not said by Accelerate.", "Make the file for LOCAL_MACHINE."
)


@attrs.frozen(kw_only=True)
class AccelerateConfig:
    """What a configuration file says."""

    text: str  # all of it that is Accelerate's to know, as JSON
    deepspeed: Path | None = None  # the file of DeepSpeed's own that it names; None: it names none
    processes: int | None = None  # as the arguments of these meanings; None: it does not say
    nodes: int | None = None
    port: int | None = None
    devices: bool | None = None  # whether each process has a device; None: it does not say
    numa_binding: bool | None = None  # whether each keeps to the CPUs near it; None: it does not say


def read_config(file: Path, *, where: str | None) -> AccelerateConfig:
    """What a file says, YAML or JSON."""
    named = _Named(file, CONFIG, where)
    said = dict(named.parsed(_json if file.suffix == ".json" else named.yaml))
    if isinstance(said.get("fp8_config"), Mapping):
        said["fp8_config"] = {_MISNAMED.get(name, name): value for name, value in said["fp8_config"].items()}
    _check(named, said)
    kind, cpu, near = _kind(named, said), said.get("use_cpu", False), said.get(ACCELERATE.numa, False)
    for name, value in (("use_cpu", cpu), (ACCELERATE.numa, near)):
        if not isinstance(value, bool):
            named.makes_no_sense(name, value, "true or false")
    if said.get("num_processes") == -1:  # Accelerate's own word for nothing
        said["num_processes"] = None
    processes, nodes, port = (
        _number(named, said, name) for name in (ACCELERATE.processes, ACCELERATE.nodes, ACCELERATE.port)
    )
    if processes is None and "num_processes" not in said and kind == _ALONE:
        processes = 1
    deepspeed = dict(said.get("deepspeed_config") or {})
    own = deepspeed.pop(DEEPSPEED, None)
    if "deepspeed_config" in said:
        said["deepspeed_config"] = deepspeed
    rest = {name: value for name, value in said.items() if name not in ACCELERATE.decided}
    return AccelerateConfig(
        text=json.dumps({**rest, "distributed_type": kind}, default=str),
        deepspeed=None if own in (None, "none") else _beside(file, str(own)),
        processes=processes,
        nodes=nodes,
        port=port,
        devices=False if cpu or kind == _ON_CPUS else None if kind == _ALONE else True,
        numa_binding=near or None,
    )


def read_deepspeed(file: Path, *, where: str | None) -> str:
    """The text of a configuration of DeepSpeed's own."""
    named = _Named(file, DEEPSPEED, where)
    named.parsed(_json)
    return named.text


@attrs.frozen
class _Named:
    """A file, the argument that names it, and the user's line."""

    file: Path
    argument: str
    where: str | None

    @property
    def text(self) -> str:
        try:
            return small_text(self.file)
        except ValueError as error:
            self.mistake(
                f"{self} cannot be read",
                why=str(error),
                fix="A relative path counts from the working folder, or else from that of the code.",
            )

    def __str__(self) -> str:
        return f"{self.argument}={str(self.file)!r}"

    def mistake(self, what: str, *, why: str | None = None, fix: str) -> NoReturn:
        raise SettingsError(f"{ACCELERATE.decorator}: {what}", where=self.where, why=why, fix=fix)

    def makes_no_sense(self, name: str, value: Any, expected: str, meant: Any = None) -> NoReturn:
        self.mistake(
            f"{name}: {shown(value)} in {str(self.file)!r} is invalid",
            fix=(f"Did you mean {shown(meant)}? " if meant else "") + f"Expected {expected}.",
        )

    def refuse(self, name: str, value: Any, refused: RefusedArgument) -> NoReturn:
        said = f"{name}: {refused.shown(value)} in {str(self.file)!r}"
        self.mistake(f"{said} cannot be honoured", why=refused.why, fix=refused.fix)

    def parsed(self, parse: Any) -> Mapping[str, Any]:
        """The content of the file, by name."""
        said, problem = parse(self.text)
        if isinstance(said, Mapping):
            return said
        asks = "accelerate config --config_file FILE asks for what goes into one."
        self.mistake(
            f"{self} is not a configuration of {'Accelerate' if self.argument == CONFIG else 'DeepSpeed'}",
            why=problem or "It holds no names with values.",
            fix=asks if self.argument == CONFIG else "Write it as DeepSpeed's documentation has it, in JSON.",
        )

    def yaml(self, text: str) -> tuple[Any, str | None]:
        try:
            import yaml
        except ImportError:
            raise MissingExtra(
                f"{ACCELERATE.decorator}: {self} is YAML, which needs PyYAML",
                where=self.where,
                why="It comes with Accelerate, which is not in this environment.",
                fix='pip install "pyyaml", or write the file as JSON, named .json.',
            ) from None
        try:
            return yaml.safe_load(text), None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            return None, f"It is not valid YAML: {_words(error)}."


def _json(text: str) -> tuple[Any, str | None]:
    try:
        return json.loads(text), None
    except (ValueError, RecursionError) as error:
        return None, f"It is not valid JSON: {_words(error)}."


def _words(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _check(named: _Named, said: Mapping[str, Any]) -> None:
    """Every name, and every choice, is one that Accelerate has, and each means something here."""
    if str(said.get("compute_environment", "LOCAL_MACHINE")).upper() != "LOCAL_MACHINE":
        named.refuse("compute_environment", said["compute_environment"], _SAGEMAKER)
    arguments, version = known_arguments("accelerate")
    fields = {*(installed_fields() or ACCELERATE_FIELDS), *_OLD_FIELDS}
    for section, name, value in _said(named, said):
        argument = _PREFIXES.get(section, "") + name.removeprefix(_PREFIXES.get(section, ""))
        known = _ELSEWHERE.get(argument, argument)
        refused = ACCELERATE.refused.get(known)
        if refused is not None:
            default = arguments[known].default if known in arguments else None
            if refused.asked_by(value, default):
                named.refuse(name, value, refused)
        elif argument not in arguments if section else name not in fields:
            among = [one for one in arguments if one.startswith(_PREFIXES[section])] if section else fields
            named.mistake(
                f"{f'{section} of ' if section else ''}{str(named.file)!r} has {name!r}, "
                "which Accelerate does not know",
                why=f"As of version {version} of accelerate.",
                fix=suggestion(name, sorted(among)),
            )
        choices = arguments[argument].choices if argument in arguments and refused is None else ()
        if choices and value is not None and str(value).lower() not in map(str.lower, choices):
            expected = "one of " + ", ".join(map(repr, choices))
            named.makes_no_sense(name, value, expected, nearest(str(value), choices))


def _said(named: _Named, said: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Everything that a file says: the part that it stands in, its name, its value."""
    for name, value in said.items():
        if name not in _PREFIXES:
            yield "", str(name), value
        elif isinstance(value, Mapping):
            for inner, one in value.items():
                yield name, str(inner), one
        elif value is not None:
            named.makes_no_sense(name, value, "names with values")


def _kind(named: _Named, said: Mapping[str, Any]) -> str:
    """How its processes train together, as Accelerate calls it."""
    value = said.get("distributed_type")
    if value is False:  # NO without quotation marks, to YAML
        return _ALONE
    if value in (_ALONE, _ON_CPUS, *_ON_DEVICES):
        return str(value)
    if value in _XLA:
        named.refuse("distributed_type", value, ACCELERATE.refused["tpu"])
    known = (_ALONE, _ON_CPUS, *_ON_DEVICES)
    expected = "one of " + ", ".join(map(repr, known))
    if value is None:
        named.mistake(f"{named} does not say distributed_type", fix=f"Expected {expected}.")
    named.makes_no_sense("distributed_type", value, expected, nearest(str(value).upper(), known))


def _number(named: _Named, said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    if value is None:
        return None
    found = taken(ACCELERATE, name, ACCELERATE.arguments[name], value)
    if isinstance(found, Wrong):
        named.makes_no_sense(name, value, found.expected, found.meant)
    return int(found)


def _beside(file: Path, value: str) -> Path:
    """A path that a file names, from the working folder; where there is none, from the folder of the file."""
    here = Path(value).expanduser().absolute()
    beside = file.absolute().parent / value
    return beside if beside.exists() and not here.exists() else here


# -- asking the one that is installed ------------------------------------------------------------

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
