"""The user's modules: what they are called, how they are imported, what ``__main__`` counts as.

A file has one module name, however it is run: ``python train.py``, ``upshift run train.py`` and a
worker all know its functions and classes as ``train.…``, so that they pickle to the same bytes and
mean the same thing everywhere.

They are imported as their files are now. Python takes a module's cached bytecode for good where the time
(in whole seconds) and the size of the source agree with it: an edit within the second that keeps the size,
``x / 0`` to ``x / 2``, then runs the old code. The bytecode's own time tells the two apart, to the tick of
the file system's clock.

What a step reaches is looked at once, when the pipeline is composed. A task that imports a module later,
or starts a process that does, may meet another version of it: its result must not stand for the first. So a
run keeps the stamps of its source files, and :class:`Sources` tells whether they are still as they were.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from upshift.errors import is_user_file
from upshift.runtime.storage.digest import digest_of

if TYPE_CHECKING:
    from importlib.abc import PathEntryFinder


SOURCES = "sources.json"
"""The record of a run with the stamps of its source files."""

Stamp = tuple[int, int, str]
"""Size, time of the last change in nanoseconds, digest of the content."""

_importing = 0
_ignored_calls = 0
_began: float | None = None
_begun: str | None = None


def module_name(file: Path) -> tuple[str, Path]:
    """The dotted name of a file's module, and the entry of ``sys.path`` that it is found under.

    A file in a package (a folder with ``__init__.py``) is named from the package's root, so that
    its relative imports work.
    """
    file = file.absolute()
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def main_module_name() -> str | None:
    """What ``__main__`` counts as: the module that its file is; None where it has no file."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:  # python -m package.module
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return module_name(Path(file))[0] if file and Path(file).exists() else None


def adopt_main() -> None:
    """Make ``__main__`` the module that its file is, for everybody who looks.

    What it defines is renamed, so that it is pickled by reference to that module; and importing
    that module gives this one instead of a second copy. That of a command or a package is left alone.
    """
    name = main_module_name()
    main = sys.modules.get("__main__")
    if name is None or main is None or not _is_users(main):
        return
    if sys.modules.setdefault(name, main) is not main:
        return
    seen: set[int] = set()
    pending = [vars(main)]
    while pending:
        for value in itertools.chain.from_iterable(map(_layers, list(pending.pop().values()))):
            if getattr(value, "__module__", None) != "__main__" or id(value) in seen:
                continue
            seen.add(id(value))
            with contextlib.suppress(AttributeError, TypeError):  # an instance of a frozen class
                value.__module__ = name
            if isinstance(value, type):
                pending.append(dict(vars(value)))


def _is_users(main: ModuleType) -> bool:
    file = getattr(main, "__file__", None) or ""
    return file.endswith(".py") and is_user_file(os.path.abspath(file))


def _layers(value: Any) -> Iterator[Any]:
    """A value, and what it is wrapped around: decorated functions, methods, properties."""
    yield value
    kind = type(value)
    names = ["__wrapped__"] if "__wrapped__" in getattr(value, "__dict__", ()) else []
    if kind in (staticmethod, classmethod):
        names = ["__func__"]
    elif kind is property:
        names = ["fget", "fset", "fdel"]
    for name in names:
        inner = getattr(value, name, None)
        if inner is not None:
            yield from _layers(inner)


def loading() -> bool:
    """Whether the user's modules are being imported by Upshift, so that pipelines must not run."""
    return _importing > 0


def imported_by_a_child(caller: FrameType) -> bool:
    """Whether this is a process of :mod:`multiprocessing`, which imports the caller's module to work with."""
    known = sys.modules.get("multiprocessing.process")
    if known is None or caller.f_code.co_name != "<module>" or caller.f_globals.get("__name__") == "__main__":
        return False
    return known.parent_process() is not None or hasattr(known.current_process(), "_inheriting")


def loading_to_work() -> bool:
    """Whether a worker imports them that has not got them from its engine: what they say is in its spec."""
    return loading() and _began is None


def ignore_call() -> None:
    """Note that a pipeline was called at module level meanwhile, and did nothing."""
    global _ignored_calls
    _ignored_calls += 1


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    global _importing
    _importing += 1
    try:
        yield
    finally:
        _importing -= 1


def add_paths(paths: Sequence[Path]) -> None:
    """Put folders at the front of ``sys.path``, in order, each once."""
    for folder in reversed([str(p) for p in paths]):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
        watch(folder)
    importlib.invalidate_caches()


def import_file(file: Path) -> ModuleType:
    """Import a file as the module that it is. Pipelines that it calls do nothing meanwhile."""
    global _began, _begun
    if _began is None:
        _began = time.time()
    file = Path(os.path.abspath(file))  # without .., which would be shown wherever the file is named
    name, folder = module_name(file)
    add_paths([folder])
    module = import_module(name, file)
    _begun = name
    return module


def importing_began() -> float | None:
    """When the first of the user's files was imported by :func:`import_file`, in seconds since the epoch.

    None where this process had modules of the user's in another way.
    """
    return _began


def begun() -> ModuleType | None:
    """The module that :func:`import_file` was last asked for; None where it never was."""
    return None if _begun is None else sys.modules.get(_begun)


def import_module(name: str, file: Path | None = None) -> ModuleType:
    """Import a module by name, from ``file`` where the name alone does not lead to it.

    A module that calls a pipeline at its top level usually goes on to use the run, which is not
    there. What fails after such a call is not counted against it: all that was defined by then is.
    """
    module = sys.modules.get(name)
    if module is not None and (file is None or _is_file(module, file)):
        return module
    with _loading():
        package = name.rpartition(".")[0]
        if package:
            importlib.import_module(package)
        spec = importlib.util.find_spec(name) if file is None else None
        if spec is None and file is not None:
            loader = ExactLoader(name, str(file))
            spec = importlib.util.spec_from_file_location(name, file, loader=loader)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        before = _ignored_calls
        try:
            spec.loader.exec_module(module)
        except BaseException:
            if _ignored_calls == before:
                sys.modules.pop(name, None)
                raise
        return sys.modules.get(name, module)


