"""What installed distributions require, in turn: those of them that are installed, with their versions.

A library works as those below it do: scikit-learn as NumPy. What a distribution requires is read from its
metadata and kept in ``UPSHIFT_HOME/fingerprints`` until that file is another one. A marker that is not
understood counts as true.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from upshift.code.fingerprint.keeping import keep, kept
from upshift.code.fingerprint.packages import metadata_of, split

Wanted = tuple[str, tuple[str, ...]]
"""A distribution and its extras, by their normalized names."""

_REQUIREMENT = re.compile(r"\s*(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^]]*)])?[^;]*(?:;(?P<marker>.*))?", re.S)
_FILES = ("METADATA", "PKG-INFO")
_VERSIONS = ("python_version", "python_full_version", "implementation_version")
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def required(distribution: str) -> dict[str, str]:
    """The installed distributions that one requires, directly or not, with their versions; by name."""
    return dict(_required(_normal(distribution), tuple(sys.path)))


@functools.cache
def _required(distribution: str, path: tuple[str, ...]) -> dict[str, str]:
    known = _known()
    before = dict(known)
    first: Wanted = (distribution, ())
    seen = {first}
    pending = [first]
    while pending:
        for wanted in _direct(pending.pop(), path, known):
            if (
                wanted not in seen and wanted[0] != "upshift"
            ):  # which has versions of its own for what it writes
                seen.add(wanted)
                pending.append(wanted)
    if known != before:
        keep(_memo(), json.dumps(known).encode())
    places = _places(path)
    names = {name for name, _ in seen} - {distribution}
    return {name: places[name][1] for name in sorted(names) if name in places}


@functools.cache
def _places(path: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Where the metadata of each installed distribution is, and its version; the first of a name counts."""
    found: dict[str, tuple[str, str]] = {}
    for folder in path:
        for metadata in metadata_of(folder):
            name, version = split(metadata)
            found.setdefault(_normal(name), (os.path.join(folder, metadata), version))
    return found


def _direct(wanted: Wanted, path: tuple[str, ...], known: dict[str, Any]) -> list[Wanted]:
    """What a distribution itself requires here."""
    name, extras = wanted
    if name not in _places(path):
        return []
    folder = _places(path)[name][0]
    for file in (os.path.join(folder, name) for name in _FILES):
        with contextlib.suppress(OSError):
            status = os.stat(file)
            stamp = [status.st_mtime_ns, status.st_size]
            key = f"{file}[{','.join(extras)}]"
            if key not in known or known[key][0] != stamp:
                known[key] = [stamp, list(_read(file, extras))]
            return [(name, tuple(more)) for name, more in known[key][1]]
    return []


def _read(file: str, extras: tuple[str, ...]) -> Iterator[Wanted]:
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():  # the description begins
                return
            field, _, text = line.partition(":")
            match = _REQUIREMENT.fullmatch(text) if field.lower() == "requires-dist" else None
            if match is not None and _holds(match["marker"], extras):
                named = (match["extras"] or "").split(",")
                yield (
                    _normal(match["name"]),
                    tuple(sorted(_normal(extra) for extra in named if extra.strip())),
                )


def _holds(marker: str | None, extras: tuple[str, ...]) -> bool:
    if marker is None:
        return True
    try:
        return _truth(ast.parse(marker.strip(), mode="eval").body, extras)
    except (SyntaxError, ValueError, KeyError, StopIteration):
        return True


def _truth(node: ast.expr, extras: tuple[str, ...]) -> bool:
    if isinstance(node, ast.BoolOp):
        several = (_truth(value, extras) for value in node.values)
        return all(several) if isinstance(node.op, ast.And) else any(several)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise ValueError(ast.dump(node))
    sides = (node.left, node.comparators[0])
    named = next(side.id for side in sides if isinstance(side, ast.Name))
    operator = type(node.ops[0])
    if named == "extra":
        (literal,) = (side for side in sides if not isinstance(side, ast.Name))
        return (_normal(_text(literal)) in extras) == (operator is ast.Eq)
    left, right = map(_text, sides)
    if named in _VERSIONS and operator not in (ast.In, ast.NotIn):
        return _COMPARED[operator](_release(left), _release(right))
    return _COMPARED[operator](left, right)


def _text(side: ast.expr) -> str:
    return _environment()[side.id] if isinstance(side, ast.Name) else str(ast.literal_eval(side))


def _release(version: str) -> list[int]:
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


@functools.cache
def _environment() -> dict[str, str]:
    """What markers name, by the specification of dependency specifiers."""
    version = ".".join(map(str, sys.implementation.version[:3]))
    return {
        "os_name": os.name,
        "sys_platform": sys.platform,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_version": f"{sys.version_info.major}.{sys.version_info.minor}",
        "python_full_version": platform.python_version(),
        "implementation_name": sys.implementation.name,
        "implementation_version": version,
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@functools.cache
def _known() -> dict[str, Any]:
    """What was read before, by file and extras: the file's stamp, and what it requires."""
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(_memo().read_bytes())
        if isinstance(known, dict):
            return known
    return {}


def _memo() -> Path:
    stamp = repr((sys.version, sys.platform, *os.uname()[2:])).encode()
    return kept(f"{hashlib.sha256(stamp).hexdigest()[:32]}.requirements")
