"""A pipeline's parameters, from ``--param NAME=VALUE``, from a file, and from an earlier run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upshift.authoring.parameters.fields import UNSET, Given, Unfit, dotted_names, settled
from upshift.authoring.parameters.values import fit, hint_for
from upshift.errors import MissingExtra, UsageError, nearest, suggestion
from upshift.model.checks import MOST_SHOWN, shown, small_text
from upshift.model.spec.calls import parameter_hints

if TYPE_CHECKING:
    from upshift.authoring.pipelines import Pipeline

_OPTION = "--param"
_ARTIFACT = "artifact:"
"""What a value begins with that an earlier run made: ``artifact:training/fit@production``."""
DEEPEST = 100


def parse_params(
    pipeline: Pipeline[Any, Any],
    params: Sequence[str],
    file: str | Path | None = None,
    earlier: Mapping[str, object] | None = None,
    *,
    option: str = _OPTION,
) -> dict[str, Any]:
    """The arguments of a run, read by the pipeline's annotations.

    Parameters
    ----------
    pipeline
        The pipeline.
    params
        ``NAME=VALUE`` each, no name twice. ``NAME.FIELD=VALUE`` sets a field of what ``NAME`` is otherwise.
    file
        A JSON, YAML or TOML file; ``params`` take precedence over it.
    earlier
        The parameters of another run; the file and ``params`` take precedence over them.
    option
        What messages call the option that a parameter was typed with; ``{}`` in it is the parameter's name.

    Raises
    ------
    UsageError
        A parameter is unknown, given twice, missing or of the wrong type, or the file cannot be read.
    MissingExtra
        The file needs a package that is not installed.
    """
    signature = pipeline.callee.signature
    arguments = {name: value for name, value in (earlier or {}).items() if name in signature.names}
    for where, given in (
        *(() if file is None else ((str(file), _from_file(Path(file))),)),
        (option, _from_options(params)),
    ):
        for name, value in given.items():
            said = where.replace("{}", name.replace("_", "-"))
            arguments[name] = _settled(pipeline, name, value, arguments.get(name, UNSET), said)
    missing = [name for name in signature.required if name not in arguments]
    if missing:
        raise UsageError(
            f"pipeline {pipeline.name!r} needs {', '.join(missing)}",
            where=pipeline.callee.location,
            why=f"It is {signature}",
            fix=f"Add {' '.join(f'--param {name}=…' for name in missing)}",
        )
    return arguments


def _from_file(file: Path) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for name, value in read_parameters(file).items():
        _place(given, name, value).read = fit
    return given


def _from_options(params: Sequence[str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for param in params:
        name, equals, text = param.partition("=")
        name = name.strip()
        if not equals or not name.strip("."):
            raise UsageError(
                f"--param {shown(param)} is not NAME=VALUE",
                fix=f"Write --param {name[:MOST_SHOWN] or 'NAME'}=VALUE.",
            )
        _place(given, name, text)
    return given


def _place(given: dict[str, Given], name: str, value: Any) -> Given:
    first, *path = name.split(".")
    if len(path) > DEEPEST:
        raise UsageError(
            f"parameter {shown(name)} names a field of a field, {len(path):,} times over",
            where=_OPTION,
            fix=f"A name has at most {DEEPEST} dots.",
        )
    place = given.setdefault(first, Given(first)).at(path)
    if place.value is not UNSET:
        raise UsageError(
            f"parameter {shown(name)} is given twice: {shown(place.value)} and {shown(value)}",
            where=_OPTION,
            fix="Give it once; several values are one JSON list.",
        )
    place.value = value
    return place


def _settled(pipeline: Pipeline[Any, Any], name: str, given: Given, current: Any, where: str) -> Any:
    signature = pipeline.callee.signature
    if name not in signature.names and not signature.takes_extra_keywords:
        raise UsageError(
            f"pipeline {pipeline.name!r} has no parameter {shown(name)}",
            where=where,
            fix=_meant(pipeline, given) or suggestion(name, signature.names),
        )
    default = signature.defaults.get(name, UNSET)
    hint = hint_for(_hints(pipeline).get(name, Any), None if default is UNSET else default)
    if isinstance(given.value, str) and given.value.startswith(_ARTIFACT) and hint is not str:
        from upshift.runs.history.versions import get_artifact

        return get_artifact(given.value.removeprefix(_ARTIFACT))
    try:
        return settled(given, hint, default if current is UNSET else current)
    except Unfit as unfit:
        misfit = f"{shown(unfit.given.value)} does not fit"
        raise UsageError(
            f"parameter {unfit.given.name!r}: {unfit.unknown or misfit}", where=where, fix=unfit.fix
        ) from None
    except RecursionError:
        raise UsageError(
            f"parameter {name!r}: {shown(given.value)} is nested too deeply",
            where=where,
            fix="Pass it as a file, with a parameter of type Path.",
        ) from None


def _meant(pipeline: Pipeline[Any, Any], given: Given) -> str | None:
    """Which field of a parameter was meant, where its own name was typed: ``config.lr`` for ``lr``."""
    signature, hints = pipeline.callee.signature, _hints(pipeline)
    ends: dict[str, str] = {}
    for name in signature.names:
        for dotted in dotted_names(name, hints.get(name, Any), signature.defaults.get(name, UNSET)):
            ends.setdefault(dotted.rpartition(".")[2], dotted)
    close = given.name if given.name in ends else nearest(given.name, ends)
    own = nearest(given.name, signature.names)
    if close is None or (own is not None and given.name not in ends):
        return None
    return f"Did you mean the field {ends[close]!r}? Write --param {ends[close]}=…"


def _hints(pipeline: Pipeline[Any, Any]) -> Mapping[str, Any]:
    return parameter_hints(pipeline.callee.function)


_FORMS = {".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}
_YAML_SCALARS: Mapping[str, tuple[str, Sequence[str]]] = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", ("~", "n", "N", "")),
}
"""What is no text, by YAML 1.2: 1e-3 is a number, and ``no``, 12:30 and 2026-11-21 are texts."""


def read_parameters(file: Path) -> Mapping[str, Any]:
    """What a file says, by parameter.

    Raises
    ------
    UsageError
        It cannot be read, or is not of the form that its name says.
    MissingExtra
        It is YAML, and PyYAML is not installed.
    """
    form = _FORMS.get(file.suffix.lower(), "JSON")
    read: Callable[[str], Any] = {"TOML": _toml, "YAML": _yaml}.get(form, json.loads)
    try:
        text = small_text(file)
    except ValueError as error:
        raise UsageError(
            f"the parameter file {file} cannot be read", why=str(error), fix="Name a file that you can read."
        ) from None
    try:
        data = read(text)
    except (ValueError, RecursionError) as error:  # of JSON, TOML and YAML alike
        raise UsageError(
            f"the parameter file {file} is not {form}",
            why="It is nested too deeply." if isinstance(error, RecursionError) else str(error),
            fix="A name that ends in .toml is read as TOML, in .yaml or .yml as YAML, any other as JSON.",
        ) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(
            f"the parameter file {file} holds no parameters by name, but a {type(data).__name__}",
            fix="Write name: value for each." if form == "YAML" else 'Write {"name": value, …}.',
        )
    return {str(name): value for name, value in data.items()}


def _toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise MissingExtra(
            "a parameter file in YAML needs PyYAML",
            fix='Run: pip install "upshift[yaml]", or write the file in TOML or JSON.',
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}

    for kind, (pattern, first) in _YAML_SCALARS.items():
        whole = re.compile(rf"(?:{pattern})\Z")
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", whole, [*first])
    Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: _integer(node.value))
    Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<\Z"), ["<"])
    try:
        return yaml.load(text, Loader)  # the safe one: it makes plain data only
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
