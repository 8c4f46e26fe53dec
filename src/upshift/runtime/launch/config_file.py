"""The files that arguments of Accelerate name: what its configuration says, and what DeepSpeed is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs

from upshift.errors import MissingExtra, SettingsError, nearest, suggestion
from upshift.model.checks import shown, small_text
from upshift.runtime.launch.argument_tables import ACCELERATE_FIELDS
from upshift.runtime.launch.arguments import Wrong, installed_fields, known_arguments, taken
from upshift.runtime.launch.launchers import ACCELERATE, RefusedArgument

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
