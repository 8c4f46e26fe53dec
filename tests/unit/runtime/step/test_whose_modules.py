"""Which modules are the user's: the innermost folder decides, and only whole names of folders count."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from upshift.runtime.storage.external import code_names
from upshift.runtime.usercode import ExactLoader, watch

NAME = "whose_module_is_this"


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of Python's imports that a test changes is put back."""
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    monkeypatch.setattr(sys, "path", list(sys.path))


def loader_of(folder: Path, project: Path) -> Any:
    """What imports a module of this folder, once that of the project is watched."""
    folder.mkdir(parents=True)
    (folder / f"{NAME}.py").write_text("")
    watch(str(project))
    sys.path.insert(0, str(folder))
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(NAME)
    assert spec is not None and spec.origin == str(folder / f"{NAME}.py")
    return spec.loader


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize(
    ("project", "folder"),
    [
        ("project", "project/src"),
        ("my-site-packages-tool", "my-site-packages-tool"),
        ("lib/site-packages/pipelines", "lib/site-packages/pipelines/more"),
    ],
)
def test_modules_of_a_project_are_imported_exactly(tmp_path: Path, project: str, folder: str) -> None:
    assert isinstance(loader_of(tmp_path / folder, tmp_path / project), ExactLoader)


@pytest.mark.usefixtures("paths")
@pytest.mark.parametrize(
    ("project", "folder"),
    [
        ("project", "project/.venv/lib/python3.11/site-packages"),
        ("project", "project-2"),
        ("lib/site-packages/pipelines", "lib/site-packages/yaml"),
    ],
)
def test_modules_of_packages_and_of_others_are_left_to_python(
    tmp_path: Path, project: str, folder: str
) -> None:
    assert not isinstance(loader_of(tmp_path / folder, tmp_path / project), ExactLoader)


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("/home/me/my-site-packages-tool/data.py", ("Row", "Table")),
        ("/home/me/.venv/lib/python3.11/site-packages/data/__init__.py", ("Row",)),
        ("/usr/lib/python3/dist-packages/data.py", ("Row",)),
    ],
)
def test_of_a_package_one_class_stands_for_all_and_of_a_project_each_counts(
    file: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(NAME)
    module.__file__ = file
    monkeypatch.setitem(sys.modules, NAME, module)
    classes = [type(name, (), {"__module__": NAME}) for name in ("Table", "Row")]
    assert code_names(classes) == tuple(f"{NAME}:{name}" for name in names)
