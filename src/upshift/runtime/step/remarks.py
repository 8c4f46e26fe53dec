"""What a step's log says of what it returned; a step never fails for it.

* A value that contradicts the annotation of what the step returns. Only Python's own types are looked at,
  from the outside, and whatever counts as one of them (NumPy's numbers, mappings, …) is taken for it.
* A secret in a text that is returned.
* Files written to the step's own copy of an input. A pipeline that is given an existing folder to write
  results to, as a ``Path``, would never see them: the log says what was written and how to keep it.
"""

from __future__ import annotations

import contextlib
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from upshift.model.plain import type_name
from upshift.model.spec import TaskSpec
from upshift.model.spec.calls import annotation_of
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.external import parts_of

_Listing = dict[str, tuple[int, int]]
_COUNT_AS: Mapping[Any, tuple[type, ...]] = {
    bool: (bool,),
    bytes: (bytes, bytearray, memoryview),
    dict: (Mapping,),
    float: (Real,),
    int: (Integral,),
    list: (list,),
    set: (Set,),
    str: (str,),
    tuple: (tuple,),
}


def on_types(function: Callable[..., Any], step: str, values: Sequence[object]) -> Iterator[str]:
    """What to say where an output is not what the function's annotation promises."""
    hint = annotation_of(function, "return")
    hints = typing.get_args(_bare(hint)) if len(values) > 1 else (hint,)
    for number, (promised, value) in enumerate(zip(hints, values, strict=False), 1):
        if _contradicts(promised, value):
            which = "" if len(values) == 1 else f" as output {number}"
            yield f"{step} is annotated to return {_shown(promised)}{which}, and returned {type_name(value)}"


def on_secrets(spec: TaskSpec, values: tuple[object, ...]) -> Iterator[str]:
    """What to say where a text that the step returns holds a secret."""
    for output, item in zip(spec.outputs, values, strict=True):
        for name in spec.settings.secret_sources:
            if isinstance(item, str) and (secret := os.environ.get(name)) and secret in item:
                yield f"the output {output.name!r} holds the secret {name}; it is stored as it is"


def _contradicts(hint: Any, value: object) -> bool:
    hint = _bare(hint)
    origin = typing.get_origin(hint) or hint
    if origin in (typing.Union, types.UnionType):
        return all(_contradicts(one, value) for one in typing.get_args(hint))
    if origin in (None, type(None)):
        return value is not None
    kinds = _COUNT_AS.get(origin) if isinstance(origin, type) else None
    if kinds is None or isinstance(value, kinds):
        return False
    return not (origin is bool and type(value).__name__ in ("bool", "bool_"))  # those of NumPy


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _shown(hint: Any) -> str:
    hint = _bare(hint)
    return (
        hint.__name__
        if typing.get_origin(hint) is None and isinstance(hint, type)
        else str(hint).removeprefix("typing.")
    )


class Copies:
    """The copies among the inputs of a task, as they are when this is made."""

    def __init__(self, inputs: Mapping[str, object]) -> None:
        top = os.environ.get(home_folders.VARIABLE, "")
        own = {path for path in _paths(dict(inputs)) if top and path.is_relative_to(top)}
        self._before = {path: _listing(path) for path in sorted(own)}

    def remarks(self, step: str, value: object) -> Iterator[str]:
        """What to say of what was written to them; of those that ``value`` is from, nothing is lost."""
        for path, before in self._before.items():
            written = sorted(name for name, state in _listing(path).items() if before.get(name) != state)
            if written and not any(part.is_relative_to(path) for part in _paths(value)):
                more = f" and {len(written) - 1:,} more" if len(written) > 1 else ""
                yield (
                    f"{step} wrote {written[0]}{more} to its own copy of an input, which goes with the task. "
                    "To keep it, return its path; to write in place, pass the path as a str."
                )


def _paths(value: object) -> Iterator[Path]:
    return (part for _, part in parts_of(value) if isinstance(part, Path))


def _listing(top: Path) -> _Listing:
    """Size and time of each file at or below ``top``, by its path from the folder that this is in."""
    found: _Listing = {}
    files = (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names)
    for path in files if top.is_dir() else [str(top)]:
        if f"{os.sep}__pycache__{os.sep}" in path:  # an import wrote it
            continue
        with contextlib.suppress(OSError):  # removed meanwhile, or in a folder that may not be looked into
            status = os.lstat(path)
            found[os.path.relpath(path, top.parent)] = (status.st_size, status.st_mtime_ns)
    return found
