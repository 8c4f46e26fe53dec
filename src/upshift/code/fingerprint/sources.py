"""Where code comes from: the project, an installed package, the standard library or Upshift itself.

Everything with Python source that is neither installed (listed by a ``.dist-info`` beside it) nor
part of Python counts as the project's: packages installed in editable form, and folders on
``PYTHONPATH``, change without a version that could tell.
"""

from __future__ import annotations

import importlib.machinery
import linecache
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from upshift.code.fingerprint.facts import Facts, KeptFacts
from upshift.code.fingerprint.installed import modules_in
from upshift.runtime.storage.digest import digest_of
from upshift.runtime.usercode import Stamp, module_name

PROJECT = "project"
PACKAGE = "package"
STANDARD = "standard"
UPSHIFT = "upshift"

OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
"""The folder of Upshift itself."""
_STANDARD = os.path.dirname(os.__file__)
_SOURCE_SUFFIXES = (".py", ".pyw", ".ipynb")
_CHUNK = 1 << 16
NOT_SOURCE = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
"""Folders that hold nothing of a project's own."""
_SALT = re.compile(r"^\s*-?\d+,$", re.MULTILINE)
"""In a ``__hash__`` that attrs made: the hash of a name, which is another one in each process."""


class Module:
    """A module.

    ``name`` is what it is imported as, also for ``__main__``. ``file`` is its source, or what linecache knows
    that by. ``namespace`` is None while it is not imported. Relative imports start from ``package``.
    """

    __slots__ = ("file", "kind", "name", "namespace", "package", "shown", "version")

    def __init__(
        self,
        name: str,
        file: str | None = None,
        namespace: dict[str, Any] | None = None,
        package: str = "",
        kind: str = PROJECT,
        version: str = "",
    ) -> None:
        self.name = name
        self.file = file
        self.namespace = namespace
        self.package = package
        self.kind = kind
        self.version = version
        self.shown = name
        """Its file, for people."""


class ProjectSources:
    """Modules and their facts, for one analysis. Only how files are named depends on the project."""

    def __init__(self, project: Path) -> None:
        self._root = os.path.join(str(project.absolute()), "")
        self._memo = KeptFacts(project)
        self._facts: dict[str, Facts | None] = {}
        self._contents: dict[str, bytes | None] = {}
        self._statuses: dict[str, os.stat_result | None] = {}
        self.stamps: dict[str, Stamp] = {}
        """Of every file that was read, and not changed meanwhile."""
        self._by_namespace: dict[int, tuple[Module, dict[str, Any]]] = {}
        self._by_name: dict[str, Module | str | None] = {}

    def save(self) -> None:
        """Keep the facts for the next process."""
        self._memo.save()

    # modules

    def of_namespace(self, namespace: dict[str, Any]) -> Module:
        """The module with these globals."""
        known = self._by_namespace.get(id(namespace))
        if known is None:
            known = self._by_namespace[id(namespace)] = (self._module(namespace), namespace)
        return known[0]

    def _module(self, namespace: dict[str, Any]) -> Module:
        name = namespace.get("__name__")
        name = name if isinstance(name, str) else "?"
        file = namespace.get("__file__")
        file = file if isinstance(file, str) else None
        place = file
        if file is None and namespace.get("__path__") is not None:
            place = next((os.path.join(path, "") for path in namespace["__path__"]), None)
        kind, version = kind_of(name, place)
        package = namespace.get("__package__")
        if not isinstance(package, str):
            package = name if "__path__" in namespace else name.rpartition(".")[0]
        if name in ("__main__", "__mp_main__") and file is not None and os.path.exists(file):
            name = module_name(Path(file))[0]
        return self._named(Module(name, file, namespace, package, kind, version))

    def _named(self, module: Module) -> Module:
        file = module.file
        if file is not None and file.startswith(self._root):
            module.shown = file[len(self._root) :]
        elif file is not None:
            parts = Path(file).parts
            module.shown = "/".join(parts[-1 - module.name.count(".") - file.endswith("__init__.py") :])
        return module

    def find(self, name: str) -> Module | str | None:
        """The module of this name, imported or not; nothing is imported for it.

        A name and version, ``""`` for Python, is the distribution of one that is not the project's.
        """
        if name not in self._by_name:
            self._by_name[name] = self._find(name)
        return self._by_name[name]

    def _find(self, name: str) -> Module | str | None:
        live = sys.modules.get(name)
        if isinstance(live, ModuleType):
            found = self.of_namespace(vars(live))
            return found if found.kind == PROJECT else found.version
        spec = _spec(name)
        if spec is None:
            return None
        file = spec.origin if spec.has_location else None
        folders = list(spec.submodule_search_locations or ())
        kind, version = kind_of(name, file or (os.path.join(folders[0], "") if folders else None))
        if kind != PROJECT:
            return version
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        if file is not None and not os.path.exists(file):
            self._contents[file], self._statuses[file] = _packed(spec, name), None
        return self._named(Module(name, file, None, package))

    def unimported(self, name: str, file: str, package: str) -> Module:
        """The module in a file that nobody has imported."""
        known = self._by_name.get(name)
        if not isinstance(known, Module) or known.file != file:
            known = self._by_name[name] = self._named(Module(name, file, None, package))
        return known

    def absolute(self, module: Module, level: int, name: str) -> str:
        """The name of what a module imports as ``from ..name``, with ``level`` dots."""
        if level == 0:
            return name
        parts = module.package.split(".")
        base = ".".join(parts[: len(parts) - level + 1])
        return f"{base}.{name}" if base and name else base or name

    # content

    def content(self, file: str) -> bytes | None:
        """The content of a source; None where it cannot be read."""
        if file not in self._contents:
            content, status = _content(file)
            self._contents[file], self._statuses[file] = content, status
            if content is None or status is None or not os.path.isabs(file):
                return content
            if status.st_size == len(content):  # else it has been changed meanwhile
                self.stamps[file] = (status.st_size, status.st_mtime_ns, digest_of(content))
        return self._contents[file]

    def status(self, file: str) -> os.stat_result | None:
        """Size and times of a source, looked at after it was read; None where it is not a file."""
        self.content(file)
        return self._statuses[file]

    def texts(self) -> dict[str, str]:
        """Every source that was read, word for word: title to digest."""
        shown = {module.file: module.shown for module, _ in self._by_namespace.values()}
        return {
            f"text of {shown.get(file, os.path.basename(file))}": digest_of(content)
            for file, content in self._contents.items()
            if content is not None
        }

    def facts(self, file: str | None) -> Facts | None:
        """The facts about a source; None where it is not Python, or not there."""
        if file is None:
            return None
        try:
            return self._facts[file]
        except KeyError:
            facts = self._facts[file] = self._read(file)
            return facts

    def _read(self, file: str) -> Facts | None:
        content = self.content(file) if file.endswith(_SOURCE_SUFFIXES) or file.startswith("<") else None
        if content is None:
            return None
        stamp = self.stamps.get(file)  # not the cells of a notebook
        known = self._memo.get(file, stamp[2]) if stamp is not None else None
        if known is not None:
            return known
        from upshift.code.fingerprint.parsing import read_facts  # most processes need none of it

        try:
            facts = read_facts(content)
        except (SyntaxError, ValueError, RecursionError):
            return None
        if stamp is not None:
            self._memo.put(file, stamp[2], facts)
        return facts


