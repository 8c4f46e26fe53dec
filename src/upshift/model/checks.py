"""What users give, checked where they wrote it: texts, numbers, paths, files, fields of settings.

Names that users know from other tools are answered with what does the same here.
"""

from __future__ import annotations

import functools
import numbers
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from upshift.errors import SettingsError, suggestion, user_location

MOST_CPUS = 100_000
MOST_DEVICES = 10_000
"""On one node, and of one slice of TPUs, of which the largest has 9,216."""
MOST_NODES = 100_000
MOST_PROCESSES = 100_000
"""Of one step, on all of its nodes."""
MOST_PROCESSES_EACH = 10_000
"""Of one step on one of its nodes."""
MOST_TASKS = 100_000
"""Of one mapped step."""
MOST_RUNS = 10**9
"""Of a listing."""
MOST_BYTES = 10**18
MOST_SECONDS = 10 * 365 * 86_400
MOST_FOLDERS = 256
"""One below the other; Python makes missing ones by calling itself for each."""
MOST_TEXT = 4096
"""Characters of a setting, a name or a path; Linux takes no longer path."""
MOST_VARIABLE = 100_000
"""Bytes of a variable of the environment: Linux takes 128 KiB with its name."""
MOST_VARIABLES = 1_000_000
"""Characters of all variables of one step together: they share 2 MiB with the rest of the environment."""
MOST_FILE = 16 << 20
"""Bytes of a file with a configuration or parameters."""
MOST_SHOWN = 200
"""Characters of a value that a message shows."""

_UNFIT = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_UNFIT_LINE = re.compile("[\0-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


BUCKETS = ("s3", "gs", "az")
"""What addresses of buckets begin with."""
PLACES = "a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"


def shown(value: object, most: int = MOST_SHOWN) -> str:
    """A value as a message shows it: its ``repr``, or what there is of it, of at most so many characters."""
    try:
        text = repr(value)
    except Exception:  # too deep, too many digits, or a class that fails at it
        name = type(value).__name__
        text = f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
    return text if len(text) <= most else f"{text[: most - 21]}…{text[-20:]}"


def unfit(text: str, *, lines: bool = False) -> str | None:
    """Why a text cannot be recorded and passed on, as in ``holds a NUL``; None: it can.

    Parameters
    ----------
    lines
        Whether it may have several lines.
    """
    found = (_UNFIT if lines else _UNFIT_LINE).search(text)
    if found is None:
        return None
    character = found[0]
    if "\udc80" <= character <= "\udcff":
        return f"holds a byte that is not UTF-8 (0x{ord(character) - 0xDC00:02x})"
    if "\ud800" <= character <= "\udfff":
        return f"holds half of a character ({character!r})"
    if character in "\n\r\u2028\u2029":
        return "holds a line break"
    return "holds a NUL" if character == "\0" else f"holds a control character ({character!r})"


def in_bucket(address: str) -> bool:
    """Whether an address is one of a bucket or a container."""
    scheme, separator, _ = address.partition("://")
    return bool(separator) and scheme in BUCKETS


def local_path(text: str) -> Path:
    """The absolute path that a text or a ``file://`` URL names; ``~`` is the home of the user.

    Raises
    ------
    ValueError
        It can be no path; the message says why.
    """
    problem = unfit(text) or (f"has {len(text):,} characters" if len(text) > MOST_TEXT else None)
    if problem is not None:
        raise ValueError(problem)
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "file":
        machine, _, path = rest.partition("/")
        if machine not in ("", "localhost"):
            raise ValueError(f"names a machine, {machine!r}; a path here is file:///{path}")
        text = f"/{path}"
    try:
        named = Path(text).expanduser().absolute()
        if len(named.parts) > MOST_FOLDERS:
            raise ValueError(f"is {len(named.parts):,} folders deep")
        return named
    except RuntimeError:  # as Python words it: could not determine home directory
        name = text.partition("/")[0]
        raise ValueError(f"begins with {name}, and nobody's home is known by that name") from None
    except FileNotFoundError:
        raise ValueError("is relative to the working folder, which is gone") from None


def small_text(file: Path) -> str:
    """The text of a file that a user names, which may be anything: ``/dev/zero``, a folder, no text.

    Raises
    ------
    ValueError
        It cannot be read; the message says why.
    """
    try:
        with open(file, "rb") as opened:
            content = opened.read(MOST_FILE + 1)
        if len(content) > MOST_FILE:
            raise ValueError(f"it has more than {MOST_FILE:,} bytes")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


T = TypeVar("T", bound=type)


class Told:
    """A converter that is told its field; attrs' own one needs 24.1, and images bring an older attrs."""

    def __init__(self, convert: Callable[[Any, Any], Any]) -> None:
        self._convert = convert
        self.field: Any = None

    def __call__(self, value: Any) -> Any:
        return self._convert(value, self.field)


def refuse_unknown_fields(cls: T) -> T:
    """Class decorator for attrs settings: an unknown or positional argument names the right ones.

    attrs alone raises ``TypeError: __init__() got an unexpected keyword argument``, which names
    neither the nearest field nor the user's line. A class may say in ``_elsewhere`` what other
    tools' names for its fields are here.
    """
    import attrs  # upshift --help needs none of it

    names = [field.name for field in attrs.fields(cls) if field.init]
    for field in attrs.fields(cls):
        if isinstance(field.converter, Told):
            field.converter.field = field
    elsewhere = names_elsewhere(cls)
    original = cls.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **fields: Any) -> None:
        if args:
            raise SettingsError(
                f"{cls.__name__} takes its fields by name, not by position",
                where=user_location(),
                fix=f"Fields: {', '.join(names)}.",
            )
        for name in fields:
            if name not in names:
                raise SettingsError(
                    f"{cls.__name__} has no field {name!r}",
                    where=user_location(),
                    fix=f"Use {elsewhere[name]}." if name in elsewhere else suggestion(name, names),
                )
        original(self, **fields)

    cls.__init__ = __init__  # type: ignore[misc]
    return cls


