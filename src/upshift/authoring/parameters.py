"""The parameters that a user gives: by ``--param NAME=VALUE``, in a file, or those of an earlier run.

A field of a parameter is given by its path, ``config.optimizer.lr=0.1``, whether the parameter is an object,
a dictionary or a list. Anything not named stays as the file has it, else as the pipeline's default.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.authoring.parameter_values import (
    Misfit,
    bare,
    fields_needed,
    fit,
    hint_for,
    hints_of,
    is_union,
    make,
    read_text,
    said_by,
)
from upshift.errors import MissingExtra, UsageError, nearest, suggestion
from upshift.model.checks import MOST_SHOWN, shown, small_text
from upshift.model.plain import fields_of
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


UNSET: Any = attrs.NOTHING
Reader = Callable[[Any, Any], Any]
"""Reads a value by an annotation: from text, or from the plain data of a file."""


@attrs.define
class Given:
    """What is said of a parameter, or of one of its fields: a value, and then fields of it.

    Parameters
    ----------
    name
        As it was typed: ``config.optimizer.lr``.
    """

    name: str
    value: Any = attrs.field(factory=lambda: UNSET)
    read: Reader = read_text
    fields: dict[str, Given] = attrs.field(factory=dict)

    def at(self, path: list[str]) -> Given:
        """What is said of a field further in."""
        if not path:
            return self
        key, *rest = path
        inner = self.fields.setdefault(key, Given(f"{self.name}.{key}"))
        return inner.at(rest)


class Unfit(Exception):
    """A value does not fit, or there is no such field.

    Attributes
    ----------
    given
        Which value.
    fix
        What would be right.
    known
        Whether there is a place for the value at all; None: there is.
    """

    def __init__(self, given: Given, fix: str, *, unknown: str | None = None) -> None:
        super().__init__(fix)
        self.given = given
        self.fix = fix
        self.unknown = unknown


def settled(given: Given, hint: Any, current: Any = UNSET) -> Any:
    """The value of a parameter, or of a field.

    Parameters
    ----------
    given
        What is said of it.
    hint
        Its annotation.
    current
        What it is where nothing is said: the default.

    Raises
    ------
    Unfit
    """
    hint = hint_for(hint, None if current is UNSET else current)
    if given.value is not UNSET:
        try:
            current = given.read(given.value, hint)
        except Misfit as misfit:
            raise Unfit(given, f"Expected {misfit}.") from None
    return _with_fields(given, hint, current) if given.fields else current


def dotted_names(name: str, hint: Any, current: Any) -> Iterator[str]:
    """The names that fields of a parameter have, at any depth; none, if it is no object."""
    kind = _record_in(hint) if current is UNSET or current is None else type(current)
    if kind is None or fields_of(kind) is None:
        return
    hints = hints_of(kind)
    for field, (attribute, _) in (fields_of(kind) or {}).items():
        yield f"{name}.{field}"
        inner = UNSET if current is UNSET or current is None else getattr(current, attribute, UNSET)
        if name.count(".") < 5:  # a class may hold its own kind
            yield from dotted_names(f"{name}.{field}", hints.get(field, Any), inner)


def _with_fields(given: Given, hint: Any, current: Any) -> Any:
    if current is UNSET or current is None:
        return _made(given, hint)
    if isinstance(current, Mapping):
        return _items(given, hint, current)
    if isinstance(current, (list, tuple)) and not hasattr(current, "_fields"):
        return _list(given, hint, current)
    kind: Any = type(current)
    known = fields_of(kind)
    if known is None:
        name = next(iter(given.fields.values()))
        raise Unfit(name, f"Write {given.name}=….", unknown=f"{given.name} is {_a(kind)}, without fields")
    hints = hints_of(kind)
    new = {}
    for key, inner in given.fields.items():
        attribute = _known(key, inner, known, kind)
        new[key] = settled(inner, hints.get(key, Any), getattr(current, attribute))
    try:
        return _replaced(current, kind, new)
    except (TypeError, ValueError) as error:
        raise _refused(given, kind, error) from None


def _made(given: Given, hint: Any) -> Any:
    """A new object with these fields, where there was none."""
    kind = _record_in(hint)
    if kind is None:
        if typing.get_origin(bare(hint)) is dict or bare(hint) in (dict, Any):
            return _items(given, hint, {})
        name = next(iter(given.fields.values()))
        raise Unfit(name, f"Write {given.name}=….", unknown=f"{given.name} has no fields that can be set")
    hints, known = hints_of(kind), fields_of(kind) or {}
    new = {}
    for key, inner in given.fields.items():
        _known(key, inner, known, kind)
        new[key] = settled(inner, hints.get(key, Any))
    missing = [name for name, needed in (fields_needed(kind) or {}).items() if needed and name not in new]
    if missing:
        fix = " ".join(f"-p {given.name}.{name}=…" for name in missing)
        raise Unfit(given, f"Add {fix}", unknown=f"{kind.__name__} also needs {', '.join(missing)}")
    try:
        return make(kind, new)
    except (TypeError, ValueError) as error:
        raise _refused(given, kind, error) from None


def _items(given: Given, hint: Any, current: Mapping[Any, Any]) -> Any:
    key_hint, value_hint = typing.get_args(_dict_in(hint)) or (Any, Any)
    new = dict(current)
    for text, inner in given.fields.items():
        try:
            key = text if text in new else read_text(text, key_hint)
        except Misfit as misfit:
            raise Unfit(
                inner, f"A key is {misfit}.", unknown=f"{text!r} is not a key of {given.name}"
            ) from None
        new[key] = settled(inner, value_hint, new.get(key, UNSET))
    return new


def _list(given: Given, hint: Any, current: list[Any] | tuple[Any, ...]) -> Any:
    arguments = typing.get_args(_member(hint, lambda member: typing.get_origin(member) in (list, tuple)))
    new = list(current)
    for text, inner in given.fields.items():
        if not (text.isdecimal() and len(text) < 10 and int(text) < len(new)):
            there = f"{given.name}.0 to {given.name}.{len(new) - 1}" if new else "nothing"
            raise Unfit(
                inner, f"It holds {there}.", unknown=f"{given.name} is a list without an item {text!r}"
            )
        index = int(text)
        item = Any if not arguments else arguments[index if len(arguments) > index else 0]
        new[index] = settled(inner, item, new[index])
    return tuple(new) if isinstance(current, tuple) else new


def _replaced(current: Any, kind: Any, new: Mapping[str, Any]) -> Any:
    if dataclasses.is_dataclass(kind):
        return dataclasses.replace(current, **new)
    if attrs.has(kind):
        return attrs.evolve(current, **new)
    if hasattr(kind, "_fields"):
        return current._replace(**new)
    whole = {name: getattr(current, name) for name in current.model_fields_set} | dict(new)
    return make(kind, whole)


def _known(key: str, inner: Given, known: Mapping[str, tuple[str, bool]], kind: Any) -> str:
    if key in known:
        return known[key][0]
    close = nearest(key, known)
    fix = f"Did you mean {inner.name.rpartition('.')[0]}.{close}? " if close else ""
    fix += f"Fields: {', '.join(known) or 'none'}."
    raise Unfit(inner, fix, unknown=f"{kind.__name__} has no field {key!r}")


def _refused(given: Given, kind: Any, error: Exception) -> Unfit:
    told = f"{kind.__name__} reports: {said_by(error)}"
    if len(given.fields) == 1:
        (inner,) = given.fields.values()
        if inner.value is not UNSET:
            return Unfit(inner, told)
    return Unfit(given, told, unknown="the values do not fit")


def _record_in(hint: Any) -> Any:
    """The class with fields that an annotation names, if there is one."""
    found = _member(hint, lambda member: isinstance(member, type) and fields_of(member) is not None)
    return found if isinstance(found, type) and fields_of(found) is not None else None


def _dict_in(hint: Any) -> Any:
    return _member(hint, lambda member: typing.get_origin(member) is dict)


def _member(hint: Any, fits: Callable[[Any], bool]) -> Any:
    hint = bare(hint)
    if is_union(hint):
        return next((bare(m) for m in typing.get_args(hint) if fits(bare(m))), hint)
    return hint


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"
