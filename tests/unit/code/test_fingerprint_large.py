"""A project of 300 modules, all of which a step reaches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fingerprint_projects import Project, fresh_project

MODULES = 300


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    yield from fresh_project(tmp_path, monkeypatch)


def sources() -> dict[str, str]:
    """A tree of modules: each calls the two below it, which keeps imports from nesting deeply."""
    files = {"pipe.py": "from tree.m0 import run\ndef step(): return run()\n", "tree/__init__.py": ""}
    for i in range(MODULES):
        below = [j for j in (2 * i + 1, 2 * i + 2) if j < MODULES]
        imports = "".join(f"from tree import m{j}\n" for j in below)
        calls = "".join(f" + m{j}.run()" for j in below)
        files[f"tree/m{i}.py"] = (
            f"{imports}SCALE = {i}\n"
            f"def helper(x):\n    return x * SCALE\n"
            f"def unused(x):\n    return x - 1\n"
            f"class Model:\n    def fit(self):\n        return helper(2)\n"
            f"def run():\n    return Model().fit(){calls}\n"
        )
    return files


def test_an_edit_anywhere_is_seen_and_nothing_else_is(project: Project) -> None:
    files = sources()
    before = project.fingerprint(files)
    assert sum("(tree/m" in name for name in before) >= 2 * MODULES
    for number in (0, 150, MODULES - 1):
        name = f"tree/m{number}.py"
        text = files[name]
        for old, new in (
            ("x * SCALE", "x / SCALE"),
            (f"SCALE = {number}", "SCALE = -1"),
            ("helper(2)", "helper(3)"),
        ):
            after = project.fingerprint({**files, name: text.replace(old, new)})
            changed = {title for title in after if after[title] != before.get(title)}
            assert changed, (name, old)
            assert all(f"tree/m{number}.py" in title for title in changed), changed
        same = text.replace("def helper(x):", "# a word\ndef helper(x):\n    'Help.'")
        assert project.fingerprint({**files, name: same}) == before
