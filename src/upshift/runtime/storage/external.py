"""What a value refers to: data that is only named (:class:`External`), files, and code.

The first two are saved by themselves. They are looked for in dictionaries, lists, tuples, sets and records
(dataclasses, attrs, pydantic), nested as they are. Of an object of any other class it is not known what a
path in it means: it is pickled as it is.

A step that calls ``data.clean()`` names no class; what it computes depends on that of its input all the
same. So the names of code are kept with the value, and what they stand for is looked up when a key is made.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from upshift.errors import UsageError, is_user_file, user_location
from upshift.model.checks import local_path, shown, unfit
from upshift.runtime.storage.digest import digest_of


def _uri(value: str | os.PathLike[str]) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    problem: str | None = "names nothing"
    if isinstance(text, str) and text.strip():
        local = "://" not in text or text.startswith("file://")
        try:
            problem = unfit(text)
            if problem is None:
                return os.path.abspath(local_path(text)) if local else text
        except ValueError as error:
            problem = str(error)
    raise UsageError(
        f"External({shown(value)}) {problem}",
        where=user_location(),
        fix='Give a path or a URL, such as External("/shared/data") or External("s3://bucket/data").',
    )


def _version(value: object) -> str | None:
    text = shown(value) if isinstance(value, int) else value
    if text is not None and (not isinstance(text, str) or unfit(text)):
        raise UsageError(
            f"External(version={shown(value)}) is invalid",
            where=user_location(),
            fix='Give one line of text, such as version="2026-05".',
        )
    return text


@attrs.frozen
class External:
    """Data that a step reads where it lies. Only its name and its key are saved.

    The key decides whether a step that uses it has to run again. It is ``version``, if given; else
    the sizes and modification times of a file or folder, or the etag of an object.

    Parameters
    ----------
    uri
        A path, or a URL such as ``s3://bucket/data``. A path is made absolute.
    version
        What changes when the data changes.

    Raises
    ------
    UsageError
        ``uri`` names nothing, or ``version`` is no string.
    """

    uri: str = attrs.field(converter=_uri)
    version: str | None = attrs.field(default=None, converter=_version)

    @property
    def path(self) -> Path:
        """The path of local data.

        Raises
        ------
        UsageError
            The data is not on a file system.
        """
        if "://" in self.uri:
            raise UsageError(
                f"{self.uri} has no path here",
                where=user_location(),
                fix="Open .uri with the library of that storage, or give a path on a shared file system.",
            )
        return Path(self.uri)

    def key(self) -> str:
        """What changes when the data changes.

        Raises
        ------
        UsageError
            The data is not there, or nothing is known about it and no version is given.
        """
        if self.version is not None:
            return f"version:{self.version}"
        return _remote_key(self.uri) if "://" in self.uri else _local_key(self.uri)


def _local_key(path: str) -> str:
    try:
        status = os.stat(path)
        if not os.path.isdir(path):
            return f"file:{status.st_size}:{status.st_mtime_ns}"
        listing = "\n".join(_listing(path))
    except OSError as error:
        raise UsageError(
            f"External data cannot be read: {path}",
            why=os.strerror(error.errno or 0),
            fix="Correct the path, or see that it is mounted on this machine.",
        ) from None
    return "folder:" + digest_of(os.fsencode(listing))


def _listing(folder: str) -> Iterator[str]:
    pending = [folder]
    while pending:
        current = pending.pop()
        for entry in sorted(os.scandir(current), key=lambda entry: entry.name):
            name = os.path.relpath(entry.path, folder)
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
                yield f"{name!r}/"
            else:
                status = entry.stat(follow_symlinks=False)
                if entry.is_symlink():
                    status = _behind(entry) or status
                yield f"{name!r} {status.st_size} {status.st_mtime_ns}"


def _behind(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except FileNotFoundError:  # a link to nothing is as good a name as any
        return None


def _remote_key(uri: str) -> str:
    advice = 'Give External(…, version="…"), and change it when the data changes.'
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise UsageError(
            f"it cannot be known when {uri} changes",
            why="Asking that storage needs fsspec, which is not installed.",
            fix=advice,
        ) from None
    try:
        info = fsspec.filesystem(uri.partition("://")[0]).info(uri)
    except Exception as error:  # each storage has its own errors
        raise UsageError(
            f"External data cannot be reached: {uri}", why=f"{type(error).__name__}: {error}", fix=advice
        ) from None
    for field in ("ETag", "etag", "md5Hash", "content_md5", "generation"):
        if info.get(field):
            return f"{field.lower()}:{info[field]}"
    raise UsageError(f"it cannot be known when {uri} changes", why="It has no etag.", fix=advice)


_LEFT_OUT = sys.stdlib_module_names | {"upshift", "cloudpickle"}
"""The version of Python counts for its own classes, in every key; the others only carry the value."""


def code_names(objects: Iterable[Any]) -> tuple[str, ...]:
    """What these classes, functions and modules are called, ``module:qualname``, in order of the alphabet.

    Those of Python itself are left out, and of each installed package one stands for all: its version
    counts. So are those that are defined within a function or in a notebook, which travel by value.
    """
    names = set()
    installed: dict[str, str] = {}
    for found in objects:
        module, qualname = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        if isinstance(found, ModuleType):
            module, qualname = found.__name__, ""
        if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
            continue
        top = module.partition(".")[0]
        place = _place(top)
        if top in _LEFT_OUT or place is None:
            continue
        name = f"{module}:{qualname}"
        if not is_user_file(place):
            installed[top] = min(name, installed.get(top, name))
        else:
            names.add(name)
    return tuple(sorted({*names, *installed.values()}))


def _place(top: str) -> str | None:
    """The file or folder of a module at the top level; None: it is made in memory."""
    module = sys.modules.get(top)
    file = getattr(module, "__file__", None)
    return file or next(iter(getattr(module, "__path__", ())), None)


def is_users(kind: type) -> bool:
    """Whether a class is the user's own."""
    top = kind.__module__.partition(".")[0] if isinstance(kind.__module__, str) else ""
    place = None if top in _LEFT_OUT else _place(top)
    return top == "__main__" or (place is not None and is_user_file(place))


