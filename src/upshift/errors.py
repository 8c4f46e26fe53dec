"""Every error that Upshift raises on purpose.

::

    UpshiftError
    ├── UsageError            the user's input is wrong; nothing has run            exit 2
    │   ├── SettingsError     a setting: unknown field, wrong value                 (also ValueError)
    │   ├── GraphError        a pipeline that cannot be composed                    (also TypeError)
    │   ├── MisuseError       a decorator in the wrong place                        (also RuntimeError)
    │   ├── ConfigError       the configuration file or an UPSHIFT_* variable
    │   ├── LoadError         the user's file or module cannot be used
    │   └── NotFound          no such run, step, task, output, target or backend    (also LookupError)
    ├── RequestRefused        a request that cannot be honoured here                exit 2
    ├── ImageError            an image that cannot be read, built or pushed         exit 2
    │   └── RecipeError       … in its ingredients: settings, Dockerfile, packages
    ├── RunOwned              another engine owns the run                           exit 2
    ├── LeaseLost             another engine took the run over from this one        exit 1
    ├── EngineStopped         a detached engine was asked to leave its run          exit 1
    ├── MissingExtra          an optional package is needed                         exit 2
    ├── RunFailed             a run ended without completing; has ``.run``          exit 1
    │   └── RunCancelled      … because it was cancelled                            exit 130
    ├── StoreError            the store cannot do what was asked                    exit 1
    │   ├── NotSerializable   a value that cannot be saved or read back
    │   ├── BlobMissing       content that a record names is not there
    │   ├── BlobDamaged       content that does not match its digest
    │   └── StoreUnavailable  disk full, read-only, unreachable
    └── BackendError          the infrastructure failed, not the step               exit 1

A message says **what** is wrong, **where** (the user's file and line), **why**, and
what to do (**fix**). ``str(error)`` shows all four, each on its own line.
"""

from __future__ import annotations

import functools
import os
import sys

# Little is imported here: what says that a file of the user's hides a module of Python's must not need it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any

_UPSHIFTS = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.join(os.path.dirname(sys.executable or os.__file__), "upshift"),  # the command
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py"),  # the runtime
    "<attrs generated",
)
_PYTHONS = (os.path.dirname(os.path.abspath(os.__file__)) + os.sep, "<frozen ")
_IMPORTING = ("<frozen importlib", "<frozen runpy")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class UpshiftError(Exception):
    """The root of every error that Upshift raises on purpose.

    Parameters
    ----------
    what
        What is wrong, in one sentence.
    where
        The place in the user's code, as ``file:line``.
    why
        The reason, where ``what`` does not say it already.
    fix
        What the user can do about it.
    """

    exit_code = 1

    def __init__(
        self, what: str, *, where: str | None = None, why: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(_writable(what))
        self.what = _writable(what)
        self.where = _writable(where)
        self.why = _writable(why)
        self.fix = _writable(fix)
        if sys.excepthook is sys.__excepthook__:  # nobody else's, such as a debugger's
            sys.excepthook = _show_uncaught

    @property
    def in_short(self) -> str:
        """What and why, for a message with its own place and fix."""
        return self.what if self.why is None else f"{self.what}: {self.why}"

    def __str__(self) -> str:
        lines = [self.what.replace("\n", "\n    ")]
        for label, text in (("where", self.where), ("why", self.why), ("fix", self.fix)):
            if text:
                lines.append(f"  {label + ':':<7}" + text.replace("\n", "\n         "))
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """The traceback for a notebook: as in a script, with cell titles in place of files."""
        from traceback import format_exception

        _show_users_frames_only(self)
        self.__traceback__ = only(self.__traceback__, _is_no_shells)
        return with_cells("".join(format_exception(type(self), self, self.__traceback__))).splitlines()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__dict__.copy()))


def _is_no_shells(part: TracebackType) -> bool:
    """Whether a frame is not that in which IPython runs a cell."""
    return not part.tb_frame.f_code.co_filename.endswith("/IPython/core/interactiveshell.py")


def _writable(text: Any) -> Any:
    """The same text with half characters as escapes: those of a name that is not UTF-8 have no encoding."""
    return text if text is None or text.isascii() else text.encode(errors="backslashreplace").decode()


