"""A step that runs from a code package: its places in the project, and what did not travel with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from upshift.model.settings.secrets import is_secret_file
from upshift.model.spec import Code
from upshift.runtime.storage.digest import split


def at_home(text: str, code: Code) -> str:
    """A text with the project's path in place of the folder that its package is unpacked in."""
    if code.package is None:
        return text
    unpacked = re.compile(rf"/[^\s\"(]*/{split(code.package)[1]}(?=/)")
    return unpacked.sub(lambda _: code.project, text)


class Places:
    """Tracebacks in a stream, with the project's places, however it is cut into pieces.

    Only the lines of a traceback are changed: any other path is one that the program works with.
    """

    def __init__(self, code: Code, folder: Path) -> None:
        name = split(code.package)[1] if code.package else ""
        self._there = os.fsencode(f'File "{folder / name}/')
        self._here = os.fsencode(f'File "{code.project}/')
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be written now."""
        data = (self._held + data).replace(self._there, self._here)
        sizes = range(min(len(data), len(self._there) - 1), 0, -1)
        cut = len(data) - next((size for size in sizes if data.endswith(self._there[:size])), 0)
        self._held = data[cut:]
        return data[:cut]

    def end(self) -> bytes:
        """What is left."""
        held, self._held = self._held, b""
        return held


def advice(error: BaseException, code: Code, folder: str) -> str | None:
    """Which file the package lacks, if a step failed because of that; None: it did not."""
    for file in _missed(error, code, folder):
        if os.path.exists(os.path.join(code.project, file)) and not os.path.exists(
            os.path.join(folder, file)
        ):
            if is_secret_file(file):
                why, also = "its name looks like a secret", "rename it"
            else:
                why, also = ".gitignore or .upshiftignore names it", f"put !{file} into .upshiftignore"
            return (
                f"{file} is in the project, but not in its code package: {why}. Use the project as it is now "
                f"(replay with --current-code, resume without --same-code); for later runs, {also}."
            )
    return None


def missing_variable(error: BaseException, code: Code) -> str | None:
    """What to do about a variable that a step misses because it did not travel; None: it misses none."""
    trace, last = error.__traceback__, None
    while trace is not None:
        trace, last = trace.tb_next, trace
    if code.package is None or last is None or not isinstance(error, KeyError):
        return None
    name = error.args[0] if error.args else None
    if not isinstance(name, str) or last.tb_frame.f_code is not type(os.environ).__getitem__.__code__:
        return None
    return (
        f"Variables of the machine where the run was started do not travel. Say "
        f'DockerSettings(runtime_environment={{"{name}": "…"}}), or for a secret '
        f'@step(secrets={{"{name}": "env:{name}"}}).'
    )


def _missed(error: BaseException, code: Code, folder: str) -> Iterator[str]:
    """What an exception says is not there, as paths relative to the project."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.replace(".", os.sep)
        for path in code.paths or ("",):
            for form in (f"{name}.py", os.path.join(name, "__init__.py"), name):
                yield os.path.normpath(os.path.join(path, form))
    elif isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        file = os.path.relpath(error.filename, folder)
        if not file.startswith(os.pardir):
            yield file
