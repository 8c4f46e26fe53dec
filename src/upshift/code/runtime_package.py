"""Upshift itself as zips for any Python from 3.10 on with nothing installed: the runtime, which works beside
a step (:func:`runtime_blob`), and the engine, which does a run (:func:`engine_package`).

::

    __main__.py       python BLOB SPEC  is  python -m upshift.runtime SPEC
    upshift/          errors, model, runtime, and what a user's module may import: authoring, runs
    _vendor/          attrs, cloudpickle, nvidia-ml-py, threadpoolctl, with their licenses

The runtime's zip has no compression, since a compressor's output differs between its versions, and no
bytecode, which differs between versions of Python. Packages of the image come before those in ``_vendor``,
which is last on the path; Upshift itself comes first.

The engine's zip is compressed, holds all of Upshift, and in ``_vendor`` what an engine imports, with their
metadata; boto3 only on request. ``python BLOB -m MODULE ARGUMENT…`` runs a module, with these packages
first on the path; without ``-m`` it is a runtime, too. Where there is nothing but Python, the
bootstrap fetches and starts it::

    from upshift.code.runtime_package import bootstrap, engine_package
    from upshift.runtime.storage.replica import blob_key

    address = f"{store.name}/{blob_key(engine_package(store))}"
    command = ["python3", "-Sc", bootstrap(store.name), address, "-m", "upshift.cli.detached", *arguments]

Before ``-m`` there may be more addresses: further zips, which the module can import from. Its name is
``__main__``, and it finds ``UPSHIFT_HOME`` set to the folder of the node.

Everything in both is pure Python. What is compiled stays at home: blake3, without which new digests are
SHA-256; psutil, uv and zstandard, which build images; psycopg, since such an engine has a catalog of its own.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import itertools
import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Union

import upshift
from upshift._version import __version__
from upshift.code import bootstrap as program
from upshift.code.memo import Memo
from upshift.errors import MissingExtra, StoreError
from upshift.runtime.storage.files import Signature, signature_of

if TYPE_CHECKING:
    import ast

    from upshift.runtime.storage.store import Store

VENDORED = {
    "attrs": ("attr", "attrs"),
    "cloudpickle": ("cloudpickle",),
    "nvidia-ml-py": ("pynvml",),
    "threadpoolctl": ("threadpoolctl",),
}
"""The modules of each distribution that the runtime carries. All are pure Python."""

_BOOTSTRAPS = {"s3": "bootstrap_s3", "gs": "bootstrap_google", "az": "bootstrap_azure"}
_AT_ONCE = frozenset({"import os", "import sys"})
"""Imports of the bootstrap that cost nothing, since an interpreter has made them."""
_MAIN = b"""\
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_vendor"))

from upshift.runtime.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
"""
TRAVELS = (
    *("__init__.py", "_version.py", "errors.py", "model", "runtime"),
    *(
        "authoring",
        "cards.py",
        "config.py",
        "integrations",
        "runs",
    ),  # a user's module imports them, wherever it runs
)
"""The modules of Upshift that travel; the others stay where the engine is."""
Watched = dict[str, Union[Signature, None]]
"""Files and folders that were read, with their state at that time."""
NEEDED = {**VENDORED, "click": ("click",)}
"""The modules of each distribution that an engine imports."""
_IF_INSTALLED = {"packaging": ("packaging",), "urllib3": ("urllib3",)}
"""The same for optional packages, which ask registries for the images of steps."""
EXTRAS = {
    "aws": {
        **{name: (name,) for name in ("boto3", "botocore", "s3transfer", "jmespath", "urllib3", "six")},
        "python-dateutil": ("dateutil",),
    }
}
"""The same for extras of Upshift."""
_SERVICES = ("batch", "iam", "logs", "sts")
"""The AWS services whose data is packed; that of all services is twenty times as large."""
_ENGINE_MAIN = b"""\
import os
import runpy
import sys

_VENDOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_vendor")

if __name__ == "__main__":
    if sys.argv[1:2] == ["-m"]:
        sys.path.insert(1, _VENDOR)
        module = sys.argv[2]
        del sys.argv[1:3]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path.append(_VENDOR)
        from upshift.runtime.__main__ import main

        sys.exit(main())
"""
_LEFT_OUT = ("__pycache__", ".pyc", ".pyi")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold."""


def runtime_blob(store: Store) -> str:
    """Put the runtime into the store, unless it is there.

    Parameters
    ----------
    store
        Where it goes.

    Returns
    -------
    str
        Its digest. The same files give the same one, on every machine.

    Raises
    ------
    StoreError
        Upshift, or a package that it needs, is not installed as plain files.
    StoreUnavailable
        The store cannot be written.
    """
    return packed(store, ("runtime",), _MAIN, _sources)


