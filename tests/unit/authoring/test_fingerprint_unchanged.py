"""Edits that cannot change what a step does leave its fingerprint alone."""

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

# name: (file, text, replacement)
UNSEEN: dict[str, tuple[str, str, str]] = {
    "a comment": ("helpers.py", "return g(x) + 1", "return g(x) + 1  # one more"),
    "lines before": ("helpers.py", "def f(x):", "\n\n# above\n\n\ndef f(x):"),
    "parentheses": ("helpers.py", "g(x) + 1", "(g((x)) + (1))"),
    "a line break": ("helpers.py", "[x,\n              x + 1]", "[x, x + 1,]"),
    "quotes": ("models.py", "'''Predicts.'''", '"""Predicts."""'),
    "the docstring of a module": ("pipe.py", "The pipeline.", "My pipeline."),
    "the docstring of a function": ("pipe.py", "Adds.", "Adds one."),
    "the docstring of a class": ("models.py", "A model.", "The model."),
    "a docstring removed": ("models.py", "'''Predicts.'''\n", "\n"),
    "an unrelated function": ("pipe.py", "OTHER * x", "OTHER + x"),
    "a new function": ("helpers.py", "def f(x):", "def new(): pass\n\ndef f(x):"),
    "a new class": ("helpers.py", "def f(x):", "class New:\n    n = 1\n\ndef f(x):"),
    "an unrelated constant": ("pipe.py", "OTHER = 3", "OTHER = 4"),
    "a new constant": ("pipe.py", "OTHER = 3", "OTHER = 3\nNEW = {'a': [1, 2]}"),
    "a new constant that is computed": ("pipe.py", "OTHER = 3", "OTHER = 3\nNEW = np.linspace(0, 1, 5)"),
    "how a constant is written": ("pipe.py", "SCALE = 2", "SCALE = 1 + 1"),
    "the resources of the step": ("pipe.py", "cpu_count=1", "cpu_count=2"),
    "the pipeline": ("pipe.py", "x: int = 1", "x: int = 2"),
    "what runs as a script": ("pipe.py", "training(x=1)", "training(x=2)"),
    "an import that is used elsewhere only": (
        "pipe.py",
        "import helpers\n",
        "import helpers\nimport pandas\ndef plot(): return pandas\n",
    ),
}


@pytest.mark.parametrize("edit", UNSEEN)
def test_an_edit_without_effect_is_not_seen(project: Project, edit: str) -> None:
    file, old, new = UNSEEN[edit]
    files = {name: textwrap.dedent(text) for name, text in BASE.items()}
    assert old in files[file]
    before = project.fingerprint(files)
    assert project.fingerprint({**files, file: files[file].replace(old, new)}) == before


def test_names_tell_a_person_what_is_reached(project: Project) -> None:
    names = set(project.fingerprint(BASE))

    assert {"pipe.step (pipe.py)", "pipe.add (pipe.py)", "constant pipe.SCALE (pipe.py)"} <= names
    assert {"helpers.f (helpers.py)", "helpers.g (helpers.py)", "models.Model (models.py)"} <= names
    assert any(name.startswith("package numpy") for name in names)
    assert not any("unrelated" in name or "OTHER" in name or "training" in name for name in names)


def test_only_the_entry_of_what_was_edited_differs(project: Project) -> None:
    files = {name: textwrap.dedent(text) for name, text in BASE.items()}
    before = project.fingerprint(files)
    after = project.fingerprint({**files, "helpers.py": files["helpers.py"].replace("x + 1]", "x + 2]")})

    assert {name for name in before if before[name] != after[name]} == {"helpers.g (helpers.py)"}
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


def test_what_calls_a_pipeline_at_the_top_level_is_no_part_of_its_steps(project: Project) -> None:
    text = """
    from upshift import pipeline, step as a_step

    @a_step
    def step(x: int) -> int:
        return x + 1

    @pipeline
    def training(x: int = 1):
        return step(x)

    def call():
        return None

    if False:
        run = training(x=1)
        print(run.output)
    """
    before = project.fingerprint({"pipe.py": text})
    assert project.fingerprint({"pipe.py": text.replace("x=1)", "x=2)")}) == before


def test_the_set_of_a_constant_is_compared_whatever_its_order(project: Project) -> None:
    forwards = "NAMES = {'a', 'b', 'c', 'd', 'e', 'f'}\ndef step(x): return x in NAMES\n"
    backwards = "NAMES = {'f', 'e', 'd', 'c', 'b', 'a'}\ndef step(x): return x in NAMES\n"

    assert project.fingerprint({"pipe.py": forwards}) == project.fingerprint({"pipe.py": backwards})
