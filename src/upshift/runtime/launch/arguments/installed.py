"""The arguments of the launcher that is installed, read from its source: importing it imports torch."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from upshift.runtime.launch.arguments.argument import FLAG, FLOAT, INT, LIST, SWITCH, TEXT, WORD, Argument

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
    found = None if folder is None else _VERSION.search(_text(folder / home.versioned))
    return None if found is None else found[1]


@functools.cache
def installed_arguments(launcher: str) -> Mapping[str, Argument]:
    """Its arguments by their Python names; empty: there is no source of it that can be read."""
    home = _HOMES[launcher]
    folder = _folder(home.package)
    return {} if folder is None else dict(arguments_in(_text(folder / home.parser), home.function))


@functools.cache
def installed_fields() -> tuple[str, ...]:
    """What a configuration file of Accelerate may say; empty: there is no source of it that can be read."""
    folder = _folder("accelerate")
    return () if folder is None else tuple(fields_in(_text(folder / "commands/config/config_args.py")))


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


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