def packed(
    store: Store,
    question: tuple[str, ...],
    main: bytes,
    sources: Callable[[Watched], Iterable[tuple[str, str]]],
    *,
    compression: int = zipfile.ZIP_STORED,
) -> str:
    """Put a package into the store, unless it is there; gives its digest.

    Parameters
    ----------
    store
        Where it goes.
    question
        What tells this package from others, for what is remembered of it.
    main
        Its ``__main__.py``.
    sources
        Gives name and path of each file, and adds everything that it looks at to what it gets.
    compression
        How they are kept: another version of a compressor makes another package of the same files.
    """
    memo = Memo(*question, "sha256", __version__, _home_of_upshift())
    known = memo.recall()
    if known is not None and store.find(str(known)):
        return str(known)
    watched: Watched = {}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        _add(archive, "__main__.py", main)
        for name, path in sorted(sources(watched)):
            _add(archive, name, Path(path).read_bytes())
    digest, _ = store.put(content.getbuffer(), algorithm="sha256")  # which any Python can compare
    memo.remember(digest, watched)
    return digest


@functools.cache
def bootstrap(store: str = "s3://") -> str:
    """The text of :mod:`upshift.code.bootstrap` for a store, short: it is an argument of a command."""
    scheme, remote, _ = store.partition("://")
    names = [_BOOTSTRAPS[scheme]] if remote else []
    files = [Path(program.__file__).with_name(f"{name}.py") for name in (*names, "bootstrap")]
    texts = [_without_annotations(path.read_text(encoding="utf-8")) for path in files]
    texts[:-1] = [text.partition("\n")[2] for text in texts[:-1]]  # one docstring says what the program is
    every = [line.partition("  # ")[0] for text in texts for line in text.splitlines() if line.strip()]
    imports = {line for line in every if line.startswith(("import ", "from ")) and "upshift" not in line}
    rest = [line for line in every if not line.startswith(("import ", "from "))]
    at = rest.index("def needed():") + 1
    rest[at:at] = [f"    {line}" for line in _globally(imports - _AT_ONCE)]
    lines = (*sorted(imports & _AT_ONCE), *rest)
    return "".join(f"{' ' * ((len(line) - len(line.lstrip())) // 4)}{line.strip()}\n" for line in lines)


def _globally(imports: Iterable[str]) -> list[str]:
    """The statements by which a function makes these imports for its module."""
    modules: list[str] = []
    names: dict[str, set[str]] = {}
    for line in sorted(imports):
        first, _, rest = line.partition(" import ")
        if rest:
            names.setdefault(first, set()).update(rest.split(", "))
        else:
            modules.append(first.removeprefix("import "))
    every = ",".join(sorted({*modules, *itertools.chain(*names.values())}))
    some = [f"{first} import {','.join(sorted(those))}" for first, those in names.items()]
    return [f"global {every}", f"import {','.join(modules)}", *some]


def _without_annotations(text: str) -> str:
    """A program without annotations and docstrings of functions."""
    import ast

    spans: list[tuple[int, int, int, int]] = []  # from line and column on, up to line and column
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                said = node.body[0]
                spans.append((said.lineno, said.col_offset, *_end(said)))
            if node.returns is not None:
                kind, arrow = node.returns, len(" -> ")
                spans.append((kind.lineno, kind.col_offset - arrow, *_end(kind)))
        if isinstance(node, ast.arg) and node.annotation is not None:
            spans.append((node.lineno, node.col_offset + len(node.arg), *_end(node.annotation)))
    lines = text.splitlines()
    for line, start, last, end in sorted(spans, reverse=True):
        lines[line - 1 : last] = [lines[line - 1][:start] + lines[last - 1][end:]]
    return "\n".join(lines)