_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))


def is_saved_apart(kind: object) -> bool:
    """Whether what is of this class has a serializer of its own, also inside a container."""
    return kind is External or (isinstance(kind, type) and issubclass(kind, Path))


def holds_parts(value: object) -> bool:
    """Whether there are any in a value."""
    return next(parts_of(value), None) is not None


def parts_of(
    value: object,  # one of them, or a container of them; in anything else nothing is found
    name: str = "",  # what the value is called
) -> Iterator[tuple[str, Path | External]]:
    """The files, and data that is only named, in a value: each once, with the Python that leads to it."""
    seen: dict[int, object] = {}  # kept, so that no other object gets an id of theirs
    pending: list[tuple[str, Any]] = [(name, value)]
    while pending:
        where, part = pending.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if is_saved_apart(type(part)):
            yield where, part
        else:
            pending += reversed([(where + step, inner) for step, inner in _inside(part)])


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if not _plain(value.values()):
            yield from ((f"[{_shown(key)}]", item) for key, item in value.items())
        if not _plain(value):
            yield from ((f".keys()[{_shown(key)}]", key) for key in value)
    elif isinstance(value, (list, tuple)):
        if not _plain(value):
            yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        if not _plain(value):
            yield from ((f".{{{_shown(item)}}}", item) for item in value)
    else:
        for field in _fields(type(value)):  # type: ignore[arg-type]  # a class is hashable
            yield f".{field}", getattr(value, field, None)


def _shown(key: object) -> str:
    try:
        return repr(key)
    except Exception:  # the user's __repr__ raises
        return f"<{type(key).__qualname__}>"


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if attrs.has(kind):
        return tuple(field.name for field in attrs.fields(kind))
    fields = getattr(kind, "model_fields", None)  # pydantic
    return tuple(fields) if isinstance(fields, dict) else ()


def _plain(items: Any) -> bool:
    """Whether none of these can hold anything; of a million numbers that is soon seen."""
    return set(map(type, items)) <= _ATOMS
