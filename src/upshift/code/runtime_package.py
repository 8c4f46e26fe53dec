"""The runtime: what runs beside a step, as one blob for any Python from 3.10 on with nothing installed.

::

    __main__.py       python BLOB SPEC  is  python -m upshift.runtime SPEC
    upshift/          errors, model, runtime, and what a user's module may import: authoring, runs
    _vendor/          attrs, cloudpickle, nvidia-ml-py, threadpoolctl, with their licenses

The blob is a zip without compression, since a compressor's output differs between its versions, and
without bytecode, which differs between versions of Python. Packages of the image come before those in
``_vendor``, which is last on the path; Upshift itself comes first.
"""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import upshift
from upshift._version import __version__
from upshift.code import bootstrap as program
from upshift.errors import StoreError
from upshift.runtime.storage.memo import Memo, Signature, now, signature_of

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store

VENDORED = {
    "attrs": ("attr", "attrs"),
    "cloudpickle": ("cloudpickle",),
    "nvidia-ml-py": ("pynvml",),
    "threadpoolctl": ("threadpoolctl",),
}
"""The modules of each distribution that the runtime carries. All are pure Python."""

_BOOTSTRAPS = {"s3": "bootstrap_s3", "gs": "bootstrap_google", "az": "bootstrap_azure"}
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
"""What of Upshift travels; everything else stays where the engine is."""
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
    memo = Memo("runtime", "sha256", __version__, _home_of_upshift())
    known = memo.recall()
    if known is not None and store.find(str(known)):
        return str(known)
    since = now()
    watched: dict[str, Signature | None] = {}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        _add(archive, "__main__.py", _MAIN)
        for name, path in sorted(_sources(watched)):
            _add(archive, name, Path(path).read_bytes())
    digest, _ = store.put(content.getbuffer(), algorithm="sha256")  # which any Python can compare
    memo.remember(digest, watched, since=since)
    return digest


def bootstrap(store: str = "s3://") -> str:
    """The text of :mod:`upshift.code.bootstrap` for a store, short: it is an argument of a command."""
    scheme, remote, _ = store.partition("://")
    names = [_BOOTSTRAPS[scheme]] if remote else []
    files = [Path(program.__file__).with_name(f"{name}.py") for name in (*names, "bootstrap")]
    every = [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line]
    every = [line.partition("  # ")[0] for line in every]
    imports = {line for line in every if line.startswith(("import ", "from ")) and "upshift" not in line}
    rest = (line for line in every if not line.startswith(("import ", "from ")))
    lines = (*sorted(imports), *rest)
    return "".join(f"{' ' * ((len(line) - len(line.lstrip())) // 4)}{line.strip()}\n" for line in lines)


def _home_of_upshift() -> str:
    return os.path.dirname(os.path.abspath(upshift.__file__))


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o100644 << 16
    entry.create_system = 3  # Unix, wherever it is made
    archive.writestr(entry, content)


def _sources(watched: dict[str, Signature | None]) -> Iterator[tuple[str, str]]:
    """Name in the blob and path of each file; everything that is looked at is added to ``watched``."""
    yield from _tree("upshift", _home_of_upshift(), watched, only=TRAVELS)
    for distribution, modules in VENDORED.items():
        for module in modules:
            yield from _tree(f"_vendor/{module}", _location(module), watched)
        yield from _licenses(distribution)


def _location(module: str) -> str:
    """Folder of a package, or file of a module."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise StoreError(
            f"the runtime cannot be made: {module} is not installed", fix=f"pip install {module}"
        )
    return spec.origin if spec.submodule_search_locations is None else os.path.dirname(spec.origin)


def _tree(
    name: str, path: str, watched: dict[str, Signature | None], only: Collection[str] | None = None
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
