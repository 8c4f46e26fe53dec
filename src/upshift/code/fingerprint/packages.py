"""Installed distributions: which one a top-level module comes from, and its version.

``importlib.metadata.packages_distributions`` reads every file list of the environment, each time.
Here the answer is kept in ``UPSHIFT_HOME/fingerprints`` for as long as the folder holds the same
``NAME-VERSION.dist-info`` folders.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from pathlib import Path

from upshift.code.fingerprint.keeping import keep, kept

_METADATA = (".dist-info", ".egg-info")


@functools.cache
def installed(folder: str) -> dict[str, str]:
    """The modules that are installed in a folder of ``sys.path``.

    Parameters
    ----------
    folder
        ``…/site-packages``, or any other folder.

    Returns
    -------
    dict
        Name of a top-level module to ``"name version"`` of its distribution, of all of them if there
        are several. Empty where nothing is installed.
    """
    names = metadata_of(folder)
    if not names:
        return {}
    stamp = hashlib.sha256("\n".join([folder, *names]).encode()).hexdigest()
    memo = kept(f"{stamp[:32]}.packages")
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(memo.read_text())
        if known.get("stamp") == stamp and isinstance(known.get("modules"), dict):
            modules: dict[str, str] = known["modules"]
            return modules
    modules = _modules(Path(folder), names)
    keep(memo, json.dumps({"stamp": stamp, "modules": modules}).encode())
    return modules


@functools.cache
def metadata_of(folder: str) -> list[str]:
    """The folders with metadata of what is installed in a folder of ``sys.path``."""
    try:
        names = sorted(name for name in os.listdir(folder or ".") if name.endswith(_METADATA))
    except OSError:
        return []
    return [name for name in names if "-" in name.rpartition(".")[0]]  # else a source folder's own


def split(metadata: str) -> tuple[str, str]:
    """Name and version of a distribution, from the name of the folder with its metadata."""
    name, _, version = metadata.rpartition(".")[0].partition("-")
    return name, version.partition("-py")[0] if metadata.endswith(".egg-info") else version


def _modules(folder: Path, names: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for metadata in names:
        name, version = split(metadata)
        for module in _top_level(folder / metadata) or {name}:
            found.setdefault(module, []).append(f"{name} {version}")
    return {module: ", ".join(sorted(distributions)) for module, distributions in found.items()}


def _top_level(metadata: Path) -> set[str]:
    for record in ("RECORD", "installed-files.txt", "top_level.txt"):
        with contextlib.suppress(OSError):
            lines = (metadata / record).read_text(errors="replace").splitlines()
            found = {_module_of(line) for line in lines} - {""}
            if found:
                return found
    return set()


def _module_of(line: str) -> str:
    first, slash, rest = line.partition(",")[0].strip().strip('"').partition("/")
    if first in ("..", "__pycache__", "bin") or first.endswith((*_METADATA, ".data", ".pth", ".libs")):
        return ""
    return first if slash and rest else first.partition(".")[0]
