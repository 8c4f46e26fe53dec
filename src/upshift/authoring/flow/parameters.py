"""Parameters, included files and configurations of a flow."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from upshift.authoring.parameter_values import AnyJson
from upshift.errors import MisuseError, SettingsError, UsageError, location, suggestion, user_location
from upshift.model.checks import shown
from upshift.model.configuration import user_name

if TYPE_CHECKING:
    from upshift.authoring.pipelines import Pipeline

CONFIGS = "UPSHIFT_CONFIGS"
"""The variable by which configurations that were typed reach the processes of steps: JSON, by name."""
_TYPES = (str, int, float, bool)


class JSONType:
    """The type of a parameter that is any JSON value: ``Parameter("depths", type=JSONType)``."""


class Context(NamedTuple):
    """What a function that makes a default is told."""

    flow_name: str
    user_name: str
    parameter_name: str


class Parameter:
    """A parameter of a flow: a class attribute, which steps read as ``self.NAME``.

    Parameters
    ----------
    name
        What it is called on the command line: ``--alpha`` or ``-p alpha=…``.
    default
        Its value where none is given, or a function that makes it when a run starts; where it takes an
        argument, that has ``flow_name``, ``user_name`` and ``parameter_name``.
    type
        ``str``, ``int``, ``float``, ``bool`` or :class:`JSONType`; default: as ``default`` has it.
    required
        Whether a value has to be given. Without that and without a default, the value is None.
    help
        What it is for, in a line.
    separator
        Where to split a text that is given, so that the value is a list of texts.

    Raises
    ------
    SettingsError
        The name is no name, or the type none of these.
    """

    def __init__(
        self,
        name: str,
        default: Any = None,
        type: Any = None,
        required: bool = False,
        help: str | None = None,
        separator: str | None = None,
        **unknown: Any,
    ) -> None:
        where = user_location()
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise SettingsError(f"a parameter cannot be called {shown(name)}", where=where)
        if unknown:
            raise SettingsError(
                f"Parameter({name!r}) has no option {next(iter(unknown))!r}",
                where=where,
                fix="Options: default, type, required, help, separator.",
            )
        if type is not None and type is not JSONType and type not in _TYPES:
            raise SettingsError(
                f"Parameter({name!r}): {shown(type)} is not a parameter type",
                where=where,
                fix="Types: str, int, float, bool, JSONType.",
            )
        self.name = name.replace("-", "_")
        self.default = default
        self.required = required
        self.help = help
        self.separator = separator
        self.attribute = self.name
        self._flow = ""
        self._written = where
        self._type = type
        if type is JSONType and isinstance(default, str):
            try:
                self.default = json.loads(default)
            except ValueError as error:
                raise SettingsError(
                    f"Parameter({name!r}): its default {shown(default)} is not valid JSON",
                    where=where,
                    why=f"{error}",
                ) from None

    def __set_name__(self, owner: type[Any], attribute: str) -> None:
        self.attribute = attribute
        self._flow = owner.__name__

    def __get__(self, flow: Any, owner: type[Any]) -> Any:
        return self if flow is None else flow.__getattr__(self.attribute)

    def __set__(self, flow: object, value: object) -> None:
        raise MisuseError(
            f"self.{self.attribute} is a parameter, which no step changes",
            where=user_location(),
            fix="Give the new value another name.",
        )

    @property
    def annotation(self) -> Any:
        """What the command line reads a value as."""
        if self.separator is not None:
            return Any
        if self._type is JSONType:
            return AnyJson
        if self._type is not None:
            return self._type
        known = None if callable(self.default) else type(self.default)
        return known if known in _TYPES else str if self.default is None or callable(self.default) else Any

    @property
    def in_signature(self) -> inspect.Parameter:
        """The parameter in the signature that the flow has as a pipeline."""
        default = inspect.Parameter.empty if self.required else None if self._made else self.default
        annotation = self.annotation
        if default is None and annotation is not Any:
            annotation = annotation | None
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    def value(self, arguments: Mapping[str, object]) -> Any:
        """What steps see: what was given, or the default."""
        given = arguments[self.name] if self.name in arguments else self._default()
        if self.separator is not None and isinstance(given, str):
            return given.split(self.separator) if given else []
        return given

    def _default(self) -> Any:
        if not self._made:
            return self.default
        make: Callable[..., Any] = self.default
        try:
            takes = bool(inspect.signature(make).parameters)
            return make(Context(self._flow, user_name(), self.name)) if takes else make()
        except Exception as error:
            raise SettingsError(
                f"the default of parameter {self.name!r} cannot be made",
                where=_where(make),
                why=f"{type(error).__name__}: {error}",
            ) from error

    @property
    def _made(self) -> bool:
        return callable(self.default)


def _where(function: Callable[..., Any]) -> str | None:
    code = getattr(function, "__code__", None)
    return None if code is None else location(code.co_filename, code.co_firstlineno)


class IncludeFile(Parameter):
    """A parameter whose value is what a file holds when the run starts: ``IncludeFile("words")``.

    Parameters
    ----------
    name, required, help
        As for :class:`Parameter`; what is given is the path of the file, from the working folder.
    default
        The path where none is given.
    is_text
        Whether it is a text; else bytes.
    encoding
        That of the text.

    Raises
    ------
    SettingsError
        The name is no name.
    """

    def __init__(
        self,
        name: str,
        default: Any = None,
        required: bool = False,
        is_text: bool = True,
        encoding: str = "utf-8",
        help: str | None = None,
    ) -> None:
        super().__init__(name, default=default, type=str, required=required, help=help)
        self._encoding = encoding if is_text else None

    def value(self, arguments: Mapping[str, object]) -> Any:
        """What the file holds; None where no file is named."""
        path = super().value(arguments)
        if path is None:
            return None
        try:
            content = Path(path).expanduser().read_bytes()
            return content if self._encoding is None else content.decode(self._encoding)
        except (OSError, ValueError, LookupError) as error:
            raise UsageError(
                f"the file of parameter {self.name!r} cannot be read: {path}",
                where=self._written,
                why=getattr(error, "strerror", None) or str(error),
                fix=f"Name another: --{self.name} FILE; a path starts from the working folder.",
            ) from None


class ConfigValue(dict[str, Any]):
    """What a :class:`Config` has, also as attributes: ``config.model.depth``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            hint = suggestion(name, self)
            raise AttributeError(f"the configuration has no {name!r}. {hint}") from None