def kind_of(name: str, file: str | None) -> tuple[str, str]:
    """Where the module ``name`` in ``file`` is from, and its distribution and version."""
    top = name.partition(".")[0]
    if file is None:
        return (STANDARD, "") if top in sys.stdlib_module_names else (PROJECT, "")
    if file.startswith(OURS):
        return UPSHIFT, ""
    if file.startswith("<frozen "):
        return STANDARD, ""
    root = _root_of(name, file)
    version = modules_in(root).get(top)
    if version is not None:
        return PACKAGE, version
    if top in sys.stdlib_module_names and (root.startswith(_STANDARD) or not file.endswith(".py")):
        return STANDARD, ""
    return PROJECT, ""


def _root_of(name: str, file: str) -> str:
    """The folder that the top-level package of a module is in."""
    base = file.rpartition(os.sep)[2]
    depth = name.count(".") + base.startswith("__init__.") + (not base)
    return file.rsplit(os.sep, depth + 1)[0] or os.sep


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """As :func:`importlib.util.find_spec`, which imports the parent packages."""
    path = None
    spec = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _ask_finders(".".join(parts[:depth]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and depth < len(parts):
            return None
    return spec


def _ask_finders(name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec = None if find is None else find(name, path, None)
        except KeyError:  # a folder without __init__.py looks for its parent among what is imported
            spec = _namespace(name, path)
        if spec is not None:
            found: importlib.machinery.ModuleSpec = spec
            return found
    return None


def _namespace(name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    folders = [os.path.join(entry, name.rpartition(".")[2]) for entry in path or ()]
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [folder for folder in folders if os.path.isdir(folder)]
    return spec if spec.submodule_search_locations else None


def _content(file: str) -> tuple[bytes | None, os.stat_result | None]:
    """The content of a source, and the status of that very file after it was read; None where it is none."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            parts = [os.read(descriptor, _CHUNK)]
            while len(parts[-1]) == _CHUNK:
                parts.append(os.read(descriptor, _CHUNK))
            return b"".join(parts), os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        owners = (vars(module) for module in list(sys.modules.values()) if type(module) is ModuleType)
        owner = next((names for names in owners if names.get("__file__") == file), None)
        lines = linecache.getlines(file, owner)  # a cell of a notebook, or a module in an archive
        text = "".join(lines)
        if file.startswith("<attrs generated"):
            text = _SALT.sub("0,", text)
        return text.encode("utf-8", "surrogatepass") if lines else None, _status(file)


def _packed(spec: importlib.machinery.ModuleSpec, name: str) -> bytes | None:
    """The source of a module in an archive."""
    source = getattr(spec.loader, "get_source", None)
    try:
        text = None if source is None else source(name)
    except (ImportError, OSError, UnicodeDecodeError):
        return None
    return None if text is None else str(text).encode("utf-8", "surrogatepass")


def _status(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)
    except (OSError, ValueError):
        return None


def python_files(folder: Path) -> Iterator[str]:
    """The Python files in a folder and below, without environments, hidden folders and Upshift itself."""
    for here, folders, files in os.walk(folder):
        if "pyvenv.cfg" in files or here.startswith(OURS[:-1]):
            folders[:] = []
            continue
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in NOT_SOURCE)
        yield from (os.path.join(here, file) for file in sorted(files) if file.endswith(".py"))
