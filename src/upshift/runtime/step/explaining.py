"""What ended the call of a step, as the failure that its user reads."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from upshift.errors import StoreUnavailable, UpshiftError
from upshift.model.settings.secrets import is_secret_file
from upshift.model.settings.sizes import format_size
from upshift.model.spec import Code, Failure, TaskSpec
from upshift.runtime import proc, shadowing
from upshift.runtime.step.context import current
from upshift.runtime.step.stopping import stopping
from upshift.runtime.tracebacks import user_line, user_text


class Halted(BaseException):
    """The step must not go on. No ``except Exception`` catches it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Shortage(UpshiftError):
    """The process sees less than was granted."""


class LostInputs(UpshiftError):
    """Inputs that the store does not have any more, or not intact."""

    def __init__(self, digests: tuple[str, ...], why: str) -> None:
        super().__init__(f"{len(digests)} of the task's inputs cannot be read", why=why)
        self.digests = digests


MOST_OF_MESSAGE = 4_000
MOST_OF_TRACEBACK = 100_000
"""Characters that are kept of what an exception says; the middle of more is left out."""


def explain(error: BaseException, spec: TaskSpec, project: Callable[[], Path]) -> Failure:
    """The failure that an exception means, with the user's own frames, fit to be recorded and shown."""
    try:
        failure = _explained(error, spec, project)
    except BaseException:  # the step has left its process without files, descriptors or memory to look closer
        failure = Failure(reason="user-error", message=_text_of(error), where=spec.location)
    return attrs.evolve(
        failure,
        message=_recordable(failure.message, MOST_OF_MESSAGE),
        traceback=failure.traceback and _recordable(failure.traceback, MOST_OF_TRACEBACK),
    )


def _recordable(text: str, most: int) -> str:
    """A text of the user's in UTF-8, without its middle where it is long."""
    left_out = len(text) - most
    if left_out > 0:
        half = most // 2
        text = f"{text[:half]} [… {left_out:,} characters …] {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _explained(error: BaseException, spec: TaskSpec, project: Callable[[], Path]) -> Failure:
    if isinstance(error, LostInputs):
        return Failure(reason="infrastructure", message=str(error), lost=error.digests)
    if isinstance(error, StoreUnavailable):
        return Failure(reason="infrastructure", message=error.in_short, where=error.where, fix=error.fix)
    if isinstance(error, Shortage):
        return Failure(reason="hardware", message=error.what, fix=error.fix)
    if isinstance(error, Halted):
        return error.failure
    if isinstance(error, SystemExit) and (told := stopping.verdict()) is not None:
        return told
    folder = spec.code.project
    if spec.code.package is not None:
        with contextlib.suppress(UpshiftError):  # that may be what is to be explained
            folder = str(project())
    where = user_line(error, folder, relative_to=spec.cwd if spec.code.package is None else folder)
    if isinstance(error, UpshiftError) and where is None:
        return Failure(reason="user-error", message=error.in_short, where=error.where, fix=error.fix)
    ours = _apart(error, where) if isinstance(error, UpshiftError) else None
    text = _text_of(error, ours)
    if isinstance(error, SystemExit):
        text = f"the step called sys.exit({error.code!r})"
    failure = _ran_out_of_memory(error, text, spec) or Failure(
        reason="user-error",
        message=text.rstrip(": "),
        fix=(error.fix if isinstance(error, UpshiftError) else None)
        or _without_terminal(error, spec)
        or _file_left_behind(error, spec.code, folder)
        or missing_variable(error, spec.code)
        or shadowing.advice(error, folder)
        or _not_installed(error),
    )
    # Where a package is unpacked is of no use to its user, who may be on another machine.
    shown = user_text(error, folder)
    if ours is not None:
        shown = shown.replace(str(error), ours)
    shown = shown.replace(f'File "{folder}{os.sep}', f'File "{spec.code.project}{os.sep}')
    return attrs.evolve(failure, where=where, traceback=shown)


def _not_installed(error: BaseException) -> str | None:
    """Where to install a package that the step imports and its environment lacks."""
    package = ((isinstance(error, ModuleNotFoundError) and error.name) or "").partition(".")[0]
    if not package or package in sys.modules:
        return None
    return (
        f"Install {package!r} in the environment of the step: this one, or with "
        f"DockerSettings(requirements=[…]) in its image."
    )


def _text_of(error: BaseException, ours: str | None = None) -> str:
    kind = type(error).__qualname__
    try:
        return f"{kind}: {error if ours is None else ours}".rstrip(": ")
    except BaseException:  # the user's __str__ raises, or exits
        return f"{kind} (its text cannot be shown)"


def _apart(error: UpshiftError, where: str | None) -> str:
    """An error of ours without its remedy, and its place if that is ``where``: these have their fields."""
    return error.in_short if error.where in (None, where) else f"{error.in_short} ({error.where})"


def _ran_out_of_memory(error: BaseException, text: str, spec: TaskSpec) -> Failure | None:
    """The failure, if memory ran out: the host's, or that of a device."""
    from upshift.runtime.accelerators.exhaustion import exhaustion  # nothing but a failure needs it

    shortage = exhaustion(error, (spec.granted.gpus if spec.granted else None) or ())
    if shortage is not None and not shortage.host:
        return Failure(reason="out-of-memory", message=shortage.sentence, fix=shortage.remedy)
    if shortage is None and not isinstance(error, MemoryError):
        return None
    reached = proc.own_memory().high
    return Failure(
        reason="out-of-memory",
        message=text.rstrip(": ") if shortage is None else shortage.sentence,
        memory=reached,
        fix=_more_memory(reached, spec),
    )


def _more_memory(reached: int, spec: TaskSpec) -> str:
    """What to do where host memory ran out."""
    limit = spec.granted.memory if spec.granted is not None else None
    of = f" of the {format_size(limit)} that it was granted" if limit is not None else ""
    return (
        f"Its process had {format_size(reached)}{of}. Let it need less at once, or ask for more (memory=…)."
    )


def _without_terminal(error: BaseException, spec: TaskSpec) -> str | None:
    """What to do instead of ``breakpoint()`` and ``input()``, if the step ended because of one."""
    asked = isinstance(error, EOFError) and error.args == ("EOF when reading a line",)
    if not asked and type(error).__name__ != "BdbQuit":
        return None
    command = f"upshift run FILE --debug {shlex.quote(str(spec.task.step))}"
    if current.rank:
        return f"A step has no terminal. {command} gives it yours, but as one process, which is rank 0."
    return f"A step has no terminal. To run it in yours, with breakpoint() and input(): {command}"


def _file_left_behind(error: BaseException, code: Code, folder: str) -> str | None:
    """Which file the package lacks, if a step failed because of that; None: it did not."""
    for file in _absent(error, code, folder):
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
        f"Variables of the machine where the run was started are not sent along. Set "
        f'DockerSettings(runtime_environment={{"{name}": "…"}}), or for a secret '
        f'@step(secrets={{"{name}": "env:{name}"}}).'
    )


def _absent(error: BaseException, code: Code, folder: str) -> Iterator[str]:
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