def _is_file(module: ModuleType, file: Path) -> bool:
    known = getattr(module, "__file__", None)
    return known is not None and Path(known).absolute() == file


def resolve(module: ModuleType, qualname: str) -> Callable[..., object]:
    """The plain function behind ``module``'s attribute ``qualname``, decorators of ours removed."""
    found: object = module
    for name in qualname.split("."):
        found = getattr(found, name)
    function: Any = getattr(found, "__upshift_function__", found)
    return function  # type: ignore[no-any-return]


class ExactLoader(SourceFileLoader):
    """Python's own loader, which does not believe in bytecode that is older than the source."""

    def get_data(self, path: str) -> bytes:
        """The content of the source, of its bytecode, or of a file beside it (``pkgutil.get_data``)."""
        if path.endswith(tuple(BYTECODE_SUFFIXES)) and older(path, self.path):
            raise FileNotFoundError(path)  # so it is compiled, and the bytecode written anew
        return super().get_data(path)


def older(bytecode: str, source: str) -> bool:
    """Whether bytecode was written before the source was, or at a time that cannot be told apart."""
    try:
        return os.stat(bytecode).st_mtime_ns <= os.stat(source).st_mtime_ns
    except (OSError, ValueError):
        return False


def older_bytecode(source: str, edited: int) -> bool:
    """Whether the cached bytecode of a source file is from before its last edit."""
    folder, _, name = source.rpartition(os.sep)
    try:
        before, after = _around(folder)
        return os.stat(f"{before}{name.rpartition('.')[0]}{after}").st_mtime_ns <= edited
    except (OSError, ValueError, NotImplementedError):  # no bytecode, or an interpreter that keeps none
        return False


@functools.cache
def _around(folder: str) -> tuple[str, str]:
    """What the path of cached bytecode has before and after the name of a module in this folder."""
    before, _, after = importlib.util.cache_from_source(os.path.join(folder, "*.py")).rpartition("*")
    return before, after


def watch(folder: str) -> None:
    """Import what is in this folder, at any depth, through :class:`ExactLoader` from now on."""
    hook = next((h for h in sys.path_hooks if isinstance(h, _Hook)), None)
    if hook is None:
        hook = _Hook()
        sys.path_hooks.insert(0, hook)
    if hook.add(folder):
        for known in [p for p in sys.path_importer_cache if hook.holds(p)]:
            del sys.path_importer_cache[known]


class _Hook:
    """An entry of ``sys.path_hooks``: finders for the user's folders."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._finder: Callable[[str], PathEntryFinder] = FileFinder.path_hook(
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (ExactLoader, SOURCE_SUFFIXES),
            (SourcelessFileLoader, BYTECODE_SUFFIXES),
        )

    def add(self, folder: str) -> bool:
        if folder in self._folders:
            return False
        self._folders.add(folder)
        return True

    def holds(self, path: str) -> bool:
        inside = os.path.join(path, "")
        return any(
            inside.startswith(os.path.join(folder, "")) and is_user_file(inside, folder)
            for folder in self._folders
        )

    def __call__(self, path: str) -> PathEntryFinder:
        if not self.holds(path):
            raise ImportError(f"not the user's: {path}")
        return self._finder(path)


class Sources:
    """The source files of one run, looked at again and again."""

    def __init__(self, stamps: Mapping[str, Stamp]) -> None:
        self._stamps = dict(stamps)
        self._edited: dict[str, None] = {}

    def edited(self) -> tuple[str, ...]:
        """The files that have, or had meanwhile, another content than at first."""
        for file in list(self._stamps):
            size, changed, digest = self._stamps[file]
            try:
                status = os.stat(file)
                if (status.st_size, status.st_mtime_ns) == (size, changed):
                    continue
                with open(file, "rb") as stream:
                    same = digest_of(stream.read()) == digest
            except OSError:
                same = False
            if same:
                self._stamps[file] = (status.st_size, status.st_mtime_ns, digest)
            else:
                del self._stamps[file]
                self._edited[file] = None
        return tuple(self._edited)


# -- being told of an import -----------------------------------------------------------------------

HOOK: Final = __file__
"""The file whose frames are between an import and what it calls."""


def _nothing() -> None: ...


class ImportHook:
    """Calls ``before()`` and ``after(name, module)`` around the import of each module that is ``wanted``.

    Whoever imports it, and whenever. The hook is an entry of ``sys.meta_path`` that finds what the others
    find. The loader of a module stays as it is, but for one method of that one object, until it is called.
    """

    def __init__(
        self,
        wanted: Callable[[str], bool],
        *,
        before: Callable[[], None] = _nothing,
        after: Callable[[str, ModuleType], None],
    ) -> None:
        self._wanted = wanted
        self._before = before
        self._after = after

    def begin(self) -> None:
        """Watch imports from now on."""
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Watch imports no longer."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, with a loader that calls us."""
        if not self._wanted(name):
            return None
        for finder in list(sys.meta_path):
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._surround(spec.loader, name)
                return spec
        return None

    def _surround(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            if module.__name__ != name:  # one loader for all modules of a zip file
                execute(module)
                return
            vars(loader).pop("exec_module", None)
            self._before()
            execute(module)
            self._after(name, module)

        with contextlib.suppress(AttributeError, TypeError):  # it takes no attributes: nobody will know
            loader.exec_module = executed
