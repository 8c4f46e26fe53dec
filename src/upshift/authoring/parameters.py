"""A pipeline's parameters, from ``--param NAME=VALUE`` and from a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upshift.authoring.reading import Misfit, fit, hint_for, read_text
from upshift.errors import UsageError, suggestion
from upshift.model.spec.annotations import parameter_hints

if TYPE_CHECKING:
    from upshift.authoring.pipelines import Pipeline

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_params(
    pipeline: Pipeline[Any, Any], params: Sequence[str], file: str | Path | None = None
) -> dict[str, Any]:
    """The arguments of a run, read by the pipeline's annotations.

    Parameters
    ----------
    pipeline
        The pipeline.
    params
        ``NAME=VALUE`` each, no name twice.
    file
        A JSON or TOML file; ``params`` go before it.

    Raises
    ------
    UsageError
        A parameter is unknown, given twice, missing or of the wrong type, or the file cannot be read.
    """
    signature = pipeline.callee.signature
    hints = parameter_hints(pipeline.callee.function)
    arguments: dict[str, Any] = {}

    def take(name: str, value: Any, read: Callable[[Any, Any], Any], where: str) -> None:
        if name not in signature.names and not signature.takes_extra_keywords:
            raise UsageError(
                f"pipeline {pipeline.name!r} has no parameter {name!r}",
                where=where,
                fix=suggestion(name, signature.names),
            )
        hint = hint_for(hints[name] if name in signature.names else Any, signature.defaults.get(name))
        try:
            arguments[name] = read(value, hint)
        except Misfit as misfit:
            raise UsageError(
                f"parameter {name!r}: {value!r} does not fit",
                where=where,
                fix=f"Expected {misfit}.",
            ) from None

    for name, value in ({} if file is None else _read_file(Path(file))).items():
        take(name, value, fit, str(file))
    given: dict[str, str] = {}
    for param in params:
        name, equals, text = param.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"--param {param!r} is not NAME=VALUE", fix=f"Write --param {name.strip() or 'NAME'}=VALUE."
            )
        name = name.strip()
        if name in given:
            raise UsageError(
                f"parameter {name!r} is given twice: {given[name]!r} and {text!r}",
                where="--param",
                fix="Give it once; several values are one JSON list.",
            )
        given[name] = text
        take(name, text, read_text, "--param")
    missing = [name for name in signature.required if name not in arguments]
    if missing:
        raise UsageError(
            f"pipeline {pipeline.name!r} needs {', '.join(missing)}",
            where=pipeline.callee.location,
            why=f"It is {signature}",
            fix=f"Add {' '.join(f'--param {name}=…' for name in missing)}",
        )
    return arguments


def _read_file(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        data = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise UsageError(f"the parameter file {file} cannot be read", why=error.strerror) from None
    except ValueError as error:  # of JSON, TOML and UTF-8 alike
        form = "TOML" if file.suffix == ".toml" else "JSON"
        raise UsageError(
            f"the parameter file {file} is not {form}",
            why=str(error),
            fix="A name that ends in .toml is read as TOML, any other as JSON.",
        ) from None
    if not isinstance(data, dict):
        raise UsageError(f"the parameter file {file} is no JSON object", fix='Write {"name": value, …}.')
    return data
