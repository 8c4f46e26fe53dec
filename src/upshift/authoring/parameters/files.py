"""A file of parameters: JSON, YAML or TOML, by its name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from upshift.errors import MissingExtra, UsageError
from upshift.model.checks import small_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
    read: Callable[[str], Any] = {"TOML": tomllib.loads, "YAML": _yaml, "JSON": json.loads}[form]
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
