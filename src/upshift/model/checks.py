"""What comes in from outside: texts, numbers, paths and small files, each looked at in one place."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from upshift.errors import UsageError

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


def read_small(
    file: Path, parse: Callable[[str], Any], *, form: str, kind: type[UsageError], fix: str | None = None
) -> Any:
    """What a file of the user's says, as ``parse`` reads it.

    Parameters
    ----------
    parse
        Raises ValueError for what it cannot read.
    form
        What the file should be: ``"TOML"``.
    kind, fix
        The error, and what to do, if it is not.

    Raises
    ------
    UsageError
        It cannot be read, is too large, or has another form.
    """
    try:
        text = small_text(file)
    except ValueError as error:
        raise kind(f"{file} cannot be read: {error}", fix=f"Name a {form} file that you can read.") from None
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        why = "It is nested too deeply." if isinstance(error, RecursionError) else str(error)
        raise kind(f"{file} is not valid {form}", why=why, fix=fix) from None
