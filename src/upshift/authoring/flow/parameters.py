"""A flow's parameters: :class:`Parameter`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from upshift.errors import MisuseError, SettingsError, location, user_location
from upshift.model.checks import shown
from upshift.model.home import user_name

if TYPE_CHECKING:
    from upshift.authoring.flow.spec import FlowSpec

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
                f"Parameter({name!r}): {shown(type)} is no type of a parameter",
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
        self._type = type
        if type is JSONType and isinstance(default, str):
            try:
                self.default = json.loads(default)
            except ValueError as error:
                raise SettingsError(
                    f"Parameter({name!r}): its default {shown(default)} is no JSON",
                    where=where,
                    why=f"{error}",
                ) from None

    def __set_name__(self, owner: type[Any], attribute: str) -> None:
        self.attribute = attribute
        self._flow = owner.__name__

    def __get__(self, flow: FlowSpec | None, owner: type[FlowSpec]) -> Any:
        return self if flow is None else flow.__getattr__(self.attribute)

    def __set__(self, flow: FlowSpec, value: object) -> None:
        raise MisuseError(
            f"self.{self.attribute} is a parameter, which no step changes",
            where=user_location(),
            fix="Give the new value another name.",
        )

    @property
    def annotation(self) -> Any:
        """What the command line reads a value as."""
        if self.separator is not None or self._type is JSONType:
            return Any
        if self._type is not None:
            return self._type
        known = None if callable(self.default) else type(self.default)
        return known if known in _TYPES else str if self.default is None or callable(self.default) else Any

    @property
    def in_signature(self) -> inspect.Parameter:
        """It, as a parameter of the function that the flow is to everybody else."""
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