def _rebuild(kind: type[UpshiftError], state: dict[str, Any]) -> UpshiftError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["what"])
    error.__dict__.update(state)
    return error


def _show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The excepthook: for Upshift's errors it shows only frames of the user's code."""
    _show_users_frames_only(error)
    sys.__excepthook__(kind, error, error.__traceback__)


def _show_users_frames_only(error: BaseException) -> None:
    """Remove Upshift's frames from an error of its own and all causes; for others, from the causes only."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(error, UpshiftError) or isinstance(one, UpshiftError):
            one.__traceback__ = user_frames(one.__traceback__)
        pending += [one.__cause__, one.__context__]


class UsageError(UpshiftError):
    """The user's input is wrong; nothing has run."""

    exit_code = 2


class SettingsError(UsageError, ValueError):
    """A setting has an unknown field or a value that is invalid."""


class GraphError(UsageError, TypeError):
    """A pipeline that cannot be composed as written."""


class MisuseError(UsageError, RuntimeError):
    """A decorator is used in the wrong place; the message shows the right one."""


class ConfigError(UsageError):
    """The configuration file, or an ``UPSHIFT_*`` variable, is wrong."""


class LoadError(UsageError):
    """The user's file or module cannot be used."""


class NotFound(UsageError, LookupError):
    """No such run, step, task, output, target or backend."""


def together(errors: Iterable[UpshiftError]) -> UpshiftError | None:
    """Combine errors into one: the first, with the others below its reasons; None if there are none."""
    found = list(errors)
    if len(found) < 2:
        return found[0] if found else None
    first, *others = found
    told = [f"{e.what}{f' ({e.where})' if e.where else ''}{f': {e.why}' if e.why else ''}" for e in others]
    first.why = "\n".join(filter(None, (first.why, *told)))
    first.fix = "\n".join(dict.fromkeys(e.fix for e in (first, *others) if e.fix)) or None
    return first


class RequestRefused(UpshiftError):
    """A step requests something that its backend cannot give."""

    exit_code = 2


class ImageError(UpshiftError):
    """An image cannot be read, built, pushed or pulled; nothing has run in it."""

    exit_code = 2


class RecipeError(ImageError):
    """An image cannot be built because of its ingredients: only another recipe helps."""


class RunOwned(UpshiftError):
    """Another engine owns the run."""

    exit_code = 2


class EngineStopped(UpshiftError):
    """A detached engine was asked to leave its run, as by its job's time limit; the run can be resumed."""


class LeaseLost(UpshiftError):
    """Another engine took the run over, because this one gave no sign of life for too long."""


class MissingExtra(UpshiftError):
    """An optional package is needed; the message names the exact ``pip install``."""

    exit_code = 2


class RunFailed(UpshiftError):
    """A run ended without completing. ``run`` is that run."""

    def __init__(self, what: str, *, run: Any = None, **details: str | None) -> None:
        super().__init__(what, **details)
        self.run = run


class RunCancelled(RunFailed):
    """A run was cancelled before it completed."""

    exit_code = 130


class StoreError(UpshiftError):
    """The store cannot do what was asked."""


class NotSerializable(StoreError):
    """A value that cannot be saved, or cannot be read back."""


class BlobMissing(StoreError):
    """Content that a record names is not in the store."""


class BlobDamaged(StoreError):
    """Content in the store does not match its digest."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written: disk full, read-only, no permission."""


class BackendError(UpshiftError):
    """The infrastructure failed, not the step."""


@functools.cache
def is_user_file(filename: str, project: str | None = None) -> bool:
    """Whether code of this file is the user's own: not Upshift's, a package's or Python's.

    The innermost folder decides: a project may lie in ``site-packages``, and ``site-packages`` in a
    project.

    Parameters
    ----------
    filename
        As code objects name it.
    project
        Folder of the user's project, where that is known.
    """
    others = [len(folder) for folder in (*_UPSHIFTS, *_PYTHONS) if filename.startswith(folder)]
    others += [filename.rfind(folder) + len(folder) for folder in _INSTALLED if folder in filename]
    own = os.path.join(project, "") if project else ""
    return not others or (own != "" and filename.startswith(own) and len(own) > max(others))


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """The same traceback without the frames of Upshift and of the import machinery."""

    def shown(part: TracebackType) -> bool:
        file = part.tb_frame.f_code.co_filename
        return not is_upshifts(file) and not file.startswith(_IMPORTING)

    return only(trace, shown)


