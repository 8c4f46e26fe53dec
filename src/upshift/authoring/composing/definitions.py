"""The definitions of a graph's steps: what a process calls, where its code is, and its settings.

Other processes import a step from its module, in the project of its pipeline. What has no name there travels
by value.
"""

from __future__ import annotations

import ast
import functools
import os
import site
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import attrs

from upshift.code.fingerprint import Analysis
from upshift.model.configuration import project_root
from upshift.model.graph import StepDefinition
from upshift.model.spec.codec import to_json
from upshift.model.spec.task import Code, EntryPoint
from upshift.runtime import tracebacks, usercode
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:
    from upshift.authoring.callee import Callee
    from upshift.authoring.options import PipelineOptions, StepOptions
    from upshift.runtime.usercode import Stamp


class Definitions:
    """The definitions of one graph; equal ones are shared.

    Parameters
    ----------
    store
        Where functions go that travel by value.
    project, begun
        As for :class:`~upshift.code.fingerprint.Analysis`.
    """

    def __init__(self, store: Store, project: Path, begun: Iterable[dict[str, Any]]) -> None:
        self._store = store
        self._project = project
        self._analysis = Analysis(project, begun)
        self._names: dict[tuple[Callee, StepOptions, PipelineOptions], str] = {}
        self._equal: dict[tuple[str, bytes], str] = {}
        self._entries: dict[Callee, EntryPoint] = {}
        self._callees: dict[str, Callee] = {}
        self._bodies: list[tuple[Callable[..., Any], Mapping[str, object]]] = []
        self.by_name: dict[str, StepDefinition] = {}

    @property
    def sources(self) -> Mapping[str, Stamp]:
        """The source files that were looked at, as they were."""
        return self._analysis.stamps

    def name_of(self, callee: Callee, options: StepOptions, outer: PipelineOptions) -> str:
        """The name of the definition of a step in a pipeline. It is made at the first use."""
        key = (callee, options, outer)
        known = self._names.get(key)
        if known is None:
            known = self._names[key] = self._named(callee, options, outer)
        return known

    def _named(self, callee: Callee, options: StepOptions, outer: PipelineOptions) -> str:
        definition = self._define(callee, options, outer)
        base = options.name or callee.function.__name__
        anywhere = attrs.evolve(definition.settings, origins={})
        content = (base, to_json(attrs.evolve(definition, settings=anywhere, location=None)))
        if content not in self._equal:
            name, count = base, 1
            while name in self.by_name:
                count += 1
                name = f"{base}_{count}"
            self.by_name[name] = definition
            self._callees[name] = callee
            self._equal[content] = name
        return self._equal[content]

    def _define(self, callee: Callee, options: StepOptions, outer: PipelineOptions) -> StepDefinition:
        settings, launch = options.settings.over(outer.steps), None
        if options.launch is not None:
            launch, request, origins = options.launch.beside(settings.resources, settings.origins)
            settings = attrs.evolve(settings, resources=request, origins=origins)
        variables = (settings.docker.runtime_environment if settings.docker else None) or {}
        return StepDefinition(
            entry=self._entry_of(callee),
            outputs=callee.outputs,
            settings=settings,
            launch=launch,
            environment={name: value for name, value in variables.items() if value is not None},
            location=callee.location,
        )

    def composes(self, function: Callable[..., Any], arguments: Mapping[str, object]) -> None:
        """Note that the function of a pipeline is called: what it does to others is there before any step."""
        self._bodies.append((function, arguments))

    def complete(self) -> None:
        """Say what code each definition reaches; nothing of the user's runs any more before the steps do."""
        composed: dict[str, str] = {}
        for function, arguments in self._bodies:
            composed |= self._analysis.composition(function, arguments)
        known: dict[Callee, Mapping[str, str]] = {}
        for name, callee in self._callees.items():
            if callee not in known:
                code = dict(composed)
                for function in callee.code:
                    code.update(self._analysis.function(function))
                known[callee] = code
            definition = self.by_name[name]
            entry = attrs.evolve(definition.entry, after=self._after)
            self.by_name[name] = attrs.evolve(definition, code=known[callee], entry=entry)

    def _entry_of(self, callee: Callee) -> EntryPoint:
        known = self._entries.get(callee)
        if known is None:
            known = self._entries[callee] = entry_point(callee.function, self._store)
        return known

    @functools.cached_property
    def _after(self) -> dict[str, str]:
        """What is imported before a step's module, with files relative to the project."""
        root = os.path.join(self._project, "")
        needed = self._analysis.needed()
        return {name: file[len(root) :] for name, file in needed.items() if file.startswith(root)}


_NOTEBOOK = "notebook"
"""What ``__main__`` counts as where it has no file."""


