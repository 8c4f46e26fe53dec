"""Small projects on disk, for the tests of fingerprints: written, imported anew, analysed, run."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from upshift.code.fingerprint import fingerprint


class Project:
    """A project whose modules are forgotten and imported anew at each look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, files: Mapping[str, str]) -> None:
        """Make these the files of the project, by path."""
        for old in self.folder.rglob("*.py"):
            old.unlink()
        for name, text in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))

    def forget(self) -> None:
        """Forget what was imported from the project."""
        root = str(self.folder)
        for name, module in list(sys.modules.items()):
            names = vars(module)
            places = [names.get("__file__"), *(names.get("__path__") or ())]
            if any(str(place).startswith(root) for place in places):
                del sys.modules[name]
        importlib.invalidate_caches()

    def function(self, name: str = "pipe.step", *, entry: str | None = None) -> Any:
        """A function of the project, imported anew, after ``entry``."""
        self.forget()
        if entry is not None:
            importlib.import_module(entry)
        module, _, attribute = name.partition(".")
        return getattr(importlib.import_module(module), attribute)

    def fingerprint(
        self, files: Mapping[str, str] | None = None, name: str = "pipe.step", *, entry: str | None = None
    ) -> dict[str, str]:
        """The fingerprint of a function, after the files were written, where ``entry`` was run."""
        if files is not None:
            self.write(files)
        function = self.function(name, entry=entry)
        return fingerprint(function, self.folder, [] if entry is None else [vars(sys.modules[entry])])


def fresh_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """An empty project, importable; forgotten in the end."""
    folder = tmp_path / "project"
    folder.mkdir()
    ours = Path(__file__).parents[2]  # the tests themselves are no code that a project could import
    monkeypatch.setattr(
        sys, "path", [e for e in sys.path if not e.startswith(str(ours)) and e != str(ours.parent)]
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # As if the process had started after the files were written.
    monkeypatch.setattr("upshift.code.fingerprint.live._process_start", lambda: float("inf"))
    made = Project(folder)
    yield made
    made.forget()