def _end(node: ast.stmt | ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _home_of_upshift() -> str:
    return os.path.dirname(os.path.abspath(upshift.__file__))


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o100644 << 16
    entry.create_system = 3  # Unix, wherever it is made
    entry.compress_type = archive.compression
    archive.writestr(entry, content)


def _sources(watched: Watched) -> Iterator[tuple[str, str]]:
    """Name in the blob and path of each file; everything that is read is added to ``watched``."""
    yield from upshift_files(watched, only=TRAVELS)
    for distribution, modules in VENDORED.items():
        yield from module_files(modules, watched)
        yield from _licenses(distribution)


def upshift_files(watched: Watched, only: Collection[str] | None = None) -> Iterator[tuple[str, str]]:
    """Upshift itself, or only these of its modules and packages."""
    return _tree("upshift", _home_of_upshift(), watched, only=only)


def module_files(modules: Iterable[str], watched: Watched) -> Iterator[tuple[str, str]]:
    """These modules and packages, in ``_vendor``."""
    for module in modules:
        yield from _tree(f"_vendor/{module}", _location(module), watched)


def _location(module: str) -> str:
    """Folder of a package, or file of a module."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise StoreError(
            f"the runtime cannot be made: {module} is not installed", fix=f"pip install {module}"
        )
    # By its file: six takes itself for a package once it is imported.
    return os.path.dirname(spec.origin) if spec.origin.endswith("__init__.py") else spec.origin


def _tree(
    name: str, path: str, watched: Watched, only: Collection[str] | None = None
) -> Iterator[tuple[str, str]]:
    watched[path] = signature_of(path)
    if os.path.isfile(path):
        yield name + ".py", path
        return
    try:
        with os.scandir(path) as entries:
            found = [
                entry
                for entry in entries
                if not entry.name.endswith(_LEFT_OUT) and (only is None or entry.name in only)
            ]
    except OSError as error:
        raise StoreError(
            f"the runtime cannot be made: {path} is not a folder with Python files",
            why=error.strerror or str(error),
            fix="Install Upshift and its dependencies with pip, not as a zip.",
        ) from error
    for entry in found:
        if entry.is_dir():
            yield from _tree(f"{name}/{entry.name}", entry.path, watched)
        else:
            watched[entry.path] = signature_of(entry.path)
            yield f"{name}/{entry.name}", entry.path


def _licenses(distribution: str) -> Iterator[tuple[str, str]]:
    from importlib import metadata

    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:  # a system package without metadata
        files = []
    for file in files:
        if file.name.upper().startswith(("LICENSE", "COPYING", "NOTICE")):
            yield f"_vendor/licenses/{distribution}-{file.name}", str(file.locate())


# -- the engine ------------------------------------------------------------------------------------


def engine_package(store: Store, *, extras: Collection[str] = ()) -> str:
    """Put the engine into the store, unless it is there.

    Parameters
    ----------
    store
        Where it goes.
    extras
        Extras of Upshift that the engine needs: ``"aws"``.

    Returns
    -------
    str
        Its digest, by SHA-256. The same files give the same one, by the same version of zlib.

    Raises
    ------
    MissingExtra
        One is not installed here.
    StoreError
        Upshift, or a package that it needs, is not installed as plain files.
    StoreUnavailable
        The store cannot be written.
    """

    def sources(watched: Watched) -> Iterator[tuple[str, str]]:
        yield from upshift_files(watched)
        for distribution, modules in _distributions(extras).items():
            for name, path in module_files(modules, watched):
                if _is_wanted(name):
                    yield name, path
            yield from _metadata(distribution, watched)

    question = ("engine", *sorted(extras))
    return packed(store, question, _ENGINE_MAIN, sources, compression=zipfile.ZIP_DEFLATED)


def _distributions(extras: Collection[str]) -> dict[str, tuple[str, ...]]:
    found = dict(NEEDED)
    for name, modules in _IF_INSTALLED.items():
        if all(map(importlib.util.find_spec, modules)):
            found[name] = modules
    for extra in extras:
        for name, modules in EXTRAS[extra].items():
            if not all(map(importlib.util.find_spec, modules)):
                raise MissingExtra(
                    f"an engine elsewhere needs {name}, which is not installed",
                    fix=f'pip install "upshift[{extra}]"',
                )
            found[name] = modules
    return found


def _is_wanted(name: str) -> bool:
    """Whether a file is of one of these services, or of none."""
    package, _, rest = name.removeprefix("_vendor/").partition("/data/")
    if package not in ("boto3", "botocore") or "/" not in rest:
        return True
    return rest.partition("/")[0] in _SERVICES


def _metadata(distribution: str, watched: Watched) -> Iterator[tuple[str, str]]:
    """Its metadata with version and licenses, so that ``importlib.metadata`` finds it."""
    from importlib import metadata

    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:  # a system package without metadata
        return
    for file in files:
        folder, _, rest = file.as_posix().partition("/")
        if folder.endswith(".dist-info") and rest not in ("INSTALLER", "REQUESTED", "direct_url.json"):
            path = os.fspath(file.locate())
            watched[path] = signature_of(path)
            yield f"_vendor/{folder}/{rest}", path