def entry_point(function: Callable[..., Any], store: Store) -> EntryPoint:
    """The entry point of a step's function.

    Parameters
    ----------
    function
        The plain function.
    store
        Where the function itself goes if it travels by value: defined inside another function, in
        a notebook, under ``if __name__ == "__main__"``, or no longer what its module knows by its
        name.

    Raises
    ------
    NotSerializable
        It has to travel by value, and cannot: it refers to an open file, a lock, ….
    """
    module = function.__module__
    named = usercode.main_module_name() if module == "__main__" else module
    if named is not None and importable(function) and not _main_only(function):
        return EntryPoint(module=named, qualname=function.__qualname__)
    return EntryPoint(
        module=named or _NOTEBOOK,
        qualname=function.__qualname__,
        payload=artifacts.save(function, store, name=function.__name__),
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        cells=tracebacks.save_cells(function, store),
    )


def importable(function: Callable[..., Any]) -> bool:
    """Whether the function's module knows it by its name, decorators of ours removed."""
    module = sys.modules.get(function.__module__)
    if module is None:
        return False
    try:
        return usercode.resolve(module, function.__qualname__) is function
    except AttributeError:
        return False


def _main_only(function: Callable[..., Any]) -> bool:
    """Whether the function is there only when its file is run, not when it is imported."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    code = function.__code__
    if file is None or sys.modules.get(function.__module__) is not main or code.co_filename != file:
        return False
    return any(first <= code.co_firstlineno <= last for first, last in _guarded(file))


@functools.cache
def _guarded(file: str) -> tuple[tuple[int, int], ...]:
    """The first and last lines of what stands under ``if __name__ == "__main__"``."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError):  # changed since it was run
        return ()
    return tuple(
        (node.lineno, node.body[-1].end_lineno or 0)
        for node in tree.body
        if isinstance(node, ast.If) and _asks_for_main(node.test)
    )


def _asks_for_main(test: ast.expr) -> bool:
    names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
    return "__name__" in names and any(
        isinstance(part, ast.Constant) and part.value == "__main__" for part in ast.walk(test)
    )


def file_of(function: Callable[..., Any]) -> Path | None:
    """The file of the module that a function belongs to; None in a notebook or at a prompt."""
    module = sys.modules.get(function.__module__)
    name = getattr(module, "__file__", None) or function.__code__.co_filename
    path = Path(name)
    return path.absolute() if path.suffix == ".py" and path.is_file() and not _is_cell(path) else None


def project_of(function: Callable[..., Any]) -> Path:
    """The project of a function; in a notebook that of the working folder."""
    return project_root(file_of(function) or Path.cwd() / "notebook")


def places_of(function: Callable[..., Any]) -> tuple[Path, Path | None]:
    """The project of a function, and its file."""
    return project_of(function), file_of(function)


def code_of(function: Callable[..., Any]) -> Code:
    """The code that a pipeline's function belongs to."""
    from upshift.runtime.usercode import module_name

    file = file_of(function)
    project = project_of(function)
    entries = [] if file is None else [module_name(file)[1]]
    entries += _own_entries(project)
    return Code(
        project=str(project),
        paths=tuple(dict.fromkeys(os.path.relpath(entry, project) for entry in entries)),
        file=None if file is None else os.path.relpath(file, project),
    )


def begun_with(function: Callable[..., Any]) -> list[dict[str, Any]]:
    """Globals of the modules that this process began with, as far as a pipeline's steps are concerned.

    They are the script or the file that was run, the pipeline's own, and those whose functions are on the
    way to its call, as in a test. At a prompt, in a notebook, and for an installed command, they are those
    that it has imported. Some of them may be Python's, or a package's.
    """
    from upshift.runtime.usercode import begun

    main = vars(sys.modules["__main__"])
    modules = [begun(), sys.modules.get(function.__module__)]
    if not _is_source(main):
        modules[:0] = [_module_of(main[name]) for name in list(main)]
    found = [main, *(vars(module) for module in modules if module is not None)]
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found.append(frame.f_globals)
        frame = frame.f_back
    return list({id(namespace): namespace for namespace in found if _is_source(namespace)}.values())


def _is_source(namespace: dict[str, Any]) -> bool:
    """Whether these are the globals of a module that has a source file; the script of a command is none."""
    return str(namespace.get("__file__")).endswith(".py")


def _module_of(value: Any) -> ModuleType | None:
    """A module, or the one of a function or class."""
    if isinstance(value, ModuleType):
        return value
    return sys.modules.get(value.__module__) if isinstance(value, (FunctionType, type)) else None


def _own_entries(project: Path) -> list[Path]:
    """The entries of ``sys.path`` inside the project that are no installed packages."""
    installed = [Path(p).absolute() for p in (sys.prefix, sys.base_prefix, *site.getsitepackages())]
    entries = []
    for entry in sys.path:
        folder = Path(entry or ".").absolute()
        inside = folder == project or project in folder.parents
        if inside and folder.is_dir() and not any(p == folder or p in folder.parents for p in installed):
            entries.append(folder)
    return entries


def _is_cell(path: Path) -> bool:
    # ipykernel gives each cell a file name below this folder, and may write it there for debuggers.
    return any(part.startswith("ipykernel_") for part in path.parts)