def _as_config(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ConfigValue({name: _as_config(item) for name, item in value.items()})
    return [_as_config(item) for item in value] if isinstance(value, list) else value


class Config:
    """A configuration that is read when the class is made, so that decorators can use it.

    ::

        class Training(FlowSpec):
            config = Config("config", default="config.json")

            @resources(cpu=config.cpu)
            @step
            def start(self):
                print(self.config.model.depth)

    Parameters
    ----------
    name
        What it is called on the command line: ``python flow.py --config NAME FILE run``, or
        ``--config-value NAME JSON``.
    default
        A JSON or TOML file, from the working folder, or else beside the flow's own file.
    default_value
        Its value where there is no file: a dictionary, or a text that is read as a file is.
    required
        Whether one has to be given.
    help
        What it is for.
    parser
        What makes a dictionary of a file's text.

    Raises
    ------
    SettingsError
        There is no such file, it cannot be read, or nothing is given that has to be.
    """

    def __init__(
        self,
        name: str,
        default: Any = None,
        default_value: Any = None,
        required: bool = False,
        help: str | None = None,
        parser: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> None:
        self.name, self.help, self.attribute = name, help, name
        self._written, self._parser = user_location(), parser
        known = json.loads(os.environ.get(CONFIGS, "{}"))
        typed = _typed(name)
        if typed is not None:
            option, given = typed
            self.value = self._parsed(given, "") if option == "--config-value" else self._read(given)
            os.environ[CONFIGS] = json.dumps({**known, name: self.value})  # for the processes of steps
        elif name in known:
            self.value = _as_config(known[name])
        elif default is not None and (default_value is None or self._found(default).exists()):
            self.value = self._read(default)
        elif default_value is not None:
            text = isinstance(default_value, str)
            self.value = self._parsed(default_value, "") if text else _as_config(default_value)
        elif required:
            raise self._wrong("is not given", f"Name its file: --config {name} FILE, before the command.")
        else:
            self.value = None

    def __set_name__(self, owner: type[Any], attribute: str) -> None:
        self.attribute = attribute

    def __get__(self, flow: Any, owner: type[Any]) -> Any:
        return self.value if flow is None else flow.__getattr__(self.attribute)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __getitem__(self, name: str) -> Any:
        return self.value[name]

    def _found(self, path: Any) -> Path:
        here = Path(path).expanduser()
        beside = Path(str(self._written).rpartition(":")[0]).parent / here
        return beside if beside.exists() and not here.exists() else here

    def _read(self, path: Any) -> Any:
        file = self._found(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise self._wrong(f"cannot be read from {path}: {why}", "Name another file.") from None
        return self._parsed(text, file.suffix)

    def _parsed(self, text: str, suffix: str) -> Any:
        try:
            if self._parser is None and suffix == ".toml":
                if sys.version_info >= (3, 11):
                    import tomllib
                else:
                    import tomli as tomllib
                return _as_config(tomllib.loads(text))
            return _as_config((self._parser or json.loads)(text))
        except Exception as error:
            what = f"cannot be read: {type(error).__name__}: {error}"
            raise self._wrong(what, "Write it as JSON, or give Config a parser.") from error

    def _wrong(self, what: str, fix: str) -> SettingsError:
        return SettingsError(f"configuration {self.name!r} {what}", where=self._written, fix=fix)


def confirm_configs(pipeline: Pipeline[Any, Any], typed: Iterable[str]) -> None:
    """Refuse configurations that were typed, and that the flow does not have."""
    known = {config.name for config in getattr(pipeline, "configs", {}).values()}
    for name in typed:
        if name not in known:
            raise UsageError(
                f"{pipeline.name} has no configuration {shown(name)}",
                where=pipeline.callee.location,
                fix=suggestion(name, known) if known else "Leave the option out.",
            )


def _typed(name: str) -> tuple[str, str] | None:
    """The option that gives a configuration on the command line of this process, and its value."""
    words = sys.argv
    for place, word in enumerate(words[:-2]):
        if word in ("--config", "--config-value") and words[place + 1] == name:
            return word, words[place + 2]
    return None


class LateValue:
    """What ``config_expr`` stands for above a class, whose configurations are known when it is made."""

    def __init__(self, expression: str, names: Mapping[str, Any]) -> None:
        self._expression, self._names, self._written = expression, names, user_location()

    def of(self, configs: Mapping[str, Config]) -> Any:
        """The value of the expression, with these configurations."""
        try:
            return eval(self._expression, dict(self._names), _values(configs))
        except Exception as error:
            raise _no_value(self._expression, error, self._written) from None


def config_expr(expression: str) -> Any:
    """A value of a configuration of the class, for a decorator: ``config_expr("config.cpu")``.

    Parameters
    ----------
    expression
        Python's words for it. Names are those that stand before it in the class; above the class, those of
        its configurations.

    Raises
    ------
    SettingsError
        It has no value there.
    """
    frame = sys._getframe(1)
    if "__qualname__" not in frame.f_locals:  # above a class
        return LateValue(expression, {**frame.f_globals, **frame.f_locals})
    try:
        return eval(expression, frame.f_globals, _values(frame.f_locals))
    except Exception as error:
        raise _no_value(expression, error, user_location()) from None


def _values(names: Mapping[str, Any]) -> dict[str, Any]:
    """Configurations as what they hold: ``config.name`` is not what the option is called."""
    return {name: value.value if isinstance(value, Config) else value for name, value in names.items()}


def _no_value(expression: str, error: Exception, where: str | None) -> SettingsError:
    return SettingsError(
        f"config_expr({expression!r}) has no value here",
        where=where,
        why=f"{type(error).__name__}: {error}",
        fix="Name a Config of the class: within it one that stands before it.",
    )


def parameters_of(flow: type[Any]) -> Iterator[Parameter]:
    """The parameters of a flow, those of its bases first."""
    found: dict[str, Parameter] = {}
    for kind in reversed(flow.__mro__):
        found.update({n: value for n, value in vars(kind).items() if isinstance(value, Parameter)})
    return iter(found.values())
