"""What the pieces of a fingerprint are called."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fingerprint_projects import Project, fresh_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    yield from fresh_project(tmp_path, monkeypatch)


BASE = {
    "pipe.py": '''
    """The pipeline."""
    import numpy as np
    import helpers
    from models import Model
    from upshift import ResourceSettings, pipeline, step as a_step

    SCALE = 2
    OTHER = 3

    def add(x, n=1):
        """Adds."""
        return x + n

    def unrelated(x):
        return OTHER * x

    @a_step(settings={"resources": ResourceSettings(cpu_count=1)})
    def step(x: int) -> float:
        return np.mean([add(x), helpers.f(x) * SCALE, Model().predict()])

    @pipeline
    def training(x: int = 1):
        return step(x)

    if __name__ == "__main__":
        training(x=1)
    ''',
    "helpers.py": """
    def f(x):
        return g(x) + 1

    def g(x):
        values = [x,
                  x + 1]
        return sum(values)
    """,
    "models.py": """
    class Model:
        '''A model.'''
        rate = 0.5
        def predict(self):
            '''Predicts.'''
            return self.rate
    """,
}


def test_names_tell_a_person_what_is_reached(project: Project) -> None:
    names = set(project.fingerprint(BASE))

    assert {"pipe.step (pipe.py)", "pipe.add (pipe.py)", "constant pipe.SCALE (pipe.py)"} <= names
    assert {"helpers (helpers.py)", "models (models.py)"} <= names
    assert any(name.startswith("package numpy") for name in names)
    assert not any("unrelated" in name or "OTHER" in name or "training" in name for name in names)


def test_only_what_was_edited_differs(project: Project) -> None:
    files = {name: textwrap.dedent(text) for name, text in BASE.items()}
    before = project.fingerprint(files)
    after = project.fingerprint({**files, "helpers.py": files["helpers.py"].replace("x + 1]", "x + 2]")})

    assert {name for name in before if before[name] != after[name]} == {"helpers (helpers.py)"}
    assert before.keys() == after.keys()


def test_packages_are_named_with_their_version(project: Project) -> None:
    import numpy

    assert project.fingerprint(BASE)["package numpy"] == numpy.__version__


def test_code_has_a_digest_that_names_its_algorithm_and_what_is_imported_its_name(project: Project) -> None:
    found = {n: d for n, d in project.fingerprint(BASE).items() if not n.startswith(("package ", "python"))}
    imported = {
        "pipe.Model (pipe.py)": "models.Model",
        "pipe.helpers (pipe.py)": "module helpers",
        "pipe.np (pipe.py)": "module numpy",
    }

    assert {name: found.pop(name) for name in imported} == imported
    assert all(digest.partition(":")[0] in ("blake3", "sha256") for digest in found.values())