def only(trace: TracebackType | None, shown: Callable[[TracebackType], bool]) -> TracebackType | None:
    """The traceback with only the entries to show."""
    kept: list[TracebackType] = []
    while trace is not None:
        if shown(trace):
            kept.append(trace)
        trace = trace.tb_next
    linked: TracebackType | None = None
    for part in reversed(kept):
        linked = type(part)(linked, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return linked


def is_upshifts(filename: str) -> bool:
    """Whether code of this file is Upshift's own."""
    return filename.startswith(_UPSHIFTS)


def has_no_file(filename: str) -> bool:
    """Whether code of this name has no file and no cell: code for ``exec``, or generated by a package."""
    if filename and not filename.startswith("<"):
        return False
    return not filename.startswith("<ipython-input") and cell_title(filename) is None


def user_frame(innermost: Any = None) -> Any:
    """The innermost frame of the call stack that is the user's own code, or None; in a file if possible."""
    frame: Any = innermost or sys._getframe(1)
    found = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            if not has_no_file(file):
                return frame
            found = found or frame
        frame = frame.f_back
    return found


def user_location() -> str | None:
    """The line of the user's code that is being executed, as ``file:line``.

    Returns
    -------
    str or None
        The path is relative to the working folder where that is shorter.
    """
    frame = user_frame()
    return None if frame is None else location(frame.f_code.co_filename, frame.f_lineno)


def location(file: str, line: int, relative_to: str | None = None) -> str:
    """``file:line``, the file relative to a folder where it lies below it; ``In[3]:line`` in a notebook.

    Parameters
    ----------
    file, line
        The place.
    relative_to
        The folder; default: the working folder.
    """
    title = cell_title(file)
    if title is not None:
        return f"{title}:{line}"
    try:
        relative = os.path.relpath(file, relative_to)
    except (ValueError, OSError):  # another drive, or the working folder is gone
        relative = file
    return f"{file if relative.startswith('..') else relative}:{line}"


def with_cells(traceback: str) -> str:
    """The text of a traceback, with notebook cells under their titles."""
    import re

    def named(line: re.Match[str]) -> str:
        title = cell_title(line[1])
        return line[0] if title is None else f"  Cell {title}"

    return re.sub(r'^  File "(.*?)"', named, traceback, flags=re.MULTILINE)


def cell_title(file: str) -> str | None:
    """The title of the notebook cell with this file name: ``In[3]``; None if it is not a cell."""
    linecache: Any = sys.modules.get("linecache")  # where it is not imported there are no cells
    known: Any = linecache.cache.get(file, ()) if linecache else ()
    if len(known) != 4 or known[1] is not None:  # that of a file has a time of modification
        return None
    if known[3] != file:
        return str(known[3])  # as upshift.runtime.tracebacks.restore_cells has it
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    called: Any = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return called[1] if called else None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that ``name`` is most likely a misspelling of, or None."""
    from difflib import get_close_matches

    known = list(known)
    folded = {k.lower(): k for k in known}
    found = get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if found:
        return folded[found[0]]
    prefixed = [k for k in known if k.startswith(name[:3]) and len(name) >= 3]
    return prefixed[0] if len(prefixed) == 1 else None


_MANY, _SIMILAR = 20, 6


def suggestion(name: str, known: Iterable[str]) -> str:
    """``Did you mean …? Known: …``, for an unknown name; of many that are known, the most similar ones."""
    known = sorted(known)
    close = nearest(name, known)
    shown = known
    if len(known) > _MANY:
        from difflib import get_close_matches

        shown = get_close_matches(name, known, n=_SIMILAR, cutoff=0)
    listing = "Known: " + (", ".join(shown) if known else "none")
    listing += f" and {len(known) - len(shown)} more." if len(known) > len(shown) else "."
    return f"Did you mean {close!r}? {listing}" if close else listing
