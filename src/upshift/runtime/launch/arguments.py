"""What a user gave to a launcher, checked where it was written, without importing the launcher.

::

    argument_tables   every argument, as of the version that was read: written by a test
    arguments         the same of the version that is installed, from its source: importing it imports torch
    launchers         which of them Upshift does itself, and which mean nothing here, and why
"""

from __future__ import annotations

import ast
import contextlib
import functools
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from upshift.errors import SettingsError, nearest, suggestion, user_location
from upshift.model.checks import bad_value, shown
from upshift.runtime.launch.argument_tables import FLAG, FLOAT, INT, LIST, SWITCH, TEXT, WORD, Argument
from upshift.runtime.launch.launchers import LAUNCHERS, Launcher, RefusedArgument

_NOT_KNOWN: Final = RefusedArgument(
    "Upshift starts the processes itself, and does not know this argument of a newer torchrun.",
    "Leave it out, or install a newer version of Upshift.",
)
_OTHER_NAMES: Final = {"tpu_cluster": "tpu_use_cluster"}
"""Where an option is called otherwise than what it sets."""


def check(launcher: str, given: Mapping[str, Any], *, own: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments, each as its launcher has it; None is as if it were not there.

    The version that is installed here decides which there are, and else the packaged table. So what a newer
    version knows is not refused, nor is what an older one does not know taken.
    """
    meant = LAUNCHERS[launcher]
    known, version = known_arguments(launcher)
    checked: dict[str, Any] = {}
    for said, value in given.items():
        name = _OTHER_NAMES.get(said, said)
        refused = meant.refused.get(name)
        argument = known.get(name)
        if argument is None and refused is None:
            raise _unknown(meant, said, [*known, *own], version)
        if value is None:
            continue
        if refused is None and launcher == "torchrun" and name not in meant.done:
            raise _refusal(meant, said, value, _NOT_KNOWN)
        if refused is not None:
            if refused.asked_by(value, argument.default if argument else None):
                raise _refusal(meant, said, value, refused)
        elif argument is not None:
            found = taken(meant, name, argument, value)
            if isinstance(found, Wrong):
                raise bad_value(meant.decorator, name, value, found.expected, meant=found.meant)
            checked[name] = found
    return checked


def known_arguments(launcher: str) -> tuple[Mapping[str, Argument], str]:
    """The arguments that count here, and the version that has them."""
    meant = LAUNCHERS[launcher]
    version = installed_version(launcher)
    if version is not None and version != meant.version:
        found = installed_arguments(launcher)
        if found:
            return found, version
    return meant.arguments, meant.version


def refuse_idle(launcher: str, checked: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse an argument that does nothing, since what it belongs to is switched off."""
    meant = LAUNCHERS[launcher]
    for name, value in checked.items():
        argument = meant.arguments.get(name)
        for part in meant.parts:
            default = argument is not None and value == argument.default
            if part.holds(name) and not part.works(checked) and not default:
                said = shown(given.get(name, value))
                raise SettingsError(
                    f"{meant.decorator}: {name}={said} does nothing without {part.needs}",
                    where=user_location(),
                    fix=f"Add {part.needs}, or leave {name} out.",
                )


def _refusal(launcher: Launcher, name: str, value: Any, refused: RefusedArgument) -> SettingsError:
    return SettingsError(
        f"{launcher.decorator}: {name}={refused.shown(value)} cannot be honoured",
        where=user_location(),
        why=refused.why,
        fix=refused.fix,
    )


def _unknown(launcher: Launcher, name: str, known: Sequence[str], version: str) -> SettingsError:
    return SettingsError(
        f"{launcher.decorator}: {launcher.command} has no argument {name!r}",
        where=user_location(),
        why=f"As of version {version} of {'PyTorch' if launcher.name == 'torchrun' else launcher.name}.",
        fix=suggestion(name, known),
    )


@attrs.frozen
class Wrong:
    """Why a value is not taken."""

    expected: str
    meant: Any = None  # which value may have been meant; None: nobody knows


def taken(launcher: Launcher, name: str, argument: Argument, value: Any) -> Any:
    """A value as its launcher has it, or a :class:`Wrong`."""
    found = _TAKEN[argument.kind](value)
    bounds = launcher.bounds.get(name)
    if argument.choices:
        if found in argument.choices:
            return found
        near = _SAME_AS.get(value) if isinstance(value, str) else None
        if near not in argument.choices:
            near = nearest(str(value), argument.choices) if isinstance(value, (str, int)) else None
        return Wrong("one of " + ", ".join(map(repr, argument.choices)), near)
    if found is _WRONG:
        return Wrong(
            _EXPECTED[argument.kind], _read(argument.kind, value) if isinstance(value, str) else None
        )
    return found if bounds is None or bounds.hold(found) else Wrong(bounds.expected)


LARGE: Final = 1e30
"""No argument is a number beyond; and such a text would be long."""
_WRONG: Final = object()
_SAME_AS: Final = {"fp32": "no", "float32": "no", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
"""What precisions are called elsewhere."""


def _whole(value: Any) -> Any:
    return int(value) if _is_number(value) and value % 1 == 0 else _WRONG


def _number(value: Any) -> Any:
    try:
        return float(value) if _is_number(value) else _WRONG
    except OverflowError:
        return _WRONG


def _is_number(value: Any) -> bool:
    """Whether it is a number, NumPy's too."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and -LARGE < value < LARGE


def _text(value: Any) -> Any:
    """As a command line would have it: ``fsdp_version=2`` is ``"2"``."""
    import os

    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if _is_number(value):
        value = str(int(value) if value % 1 == 0 else float(value))
    if isinstance(value, (list, tuple)):
        value = ",".join(str(one).lower() if isinstance(one, bool) else str(one) for one in value)
    return value if isinstance(value, str) else _WRONG


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _WRONG


def _switch(value: Any) -> Any:
    """True or False, or the texts that stand for them where a command line takes a text."""
    return (
        {"true": True, "false": False}.get(value.lower(), _WRONG) if isinstance(value, str) else _flag(value)
    )


def _word(value: Any) -> Any:
    """A text, be it that for True or False."""
    return str(value).lower() if isinstance(value, bool) else _text(value)


def _list(value: Any) -> Any:
    return list(map(str, value)) if isinstance(value, (list, tuple)) else _WRONG


_TAKEN: Final = {
    INT: _whole,
    FLOAT: _number,
    TEXT: _text,
    FLAG: _flag,
    SWITCH: _switch,
    WORD: _word,
    LIST: _list,
}
_EXPECTED: Final = {
    INT: "a whole number",
    FLOAT: "a number",
    TEXT: "a text or a number",
    FLAG: "True or False",
    SWITCH: "True or False",
    WORD: "True, False or a text",
    LIST: "a list of texts",
}


def _read(kind: str, text: str) -> Any:
    """What a text would be that was written in place of a value of this kind; None: nothing."""
    if kind == FLAG:
        return {"true": True}.get(text.lower())
    try:
        return {INT: int, FLOAT: float}[kind](text)
    except (KeyError, ValueError):
        return None


# -- what the launcher that is installed takes, read from its source -----------------------------------

_VERSION: Final = re.compile(r"""^__version__(?:\s*:[^=]+)?\s*=\s*["']([^"'+]+)""", re.MULTILINE)
_KINDS: Final = {"int": INT, "float": FLOAT, "str": TEXT, "bool": SWITCH, "str_to_bool": SWITCH}
_FLAGS: Final = frozenset({"store_true", "store_false", "store_const", "check_env"})
_SWITCHED: Final = "(true|false)"
_OR_ANOTHER: Final = "either boolean"
_UNREAD: Final = object()


@attrs.frozen
class _Home:
    """Where a launcher's package says which version it is, and makes its parser."""

    package: str
    versioned: str
    parser: str
    function: str


_HOMES: Final[Mapping[str, _Home]] = {
    "accelerate": _Home("accelerate", "__init__.py", "commands/launch.py", "launch_command_parser"),
    "torchrun": _Home("torch", "version.py", "distributed/run.py", "get_args_parser"),
}


@functools.cache
def installed_version(launcher: str) -> str | None:
    """The version of a launcher that is installed here, without a local part; None: not known."""
    home = _HOMES[launcher]
    folder = _folder(home.package)
    found = None if folder is None else _VERSION.search(_source(folder / home.versioned))
    return None if found is None else found[1]


@functools.cache
def installed_arguments(launcher: str) -> Mapping[str, Argument]:
    """Its arguments by their Python names; empty: there is no source of it that can be read."""
    home = _HOMES[launcher]
    folder = _folder(home.package)
    return {} if folder is None else dict(arguments_in(_source(folder / home.parser), home.function))


@functools.cache
def installed_fields() -> tuple[str, ...]:
    """What a configuration file of Accelerate may say; empty: there is no source of it that can be read."""
    folder = _folder("accelerate")
    return () if folder is None else tuple(fields_in(_source(folder / "commands/config/config_args.py")))


def fields_in(source: str) -> Iterator[str]:
    """The names of the fields that the classes of a configuration declare."""
    with contextlib.suppress(SyntaxError):  # written for a newer Python
        for made in ast.parse(source).body:
            if isinstance(made, ast.ClassDef) and made.name in ("BaseConfig", "ClusterConfig"):
                for line in made.body:
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                        yield line.target.id


def arguments_in(source: str, function: str) -> Iterator[tuple[str, Argument]]:
    """The arguments that a function adds to its parser, by their Python names.

    What is not a literal in it, such as choices that are imported, is not known: any value is taken then.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:  # written for a newer Python
        return
    for maker in ast.walk(tree):
        if isinstance(maker, ast.FunctionDef) and maker.name == function:
            for call in ast.walk(maker):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr == "add_argument"
                ):
                    yield from _argument(call)


def _argument(call: ast.Call) -> Iterator[tuple[str, Argument]]:
    options = [text for node in call.args if isinstance(text := _literal(node), str)]
    said = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    names = [option for option in options if option.startswith("--")]
    if not names or "--help" in names:  # the script and its arguments have no names
        return
    name = _literal(said["dest"]) if "dest" in said else names[0].lstrip("-")
    choices = _literal(said.get("choices"))
    default = _literal(said.get("default"))
    kind, words = _kind(said), str(_literal(said.get("help"))).lower()
    if kind == TEXT and (default in ("true", "false") or _SWITCHED in words):
        kind = WORD if _OR_ANOTHER in words else SWITCH
    if kind == FLAG:
        default = bool(default)
    yield (
        str(name).replace("-", "_"),
        Argument(
            kind=kind,
            default=_switched(default) if kind == SWITCH else None if default is _UNREAD else default,
            choices=tuple(map(str, choices)) if isinstance(choices, (list, tuple)) else (),
        ),
    )


def _kind(said: Mapping[str, ast.expr]) -> str:
    action = said.get("action")
    named = action.id if isinstance(action, ast.Name) else _literal(action)
    if named in _FLAGS:
        return FLAG
    kind = said.get("type")
    if named == "append" or (isinstance(kind, ast.Name) and kind.id.endswith("_list")):
        return LIST
    return _KINDS.get(kind.id, TEXT) if isinstance(kind, ast.Name) else TEXT


def _switched(default: Any) -> bool | None:
    return default if isinstance(default, bool) else {"true": True, "false": False}.get(str(default))


def _literal(node: ast.expr | None) -> Any:
    """The value of a literal; None: nothing is there; ``_UNREAD``: it is none."""
    if node is None:
        return None
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:  # int(1e8)
        called = node.func.id if isinstance(node.func, ast.Name) else None
        inner = _literal(node.args[0])
        return int(inner) if called == "int" and isinstance(inner, (int, float)) else _UNREAD
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _UNREAD


def _folder(package: str) -> Path | None:
    """Where a package is; it is not imported."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # what is imported under this name is not a package
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _source(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