def names_elsewhere(cls: type) -> Mapping[str, str]:
    """What says here what other tools' settings say by these names."""
    return getattr(cls, "_elsewhere", {})


def bad_value(owner: str, field: str, value: object, expected: str, *, meant: object = None) -> SettingsError:
    """The error for a value that is invalid: field, value, what was meant, what is allowed, the line."""
    return SettingsError(
        f"{owner}: {field}={shown(value)} is invalid",
        where=user_location(),
        fix=(f"Did you mean {shown(meant)}? " if meant else "") + f"Expected {expected}.",
    )


def number(
    owner: str,
    field: str,
    value: Any,
    *,
    least: float = 0,
    most: float,
    whole: bool = False,
    what: str | None = None,
) -> Any:
    """A number within its limits, as an ``int`` where it is whole; NumPy's too.

    Parameters
    ----------
    what
        What is expected; default: a number, or a whole one, and the limits follow.

    Raises
    ------
    SettingsError
        It is none, or outside the limits.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if real and least <= value <= most and (not whole or value % 1 == 0):
        return int(value) if value % 1 == 0 else float(value)
    kind = what or ("a whole number" if whole else "a number")
    raise bad_value(owner, field, value, f"{kind} from {least:,g} to {most:,}")


def checked_flag(owner: str, field: str, value: bool | None) -> bool | None:
    """True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise bad_value(owner, field, value, "True or False")
    return value


def flag(owner: str, *, required: bool = False) -> Told:
    """The converter of a field that is True or False; or None, if it is not required."""

    def convert(value: Any, field: Any) -> Any:
        if value is None and required:
            raise bad_value(owner, field.name, value, "True or False")
        return checked_flag(owner, field.name, value)

    return Told(convert)


