"""Why a value cannot be saved or read: the very part, in the words of the user's code."""

from __future__ import annotations

import contextlib
import io
import types
from collections.abc import Iterator
from typing import Any

from upshift.errors import NotSerializable
from upshift.model.plain import type_name
from upshift.model.spec.artifact import Artifact

_DEEPEST = 30
_WIDEST = 10_000
"""Parts of one container that are tried."""


def explain_save(value: object, name: str, serializer: str, error: Exception) -> NotSerializable:
    """The error for a value that could not be saved, which names its very part and that part's type."""
    if serializer != "pickle":
        return NotSerializable(
            f"{name} of type {type_name(value)} cannot be saved",
            why=f"serializer {serializer!r}: {type(error).__name__}: {error}",
        )
    path, part, reason = _culprit(value, name, error)
    kind = type(part).__name__
    says_no_more = reason in (f"cannot pickle {n!r} object" for n in (kind, type_name(part)))
    return NotSerializable(
        f"{path} of type {type_name(part)} cannot be saved",
        why=None if says_no_more else reason,
        fix=_fix(path, name, part),
    )


def explain_load(artifact: Artifact, error: Exception) -> NotSerializable:
    """The error for a value whose content is intact and that cannot be read all the same."""
    if isinstance(error, ModuleNotFoundError):
        fix = f"Install {(error.name or 'it').partition('.')[0]!r} here, or put the module where it was."
    elif isinstance(error, (AttributeError, ImportError)):
        fix = "A class or function was moved or renamed: put it back, or run again the step that made it."
    else:
        fix = "Use the versions of Python and of the packages that wrote it, or run its step again."
    return NotSerializable(
        f"a value of type {artifact.type} cannot be read back",
        why=f"{type(error).__name__}: {error}",
        fix=fix,
    )


def _culprit(value: object, path: str, error: BaseException) -> tuple[str, object, str]:
    """The innermost part that fails by itself: its path, itself, and what Python says about it."""
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        seen.add(id(value))
        for step, part in _parts(value):
            failure = None if id(part) in seen else _failure(part)
            if failure is not None:
                value, path, error = part, path + step, failure
                break
        else:
            break
    return path, value, str(error) or type(error).__name__


def _failure(value: object) -> Exception | None:
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]

    try:
        cloudpickle.Pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except Exception as error:  # whatever a user's __reduce__ raises is the finding
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in list(value.items())[:_WIDEST]:
            yield f"[{key!r}]", item
            yield f".keys()[{key!r}]", key
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value[:_WIDEST]):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for item in list(value)[:_WIDEST]:
            yield f".{{{item!r}}}", item
    if isinstance(value, types.FunctionType):
        yield from _captured(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif not isinstance(value, (type, types.ModuleType)):
        yield from _attributes(value)


def _captured(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            yield f" (uses {name!r})", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" (uses {name!r})", function.__globals__[name]


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    state = getattr(value, "__dict__", None)
    if isinstance(state, dict):
        for name, item in state.items():
            yield f".{name}", item
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):  # not set
                yield f".{name}", getattr(value, name)


def _fix(path: str, name: str, part: object) -> str:
    if hasattr(part, "__next__") and not isinstance(part, io.IOBase):
        return f"A {type(part).__name__} can be read once only. Make it a list: list(…)."
    if isinstance(part, io.IOBase):
        return "Close the file, and give its pathlib.Path instead: the store keeps the content."
    if path == name:
        return "Use plain data, arrays, tables or a pathlib.Path that the value can be made from again."
    return "Leave it out, or give the class that holds it a __getstate__ that drops it."