def text(owner: str, field: str, value: Any, *, most: int = MOST_TEXT) -> str | None:
    """A line of text, or None, as :func:`line` checks it."""
    return None if value is None else line(owner, field, value, most=most)


def line(owner: str, field: str, value: Any, *, most: int = MOST_TEXT) -> str:
    """A line of text.

    Raises
    ------
    SettingsError
        It is no text, is empty, too long, or holds what is no part of a line.
    """
    if not isinstance(value, str) or not value.strip():
        raise bad_value(owner, field, value, "a non-empty string")
    problem = unfit(value) or (f"has {len(value):,} characters" if len(value) > most else None)
    if problem is not None:
        raise SettingsError(
            f"{owner}: {field} {problem}",
            where=user_location(),
            fix=f"Expected one line of at most {most:,} characters.",
        )
    return value


_NAMES = {
    "Deployer": "Nothing is deployed: let cron, a systemd timer or CI call `python flow.py run`.",
}

_ELSEWHERE = {
    "Client": "Runs and values are found by upshift.get_run, list_runs, get_artifact and list_artifacts.",
    "flow": "A pipeline is a function with @pipeline, or a class: from upshift import FlowSpec.",
    "get_pipeline_context": "In a step, upshift.current has the run.",
    "get_run_logger": "The output and logs of a step are kept: upshift logs RUN.",
    "get_step_context": "In a step, upshift.current has the run, step and attempt.",
    "log_artifact": "The return value of a step is kept with a name and a version: upshift artifacts.",
    "log_metadata": "Numbers and texts are logged by name: upshift.log(loss=0.1).",
    "log_metric": "Metrics are logged by name: upshift.log(loss=0.1, step=1).",
    "task": "A task of other tools is a step here: from upshift import step.",
}
_TASK = "Call it in a pipeline, {name}(…): each call is a task. {name}.map(items) makes one for each item."
_CLOCK = "Nothing in Upshift runs by the clock: let cron, a systemd timer or CI call `upshift run`."
_OPTIONS = {
    "enable_cache": "Use cache=False or cache=True.",
    "schedule": _CLOCK,
    "step_operator": 'Use on="docker", or another target.',
}

_METHODS = {
    "pipeline": {
        "deploy": _CLOCK,
        "map": "A step is mapped, and not a pipeline: STEP.map(items).",
        "plan": "To see what would run where: upshift plan FILE:{name}",
        "schedule": _CLOCK,
        "serve": _CLOCK,
        "submit": "Call it: {name}(…) runs it, and gives the run.",
    },
    "step": {
        "delay": _TASK,
        "expand": _TASK,
        "partial": "{name}.map(items, other=unmapped(value)) gives one value to all tasks.",
        "remote": _TASK,
        "run": "Call it: {name}(…) runs it here, and is a task where a pipeline calls it.",
        "starmap": "{name}.map(a=…, b=…) takes one list for each parameter.",
        "submit": _TASK,
    },
}

NOT_YET = "is not in this version of Upshift."
_OTHERS = ("metaflow", "zenml")


def name_to_come(name: str) -> str | None:
    """Why there is no ``upshift.NAME`` and what to do meanwhile; None: nor will there be one."""
    if name in _ELSEWHERE:
        return f"upshift has no {name!r}. {_ELSEWHERE[name]}"
    advice = _NAMES.get(name)
    return None if advice is None else f"{name} {NOT_YET} {advice}"


def option_of_another_tool(name: str) -> str | None:
    """What to say in place of an option that another tool has; None: it is none of those."""
    return _OPTIONS.get(name)


def module_of_another_tool(name: str) -> str | None:
    """What to import in place of another tool's module; None: it is no such module."""
    if name not in _OTHERS:
        return None
    return (
        "In Upshift: from upshift import step, pipeline. The page coming-from of the documentation has "
        "the other names."
    )


def method_of_another_tool(kind: str, name: str) -> str | None:
    """What to call in place of a method that another tool's steps or pipelines have; None: it is none."""
    return _METHODS[kind].get(name)
